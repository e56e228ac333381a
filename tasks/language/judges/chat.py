"""A client of the chat-completions protocol that OpenAI published and many servers follow: retries, pace, no secrets.

Retried: 408, 409, 429, every 5xx, a timeout, a connection that breaks. The wait is the server's Retry-After where it
sends one, else it doubles from one second. Everything else is an error at once.
"""

from __future__ import annotations

import email.utils
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import httpx

from tasks.errors import Unreachable, UserError

_AGAIN = {408, 409, 429}
_LONGEST = 300.0
"""Seconds; a server that asks for a longer wait is out of reach for this run."""


class Pace:
    """Spaces the requests of all threads evenly, and holds all of them when the server asks one to wait."""

    def __init__(
        self,
        per_minute: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._gap, self._clock, self._sleep = 60 / per_minute, clock, sleep
        self._lock, self._next = threading.Lock(), clock()

    def wait(self) -> None:
        """Return when the next request may start."""
        while True:
            with self._lock:
                now = self._clock()
                if now >= self._next:
                    self._next = now + self._gap
                    return
                left = self._next - now
            self._sleep(left)

    def hold(self, seconds: float) -> None:
        """Let no request start for that long."""
        with self._lock:
            self._next = max(self._next, self._clock() + seconds)


class Chat:
    """One endpoint. Safe to use from several threads."""

    def __init__(self, url: str, key_variable: str | None, *, attempts: int, timeout: float, pace: Pace) -> None:
        """url: up to and with the version, such as https://host/v1. key_variable: environment variable of the key."""
        self._url, self._attempts, self._pace = f"{url.rstrip('/')}/chat/completions", attempts, pace
        self._key = _key(key_variable)
        # Redirects are not followed: the key would go to somebody else.
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = httpx.Client(headers=headers, timeout=timeout, follow_redirects=False)

    def reply(self, request: Mapping[str, Any]) -> str:
        """The first choice's text. Raises Unreachable when all attempts failed, UserError for a refusal."""
        trouble = ""
        for attempt in range(self._attempts):
            self._pace.wait()
            try:
                response = self._client.post(self._url, json=request)
            except httpx.TransportError as error:
                trouble, wait = self._safe(f"{type(error).__name__}: {error}"), 2.0**attempt
            else:
                if response.is_success:
                    return self._text(response)
                trouble = f"status {response.status_code}: {self._safe(response.text)}"
                if response.status_code not in _AGAIN and response.status_code < 500:
                    raise UserError(f"corpus.judge.url: {self._url} refuses: {trouble}")
                wait = _asked_wait(response.headers.get("Retry-After"), 2.0**attempt)
            if wait > _LONGEST:
                raise Unreachable(f"corpus.judge.url: {self._url} asks to wait {wait:.0f} s: {trouble}")
            if attempt + 1 < self._attempts:
                self._pace.hold(wait)
        raise Unreachable(
            f"corpus.judge.url: {self._url} failed {self._attempts} times (corpus.judge.attempts), last: {trouble};"
            " verdicts so far are kept, the same command goes on from there"
        )

    def close(self) -> None:
        self._client.close()

    def _text(self, response: httpx.Response) -> str:
        try:
            content = response.json()["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError):
            raise UserError(
                f"corpus.judge.url: {self._url} answers {self._safe(response.text)!r}, expected a chat completion"
            ) from None
        # A model may answer with no text at all, such as a refusal or a tool call.
        return content if isinstance(content, str) else ""

    def _safe(self, text: str) -> str:
        """A server's words, short, on one line and without the key, should it repeat it."""
        plain = text.replace(self._key, "***") if self._key else text
        return " ".join(plain.split())[:200]


def _key(variable: str | None) -> str:
    if variable is None:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UserError(f"corpus.judge.key_variable: environment variable {variable} is not set, expected the API key")
    return key


def _asked_wait(header: str | None, otherwise: float) -> float:
    """Seconds of a Retry-After header, which holds seconds or a date (RFC 9110, section 10.2.3)."""
    if header is None:
        return otherwise
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        at = email.utils.parsedate_to_datetime(header)
    except ValueError:
        return otherwise
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())
