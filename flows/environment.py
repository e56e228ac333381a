"""What Prefect must find in the environment when it is imported. Whatever the user has set stays."""

from __future__ import annotations

import os
from pathlib import Path

from tasks.runtime.process import NO_TELEMETRY, QUIET

STATE = Path(".rlhf/prefect")
"""Prefect's database and settings without a server of the user's: in the project, not in the home folder."""
SERVER_SETTINGS = ("PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_HOME")


def prepare() -> None:
    """Switch telemetry and chatter off; without a server of the user's, give Prefect a home in the project."""
    for name, value in (NO_TELEMETRY | QUIET).items():
        os.environ.setdefault(name, value)
    if not has_server():
        STATE.mkdir(parents=True, exist_ok=True)
        os.environ["PREFECT_HOME"] = str(STATE.resolve())


def has_server() -> bool:
    """Whether the environment, or the active profile of `prefect config set` or `prefect cloud login`, names one."""
    if any(name in os.environ for name in SERVER_SETTINGS):
        return True
    profiles = Path.home() / ".prefect" / "profiles.toml"
    return profiles.is_file() and "PREFECT_API_URL" in profiles.read_text(encoding="utf-8", errors="replace")
