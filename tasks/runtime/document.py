"""YAML files that people write: params.yaml and what is laid on it.

Read by the library that DVC reads them with, so that both see the same values: YAML 1.2, in which `1e-4` is a number
and `no` is text. A key that stands twice is an error; of two values one would be lost without a word.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from tasks.errors import UserError

_MOST_BYTES = 1 << 20
_DEEPEST = 50
_MOST_VALUES = 10_000
"""Values in a document, those that an alias repeats counted each time: some lines of aliases can stand for billions."""


def read(path: Path) -> Any:
    """The document in `path`. Raises UserError that names file and line."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} not found: run this from the repository root") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise UserError(f"{path}: has {len(data)} bytes, expected at most {_MOST_BYTES}")
    try:
        text = data.decode("utf-8-sig")
        _refuse_depth(text, path)
        document = YAML(typ="safe").load(text)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from None
    except MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{path}{line}: not valid YAML: {error.problem or error.context}") from None
    except (YAMLError, ValueError) as error:  # ValueError: a number of thousands of digits, a 13th month
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if _values(document, {}, path) > _MOST_VALUES:
        raise UserError(f"{path}: its aliases (*name) stand for more than {_MOST_VALUES} values: write them out")
    return document


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write block style in the document's order; readers of YAML 1.1 and 1.2 get the same values back."""
    text = yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    path.write_text(text, encoding="utf-8", newline="\n")


class _Dumper(yaml.SafeDumper):
    """PyYAML's, which writes YAML 1.1: quotes stand around whatever that or 1.2 would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, value: str) -> yaml.Node:
    style = '"' if not value.isprintable() else "'" if value[:1] in _NUMERIC else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_NUMERIC = tuple("+-.0123456789")
_Dumper.add_representer(str, _text)


def _refuse_depth(text: str, path: Path) -> None:
    """Raise UserError for values nested deeper than any params are: the constructor would take seconds and fail."""
    depth = 0
    with contextlib.suppress(yaml.YAMLError):  # told by the constructor, with its line
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise UserError(f"{path}: nested deeper than {_DEEPEST} levels, expected 5 or 6")


def _values(value: Any, known: dict[int, int | None], path: Path) -> int:
    """How many values there are with every alias written out. known: those counted before, None while being counted."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = None
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_values(part, known, path) for part in parts)
    count = known[id(value)]
    if count is None:
        raise UserError(f"{path}: an alias (*name) stands inside the value that it names, expected values that end")
    return count
