"""Judges: what they have in common, whichever kind a folder holds (tasks/language/judges has a file for each kind).

A pointwise judge scores answers, so it has a gold reward. A pairwise judge compares two answers; it is asked in both
orders. A judge folder holds `judge.json` and what the kind needs; nothing is pickled.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from safetensors import SafetensorError

from tasks.algorithms.win_rates import both_orders, order_agreement, win_share
from tasks.errors import UserError
from tasks.language.dialogue import Prompt
from tasks.language.judges.classifier import Classifier
from tasks.language.judges.classifier import keep as keep_classifier  # noqa: F401
from tasks.language.judges.endpoint import Endpoint
from tasks.language.judges.endpoint import keep as keep_endpoint  # noqa: F401
from tasks.language.judges.fitted import Fitted
from tasks.language.judges.function import Function
from tasks.language.judges.function import keep as keep_function  # noqa: F401
from tasks.language.judges.human import Human
from tasks.language.judges.human import keep as keep_human  # noqa: F401
from tasks.language.judges.protocol import Judge, Pointwise
from tasks.language.judges.protocol import write as write

_KINDS: dict[str, Callable[[Path, dict[str, Any]], Judge]] = {
    "fitted": Fitted,
    "classifier": Classifier,
    "callable": Function,
    "endpoint": Endpoint,
    "human": Human,
}


@dataclass(frozen=True)
class Verdicts:
    """Outcomes of comparisons, and how well the two orders of a pairwise judge agree."""

    outcomes: list[float | None]
    """Share of the first side: 1 won, 1/2 tie, 0 lost, other values where the orders disagree; None: no verdict."""
    agreement: float | None
    """Share of comparisons with the same verdict in both orders; None for a pointwise judge, which sees no order."""


def load(folder: Path) -> Judge:
    """The judge that was written to `folder`. Raises UserError for a folder that holds none."""
    try:
        settings = json.loads((folder / "judge.json").read_text(encoding="utf-8"))
        return _KINDS[settings["kind"]](folder, settings)
    except (OSError, ValueError, RecursionError, TypeError, LookupError, SafetensorError) as error:
        said = f"{type(error).__name__}: {error}"
        raise UserError(f"{folder} holds no judge that can be loaded ({said}): run `dvc repro corpus`") from None


def has_scores(judge: Judge) -> TypeGuard[Pointwise]:
    """Whether the judge is pointwise: whether there is a gold reward."""
    return hasattr(judge, "score")


def by_score(first: float, second: float) -> float:
    """Outcome of two scores: 1 the first is higher, 1/2 equal, 0 lower."""
    return 0.5 + 0.5 * ((first > second) - (first < second))


def compare(judge: Judge, prompts: Sequence[Prompt], first: Sequence[str], second: Sequence[str]) -> Verdicts:
    """Outcome of first against second, prompt by prompt. Equal texts tie without being asked about.

    A pointwise judge prefers the higher score. A pairwise one is asked in both orders and the mean counts, so that what
    it gives to the place cancels.
    """
    if has_scores(judge):
        a, b = judge.score(prompts, first), judge.score(prompts, second)
        return Verdicts([by_score(x, y) for x, y in zip(a, b, strict=True)], None)
    outcomes: list[float | None] = [0.5] * len(first)
    asked = [i for i, (x, y) in enumerate(zip(first, second, strict=True)) if x != y]
    sides = [[side[i] for i in asked] for side in (first, second)]
    put = [prompts[i] for i in asked]
    orders = judge.prefer([*put, *put], [*sides[0], *sides[1]], [*sides[1], *sides[0]])
    known = []
    for i, forward, backward in zip(asked, orders[: len(asked)], orders[len(asked) :], strict=True):
        outcomes[i] = None if forward is None or backward is None else both_orders(forward, backward)
        if forward is not None and backward is not None:
            known.append((forward, backward))
    return Verdicts(outcomes, order_agreement(*zip(*known, strict=True)) if known else None)


def leave_unjudged(judge: Judge, file: Path) -> str:
    """Write the pairs that people have not judged yet to `file`; a sentence that says so, "" where there is none."""
    if not isinstance(judge, Human) or not (rows := judge.unjudged()):
        return ""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    file.write_text(lines, encoding="utf-8", newline="\n")
    return f"{len(rows)} pairs wait for a verdict of people: {file} (add verdict: first, second or tie)"


def grade(judge: Judge, prompts: Sequence[Prompt], answers: Sequence[Sequence[str]]) -> list[list[float] | None]:
    """A number for each of the answers to each prompt, higher is better, to rank them by.

    The score of a pointwise judge; with a pairwise one the answer's share of wins over the other answers to its prompt
    (every pair, both orders). None for a prompt of which a verdict is missing.
    """
    if has_scores(judge):
        asked = [prompt for prompt, group in zip(prompts, answers, strict=True) for _ in group]
        flat = iter(judge.score(asked, [answer for group in answers for answer in group]))
        return [[next(flat) for _ in group] for group in answers]
    places = [(row, i, j) for row, group in enumerate(answers) for i, j in itertools.combinations(range(len(group)), 2)]
    found = compare(
        judge,
        [prompts[row] for row, _, _ in places],
        [answers[row][i] for row, i, _ in places],
        [answers[row][j] for row, _, j in places],
    ).outcomes
    tables: list[list[list[float]] | None] = [[[0.5] * len(group) for _ in group] for group in answers]
    for (row, i, j), outcome in zip(places, found, strict=True):
        table = tables[row]
        if table is None or outcome is None:
            tables[row] = None
        else:
            table[i][j], table[j][i] = outcome, 1 - outcome
    return [None if table is None else win_share(table) for table in tables]
