"""The running stage on the terminal: header, progress with an estimate of the time left, notes, closing line.

Everything goes to stderr: on a terminal the progress line is rewritten in place, elsewhere (a log, the flow's pipe) a
plain line comes every ten seconds.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from tasks.runtime.record import flat

EVERY = {True: 0.2, False: 10.0}
"""Seconds between two progress lines, by whether they are rewritten in place."""
SHOWN = 4
"""Figures on a progress or closing line."""


class Terminal:
    """Listener that shows one stage's progress."""

    def __init__(self, name: str, stream: TextIO | None = None) -> None:
        self.name = name
        self.stream = stream or sys.stderr
        self.rewrites = self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self.started = self.phase_started = time.monotonic()
        self.phase: tuple[int, int] = (0, 0)
        """First step of this phase that was recorded, and the phase's total."""
        self.last_step = 0
        self.last_shown = -1e9
        self.pending = False
        """A rewritten line stands on the terminal without its line end."""

    def header(self, text: str) -> None:
        self._line(f"{self.name}: {text}")

    def log(self, step: int, total: int, values: Mapping[str, float], timing: Mapping[str, float]) -> None:
        now = time.monotonic()
        if total != self.phase[1] or step < self.last_step:
            self.phase, self.phase_started = (step, total), now
        self.last_step = step
        if now - self.last_shown >= EVERY[self.rewrites] or step >= total:
            self.last_shown = now
            parts = [f"{self.name} {step}/{total}", *_figures({**values, **timing})]
            if step < total and (left := self._left(now, step)):
                parts.append(left)
            self._progress("  ".join(parts))

    def note(self, text: str) -> None:
        self._line(f"{self.name}: {text}")

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None: ...

    def done(self, metrics: Mapping[str, Any]) -> None:
        seconds = time.monotonic() - self.started
        self._line(f"{self.name}: done in {duration(seconds)}  {'  '.join(_figures(flat(metrics, '/')))}".rstrip())

    def close(self) -> None:
        """End a rewritten line, so that what follows (an error) starts on its own."""
        if self.pending:
            self._write("\n")
        self.pending = False

    def _left(self, now: float, step: int) -> str:
        """Time left at this phase's mean pace, "" at its first step: what came before it was no step."""
        first, total = self.phase
        if step == first:
            return ""
        return f"{duration((now - self.phase_started) / (step - first) * (total - step))} left"

    def _progress(self, text: str) -> None:
        if not self.rewrites:
            self._write(text + "\n")
            return
        width = shutil.get_terminal_size().columns - 1
        self._write("\r\x1b[2K" + text[:width])
        self.pending = True

    def _line(self, text: str) -> None:
        self.close()
        self._write(printable(text) + "\n")

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except OSError:
            # The reader has gone (closed pipe). A stage's work does not depend on who watches.
            pass


def duration(seconds: float) -> str:
    """8.4 s, 2m05s or 1h02m."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def _figures(values: Mapping[str, Any]) -> list[str]:
    numbers = {k: v for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return [f"{name.removeprefix('train/')} {value:.4g}" for name, value in list(numbers.items())[:SHOWN]]


def printable(text: str) -> str:
    """The text with every control character but newline and tab replaced.

    What a model or a user's file says is shown, not obeyed: an escape sequence could rewrite the terminal.
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
