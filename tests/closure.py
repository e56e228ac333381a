"""What a stage imports, read from the source: the code half of its deps in dvc.yaml.

`python tests/closure.py [STAGE ...]`, from the repository root, prints the deps as they should stand there.
Nothing is imported, so a stage whose packages are missing can be listed too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

NEUTRAL = frozenset(
    f"tasks/{path}.py"
    for path in (
        "errors",  # a message to the user ends the stage: there is no out
        # No value has a default: what matters is in params.yaml, which is tracked.
        "runtime/config",
        "runtime/sections/section",
        "runtime/sections/shared",
        "runtime/sections/corpus",
        "runtime/sections/sft",
        "runtime/sections/preferences",
        "runtime/sections/reward",
        "runtime/sections/dpo",
        "runtime/sections/advantage",
        "runtime/sections/ppo",
        "runtime/sections/evaluation",
        "runtime/stage",  # paths, which dvc.yaml declares
        "runtime/process",  # environment, locks and the process's life
        "runtime/record",  # tells the listeners; returns nothing to the stage
        "runtime/terminal",
        # What MLflow gets.
        "runtime/reporter",
        "runtime/spool",
        "runtime/spooled",
        "runtime/state",
        "runtime/delivery",
        "runtime/companion",
        "runtime/artefacts",
        "runtime/tracking",
        "runtime/owner",
        "runtime/provenance",
        "runtime/redaction",
        "runtime/fingerprint",
        "runtime/surroundings",
        "runtime/disk",
        "runtime/work",  # a resumed stage's out is that of an uninterrupted one
    )
)
"""Modules that cannot change a byte of an out: no deps, and not followed. Not runtime/records.py, which writes outs."""


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Every dotted name that the file imports, at any depth, with its line; `from a import b` gives a and a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{path}:{node.lineno}: relative import, expected an absolute one")
            yield str(node.module), node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def modules(path: Path, root: Path = Path()) -> set[str]:
    """First-party files that the file imports, relative to the root. Packages' `__init__.py` are empty: not listed."""
    found = set()
    for name, _ in imported(root / path):
        file = Path(*name.split(".")).with_suffix(".py")
        if file.parts[0] in {"tasks", "flows"} and (root / file).is_file():
            found.add(file.as_posix())
    return found


def closure(path: str, root: Path = Path()) -> set[str]:
    """The file and everything first-party that it imports, directly or not; NEUTRAL left out and not followed."""
    found: set[str] = set()
    todo = {path}
    while todo:
        found |= todo
        todo = set().union(*(modules(Path(file), root) for file in todo)) - NEUTRAL - found
    return found


def stages(root: Path = Path()) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((root / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    return found


def is_code(dep: str) -> bool:
    return dep.endswith(".py") and dep.startswith("tasks/")


def deps(word: str, root: Path = Path()) -> list[str]:
    """The stage's deps as they should be: its own file, what that imports, then its artefacts as they stand."""
    own = f"tasks/{word}.py"
    artefacts = [dep for dep in stages(root)[word]["deps"] if not is_code(dep)]
    return [own, *sorted(closure(own, root) - {own}), *artefacts]


def main(words: list[str]) -> None:
    for word in words or stages():
        if Path(f"tasks/{word}.py").is_file():
            lines = [f"  {word}:", "    deps:", *(f"      - {dep}" for dep in deps(word))]
        else:
            lines = [f"  # {word}: tasks/{word}.py is not there"]
        sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
