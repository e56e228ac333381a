"""A function of the user's."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
import shutil
import sys
from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import Any

from tasks.errors import UserError, shown
from tasks.language.dialogue import Prompt
from tasks.language.judges.protocol import write


class Function:
    """A function (prompts, answers) -> scores from a file that lies in the judge folder, or from a module."""

    name = "callable"

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._where = settings["function"]
        source, _, attribute = self._where.rpartition(":")
        self._function = _imported(folder / Path(source).name if source.endswith(".py") else source, attribute)

    def score(self, prompts: Sequence[Prompt], answers: Sequence[str]) -> list[float]:
        """The function's own scores. Raises UserError where it fails or returns something else than finite numbers."""
        try:
            found = self._function(list(prompts), list(answers))
            # One more than asked for is enough to refuse a generator without end.
            scores = [_number(value) for value in itertools.islice(found, len(answers) + 1)]
        except (Exception, SystemExit) as error:
            raise UserError(f"judge {self._where} failed: {type(error).__name__}: {error}") from error
        if len(scores) != len(answers):
            count = len(found) if isinstance(found, Sized) else f"{len(scores)} or more"
            raise UserError(f"judge {self._where} returned {count} scores for {len(answers)} answers")
        for index, value in enumerate(scores):
            if not math.isfinite(value):
                raise UserError(
                    f"judge {self._where} returned {value} for answer {shown(answers[index])}, expected a finite number"
                )
        return scores


def _number(value: Any) -> float:
    if isinstance(value, str | bytes | bool):
        raise TypeError(f"a score is {shown(value)}, expected a number")
    return float(value)


def keep(function: str, data: Path, folder: Path) -> None:
    """Write a callable judge to `folder`; a file is copied along, so that it is versioned with the corpus.

    function: "path/to/file.py:name" below `data`, or "package.module:name". Raises UserError for a missing file.
    """
    source, _, _ = function.rpartition(":")
    folder.mkdir(parents=True, exist_ok=True)
    if source.endswith(".py"):
        path = (data / source).resolve()
        if not path.is_relative_to(data.resolve()):
            raise UserError(f"corpus.judge.function: {source} leads out of corpus.data ({data})")
        if not path.is_file():
            raise UserError(f"corpus.judge.function: {data / source} not found")
        try:
            shutil.copyfile(path, folder / path.name)
        except OSError as error:
            raise UserError(f"corpus.judge.function: {path} cannot be read: {error.strerror}") from None
    write(folder, {"kind": "callable", "function": function})


def _imported(source: Path | str, attribute: str) -> Callable[[list[Prompt], list[str]], Any]:
    try:
        if isinstance(source, Path):
            spec = importlib.util.spec_from_file_location(f"judge_{source.stem}", source)
            module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
            sys.dont_write_bytecode, kept = True, sys.dont_write_bytecode  # no __pycache__ in a versioned folder
            try:
                spec.loader.exec_module(module)  # type: ignore[union-attr]
            finally:
                sys.dont_write_bytecode = kept
        else:
            module = importlib.import_module(source)
        function = getattr(module, attribute)
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}"
        raise UserError(f"corpus.judge.function: {source}:{attribute} cannot be imported: {said}") from error
    if not callable(function):
        raise UserError(f"corpus.judge.function: {source}:{attribute} is not a function")
    return function
