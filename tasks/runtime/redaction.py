"""Takes secrets out of text before it is written, sent or shown.

Secret is: the value of an environment variable whose name says so, what tools keep under such a name in their
configuration (DVC, AWS, MLflow), the password inside an address, and what follows "Basic" or "Bearer".
"""

from __future__ import annotations

import configparser
import contextlib
import functools
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, unquote

HIDDEN = "***"
_NAME = re.compile(
    r"(PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|CREDENTIAL|ACCESS_?KEY|API_?KEY|ACCOUNT_?KEY|PRIVATE_?KEY"
    r"|CONNECTION_?STRING)(_ID|_KEY|S)?$|SECRET_|PASSWORD_",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"([a-zA-Z][\w+.\-]*://)([^/\s'\"]*)@")
_HEADER = re.compile(r"\b(Basic|Bearer)\s+[\w\-.~+/]+=*")
_FILES = (
    ".dvc/config",
    ".dvc/config.local",
    "~/.config/dvc/config",
    "~/.aws/credentials",
    "~/.mlflow/credentials",
)
_SHORTEST = 4
"""A shorter value would be found in ordinary words."""
_PLAIN = {"true", "false", "none", "null", "auto"}


def redacted(text: str) -> str:
    """The text with every secret replaced by three stars."""
    for secret in _secrets(_fingerprint()):
        text = text.replace(secret, HIDDEN)
    return _HEADER.sub(rf"\1 {HIDDEN}", _ADDRESS.sub(rf"\1{HIDDEN}@", text))


def redacted_tree(value: Any) -> Any:
    """The same for every string in nested mappings and lists, keys included; lone surrogates are replaced too."""
    if isinstance(value, str):
        return redacted(value).encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {redacted_tree(str(key)): redacted_tree(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted_tree(item) for item in value]
    return value if isinstance(value, int | float | bool) or value is None else redacted_tree(str(value))


class Redacting:
    """A text stream that shows no secret: in the place of sys.stderr, it also covers the logs of libraries."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(redacted(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _fingerprint() -> tuple[tuple[str, str], ...]:
    """What the secrets are made from, so that they are looked up once."""
    return tuple(item for item in os.environ.items() if _NAME.search(item[0]) or "@" in item[1])


@functools.lru_cache(maxsize=4)
def _secrets(variables: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    found = {value for name, value in variables if _NAME.search(name)}
    for _, value in variables:
        found |= set(_passwords(value))
    for file in _FILES:
        found |= set(_configured(Path(file).expanduser()))
    if "AWS_SHARED_CREDENTIALS_FILE" in os.environ:
        found |= set(_configured(Path(os.environ["AWS_SHARED_CREDENTIALS_FILE"])))
    found |= {quote(value, safe="") for value in found}
    usable = {value for value in found if len(value) >= _SHORTEST and value.lower() not in _PLAIN}
    # The longest first: one may be a part of another.
    return tuple(sorted(usable, key=len, reverse=True))


def _passwords(value: str) -> Iterable[str]:
    """Passwords of addresses in the value, as they stand and decoded."""
    for match in _ADDRESS.finditer(value):
        password = match[2].partition(":")[2]
        yield from (password, unquote(password))


def _configured(path: Path) -> Iterable[str]:
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    with contextlib.suppress(OSError, UnicodeDecodeError, configparser.Error):
        parser.read_string(path.read_text(encoding="utf-8"))
    for section in parser.sections():
        for name, value in parser.items(section):
            if value and _NAME.search(name):
                yield value
            elif value and "@" in value:
                yield from _passwords(value)
