"""A function of the user's."""

from __future__ import annotations

import importlib
import importlib.util
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tasks.errors import UserError
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
            scores = [float(value) for value in self._function(list(prompts), list(answers))]
        except Exception as error:
            raise UserError(f"judge {self._where} failed: {type(error).__name__}: {error}") from error
        if len(scores) != len(answers):
            raise UserError(f"judge {self._where} returned {len(scores)} scores for {len(answers)} answers")
        for index, value in enumerate(scores):
            if not math.isfinite(value):
                raise UserError(f"judge {self._where} returned {value} for answer {answers[index][:60]!r}")
        return scores


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
        shutil.copyfile(path, folder / path.name)
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
    except Exception as error:
        raise UserError(f"corpus.judge.function: {source}:{attribute} cannot be imported: {error}") from error
    if not callable(function):
        raise UserError(f"corpus.judge.function: {source}:{attribute} is not a function")
    return function
