"""The table of differences at the end of a run, and TRL's version at its beginning."""

from __future__ import annotations

import importlib.metadata
import re

import pytest

from parity.comparison import FOUND


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Each folder is named for the release that it needs; another one on the path would compare with something else.
    for wanted in {tuple(re.findall(r"trl_(\d+)_(\d+)", str(item.path))[0]) for item in items}:
        version = importlib.metadata.version("trl")
        if tuple(version.split(".")[:2]) != wanted:
            raise pytest.UsageError(f"TRL {version} is installed, {'.'.join(wanted)} is needed: run `make parity`")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section(f"largest differences from TRL {importlib.metadata.version('trl')}")
    for quantity, difference in sorted(FOUND.items()):
        terminalreporter.write_line(f"{difference:8.1e}  {quantity}")
