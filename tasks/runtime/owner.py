"""Which process a run belongs to, so that another process can tell later whether it is gone."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path

import psutil

_SLACK = 2.0
"""Seconds that two readings of one process's start may differ: the kernel counts from boot, and the clock is set."""


def me() -> dict[str, str]:
    """Host, process id and the process's start (seconds since 1970): tags of a run."""
    found = {"host": socket.gethostname(), "pid": str(os.getpid())}
    with contextlib.suppress(OSError):
        # Containers may share a host's name; their process ids are their own.
        found["pid_namespace"] = str(Path("/proc/self/ns/pid").readlink())
    return {**found, "pid_started": f"{psutil.Process().create_time():.2f}"}


def is_gone(owner: Mapping[str, str]) -> bool:
    """Whether the process has ended; False for one that cannot be seen from here (another host or container)."""
    here = me()
    if any(owner.get(key) != here.get(key) for key in ("host", "pid_namespace")):
        return False
    try:
        process = psutil.Process(int(owner["pid"]))
        if process.status() == psutil.STATUS_ZOMBIE:
            return True
        return abs(process.create_time() - float(owner["pid_started"])) > _SLACK
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, KeyError, ValueError):
        return False
