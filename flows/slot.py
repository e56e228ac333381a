"""One GPU (or, on a machine without, one set of cores) for the stages of a flow that compute with the model."""

from __future__ import annotations

import contextlib
import heapq
import threading
from collections.abc import Iterator


class Slot:
    """Held by one at a time; of those that wait, the one that is first in the plan gets it next."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._taken = False
        self._waiting: list[int] = []

    @contextlib.contextmanager
    def held(self, place: int, wanted: bool = True) -> Iterator[None]:
        """place: position in the plan. wanted: False leaves the slot alone."""
        if not wanted:
            yield
            return
        with self._free:
            heapq.heappush(self._waiting, place)
            self._free.wait_for(lambda: not self._taken and self._waiting[0] == place)
            heapq.heappop(self._waiting)
            self._taken = True
        try:
            yield
        finally:
            with self._free:
                self._taken = False
                self._free.notify_all()
