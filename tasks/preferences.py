"""Judged answers in pairs, joined by the corpus' off-policy pairs; labelled by judge or votes, split by prompt."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.algorithms import pairs as strategies
from tasks.algorithms.agreement import vote_agreement
from tasks.algorithms.pairs import Pairs
from tasks.errors import UserError
from tasks.language import annotation, judge, text
from tasks.language.annotation import Tally, labelled
from tasks.language.dialogue import key, spoken
from tasks.runtime import config, record, records

_Row = dict[str, Any]
Judged = tuple[_Row, float]
"""(answer, the judge's score)"""
_UNJUDGED = Path(".rlhf/unjudged/preferences.jsonl")

_STRATEGIES: dict[str, Callable[[Sequence[float], Any, np.random.Generator], Pairs]] = {
    "best_worst": lambda scores, row, rng: strategies.best_against_worst(scores),
    # A prompt some of whose answers are the same has fewer of them.
    "top_bottom": lambda scores, row, rng: strategies.top_against_bottom(scores, k=min(row.k, len(scores) // 2)),
    "all": lambda scores, row, rng: strategies.every_pair(scores),
    "best_random": lambda scores, row, rng: strategies.best_against_random(scores, rng=rng),
    "adjacent": lambda scores, row, rng: strategies.adjacent_ranks(scores),
}
"""Kind of `preferences.pairs` -> the pairs that it proposes, given scores, its row of the config and random numbers."""


def run(shared: config.Shared, cfg: config.Preferences, *, samples: Path, corpus: Path, base: Path, out: Path) -> _Row:
    """Write `pairs.jsonl`; every pair says where it comes from (`origin`) and in which split it is.

    `margin` is the difference of the judge's scores (origin sampled) or of the mean ratings (ratings), 0 where a
    majority overruled it. `votes` are 1 for chosen, -1 for rejected, 0 for neither.
    And `ranked.jsonl`: a prompt a line, with the judge's score of each of its sampled answers.
    """
    tally = Tally()
    judged = _judged(samples, corpus, tally)
    pairs = [*_sampled(shared, cfg, judged, corpus, tally), *_off_policy(shared, cfg, corpus, base, tally)]
    ranked = [_ranked(row, answers) for row, answers in judged]
    for pair in [*pairs, *ranked]:
        pair["split"] = "held_out" if _share(pair, shared.seed) < cfg.held_out else "train"
    counts = Counter((pair["origin"], pair["split"]) for pair in pairs)
    for origin in sorted({pair["origin"] for pair in pairs}):
        if not counts[origin, "train"] or not counts[origin, "held_out"]:
            raise UserError(
                f"{origin} pairs: {counts[origin, 'train']} for training, {counts[origin, 'held_out']} held out;"
                " expected some of each: more prompts, a smaller preferences.margin or another preferences.held_out"
            )
    if not pairs:
        raise UserError(f"no pair is left; dropped: {dict(tally.dropped)}")
    records.write_jsonl(out / "pairs.jsonl", pairs)
    records.write_jsonl(out / "ranked.jsonl", ranked)
    for reason, count in sorted(tally.dropped.items()):
        record.note(f"dropped {count} {reason}")
    record.table("pairs", [{k: p[k] for k in ("prompt", "chosen", "rejected", "margin", "origin")} for p in pairs[:30]])
    return {
        "pairs": {f"{origin}_{split}": n for (origin, split), n in sorted(counts.items())},
        "dropped": dict(sorted(tally.dropped.items())),
        "agreement": _agreement(tally, cfg.least_agreement),
    }


def _judged(samples: Path, corpus: Path, tally: Tally) -> list[tuple[_Row, list[Judged]]]:
    """Every prompt with its sampled answers and the judge's scores; one that lacks a verdict is dropped."""
    rows = records.read_jsonl(samples / "samples.jsonl", "id", "prompt", "prompt_tokens", "answers")
    gold = judge.load(corpus / "judge")
    grades = judge.grade(gold, [row["prompt"] for row in rows], [[a["text"] for a in row["answers"]] for row in rows])
    if waiting := judge.leave_unjudged(gold, _UNJUDGED):
        record.note(waiting)
    found = []
    for row, scores in zip(rows, grades, strict=True):
        if scores is None:
            tally.dropped["sampled prompts: a verdict is missing"] += 1
        else:
            found.append((row, list(zip(row["answers"], scores, strict=True))))
    return found


def _ranked(row: _Row, judged: list[Judged]) -> _Row:
    answers = [{"tokens": answer["tokens"], "score": score} for answer, score in judged]
    kept = {name: row[name] for name in ("id", "prompt", "prompt_tokens")}
    return kept | {"answers": answers, "origin": "sampled"}


def _sampled(
    shared: config.Shared,
    cfg: config.Preferences,
    judged_rows: list[tuple[_Row, list[Judged]]],
    corpus: Path,
    tally: Tally,
) -> Iterator[_Row]:
    """The pairs of each prompt's answers that the strategy proposes and nothing speaks against."""
    annotators = annotation.judge_alone
    if cfg.annotators.kind == "panel":
        annotators = annotation.panel(records.read_json(corpus / "raters.json"), cfg.annotators.size, seed=shared.seed)
    for row, judged in judged_rows:
        distinct = _distinct(judged)
        if len(distinct) < len(judged):
            tally.dropped["sampled answers: exact duplicate"] += len(judged) - len(distinct)
        if len(distinct) < 2:
            tally.dropped["sampled prompts: all answers are the same"] += 1
            continue
        rng = np.random.default_rng(int(key(shared.seed, "pairs", row["id"]), 16))
        found = list(_proposed(cfg, row, distinct, annotators, rng, tally))
        if cfg.per_prompt is not None and len(found) > cfg.per_prompt:
            tally.dropped["sampled pairs: beyond preferences.per_prompt"] += len(found) - cfg.per_prompt
            found = [found[i] for i in sorted(rng.permutation(len(found))[: cfg.per_prompt].tolist())]
        yield from found


def _proposed(
    cfg: config.Preferences,
    row: _Row,
    judged: list[Judged],
    annotators: annotation.Annotators,
    rng: np.random.Generator,
    tally: Tally,
) -> Iterator[_Row]:
    """The pairs of one prompt, labelled; ties, narrow gaps and near duplicates are counted."""
    answers, scores = [answer for answer, _ in judged], [score for _, score in judged]
    votes = annotators(row["id"], [answer["tokens"] for answer in answers], scores)
    for better, worse in _STRATEGIES[cfg.pairs.kind](scores, cfg.pairs, rng):
        gap = scores[better] - scores[worse]
        if gap <= 0 or gap < cfg.margin:
            tally.dropped["sampled pairs: " + ("a tie" if gap <= 0 else "below the margin")] += 1
            continue
        chosen, rejected = answers[better], answers[worse]
        pair = _pair(row, chosen["text"], chosen["tokens"], rejected["text"], rejected["tokens"])
        pair |= {"margin": gap, "origin": "sampled", "votes": votes(better, worse)}
        yield from labelled(pair, cfg.near_duplicate, tally)


def _off_policy(
    shared: config.Shared, cfg: config.Preferences, corpus: Path, base: Path, tally: Tally
) -> Iterator[_Row]:
    """The corpus' own pairs, as ids. A pair whose sides agree up to the length limit says nothing and is dropped."""
    rows = records.read_jsonl(corpus / "pairs.jsonl", "id", "prompt", "chosen", "rejected", "origin", "margin")
    tokenizer = text.load_tokenizer(base)
    for row in rows:
        sides = []
        for side in ("chosen", "rejected"):
            # A whole text without prompt may be as long as prompt and answer together.
            limit = shared.answer_tokens + (0 if row["prompt"] else shared.prompt_tokens)
            sides += [row[side], text.answer_tokens(tokenizer, row[side], limit)]
        if sides[1] == sides[3]:
            tally.dropped[f"{row['origin']} pairs: identical up to the longest answer"] += 1
            continue
        prompt = text.prompt_tokens(tokenizer, row["prompt"], shared.format) if row["prompt"] else []
        pair = _pair(row | {"prompt_tokens": prompt}, *sides)
        pair |= {"margin": row["margin"], "origin": row["origin"], "votes": row.get("votes")}
        yield from labelled(pair, cfg.near_duplicate, tally)


def _distinct(judged: list[Judged]) -> list[Judged]:
    """The first of the answers with the same ids."""
    first: dict[tuple[int, ...], Judged] = {}
    for answer, score in judged:
        first.setdefault(tuple(answer["tokens"]), (answer, score))
    return list(first.values())


def _agreement(tally: Tally, least: float) -> dict[str, dict[str, float]]:
    """How far the annotators agree, by origin, with a warning where that is too little."""
    found = {}
    for origin, votes in sorted(tally.votes.items()):
        figures = vote_agreement(votes)
        found[origin] = figures | {"turned": tally.turned[origin]}
        alpha = figures.get("krippendorff")
        if alpha is not None and alpha < least:
            record.note(
                f"the annotators of the {origin} pairs agree little: Krippendorff's alpha is {alpha:.2f}, below"
                f" preferences.least_agreement ({least}); two of them agree on {figures['raw']:.0%} of the pairs"
            )
    return found


def _pair(row: _Row, chosen: str, chosen_tokens: list[int], rejected: str, rejected_tokens: list[int]) -> _Row:
    return {
        "id": row["id"],
        "prompt": row["prompt"],
        "prompt_tokens": row["prompt_tokens"],
        "chosen": chosen,
        "chosen_tokens": chosen_tokens,
        "rejected": rejected,
        "rejected_tokens": rejected_tokens,
    }


def _share(pair: _Row, seed: int) -> float:
    """A number in [0, 1) that is the same for all pairs of a prompt. Pairs without prompt stand for themselves."""
    said = spoken(pair["prompt"]) or pair["id"]
    return int.from_bytes(hashlib.sha256(f"{seed}:{said}".encode()).digest()[:8], "big") / 2**64
