"""Judged answers, paired best against worst, joined by the corpus' off-policy pairs; split by prompt."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

from tasks.algorithms.pairs import best_against_worst
from tasks.errors import UserError
from tasks.language import judge, text
from tasks.language.dialogue import spoken
from tasks.runtime import config, record, records

_Row = dict[str, Any]


def run(shared: config.Shared, cfg: config.Preferences, *, samples: Path, corpus: Path, base: Path, out: Path) -> _Row:
    """Write `pairs.jsonl`; every pair says where it comes from (`origin`) and in which split it is."""
    dropped: Counter[str] = Counter()
    pairs = _sampled(samples, corpus, cfg.margin, dropped) + _off_policy(shared, corpus, base, dropped)
    for pair in pairs:
        pair["split"] = "held_out" if _share(pair, shared.seed) < cfg.held_out else "train"
    counts = Counter((pair["origin"], pair["split"]) for pair in pairs)
    for origin in sorted({pair["origin"] for pair in pairs}):
        if not counts[origin, "train"] or not counts[origin, "held_out"]:
            raise UserError(
                f"{origin} pairs: {counts[origin, 'train']} for training, {counts[origin, 'held_out']} held out;"
                " expected some of each: more prompts, a smaller preferences.margin or another preferences.held_out"
            )
    if not pairs:
        raise UserError(f"no pair is left; dropped: {dict(dropped)}")
    records.write_jsonl(out / "pairs.jsonl", pairs)
    for reason, count in sorted(dropped.items()):
        record.note(f"dropped {count}: {reason}")
    record.table("pairs", [{k: p[k] for k in ("prompt", "chosen", "rejected", "margin", "origin")} for p in pairs[:30]])
    return {
        "pairs": {f"{origin}_{split}": n for (origin, split), n in sorted(counts.items())},
        "dropped": dict(sorted(dropped.items())),
    }


def _sampled(samples: Path, corpus: Path, margin: float, dropped: Counter[str]) -> list[_Row]:
    """Best against worst of each prompt's answers, by the judge."""
    rows = records.read_jsonl(samples / "samples.jsonl", "id", "prompt", "prompt_tokens", "answers")
    gold = judge.load(corpus / "judge")
    grades = judge.grade(gold, [row["prompt"] for row in rows], [[a["text"] for a in row["answers"]] for row in rows])
    if waiting := judge.leave_unjudged(gold, Path(".rlhf/unjudged/preferences.jsonl")):
        record.note(waiting)
    pairs = []
    for row, judged in zip(rows, grades, strict=True):
        answers = row["answers"]
        if judged is None:
            dropped["sampled: a verdict is missing"] += 1
            continue
        chosen = best_against_worst(judged, margin=margin)
        if chosen is None:
            dropped["sampled: a tie, or below the margin"] += 1
            continue
        best, worst = (answers[i] for i in chosen)
        if best["tokens"] == worst["tokens"]:
            dropped["sampled: identical answers"] += 1
            continue
        pairs.append(
            _pair(row, best["text"], best["tokens"], worst["text"], worst["tokens"])
            | {"margin": judged[chosen[0]] - judged[chosen[1]], "origin": "sampled"}
        )
    return pairs


def _off_policy(shared: config.Shared, corpus: Path, base: Path, dropped: Counter[str]) -> list[_Row]:
    """The corpus' own pairs, as ids. A pair whose sides agree up to the length limit says nothing and is dropped."""
    rows = records.read_jsonl(corpus / "pairs.jsonl", "id", "prompt", "chosen", "rejected", "origin", "margin")
    tokenizer = text.load_tokenizer(base)
    pairs = []
    for row in rows:
        sides = []
        for side in ("chosen", "rejected"):
            # A whole text without prompt may be as long as prompt and answer together.
            limit = shared.answer_tokens + (0 if row["prompt"] else shared.prompt_tokens)
            sides += [row[side], text.answer_tokens(tokenizer, row[side], limit)]
        if sides[1] == sides[3]:
            dropped[f"{row['origin']}: identical up to the longest answer"] += 1
            continue
        prompt = text.prompt_tokens(tokenizer, row["prompt"], shared.format) if row["prompt"] else []
        encoded = row | {"prompt_tokens": prompt}
        pairs.append(_pair(encoded, *sides) | {"margin": row["margin"], "origin": row["origin"]})
    return pairs


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
    key = spoken(pair["prompt"]) or pair["id"]
    return int.from_bytes(hashlib.sha256(f"{seed}:{key}".encode()).digest()[:8], "big") / 2**64
