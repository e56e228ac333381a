"""A policy against SFT on the held-out prompts: win rates with intervals, KL, gold reward, fluency, suspicions.

For SFT itself this is the control: independent samples of one policy, whose win rate must be near one half.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasks.algorithms.fluency import Said, fluency
from tasks.algorithms.hacking_verdict import hacking_verdict
from tasks.algorithms.intervals import bootstrap, mean_with_interval
from tasks.algorithms.length_control import length_controlled_win_rate
from tasks.algorithms.win_rates import win_rate_interval
from tasks.errors import UserError
from tasks.language import judge, models, scoring, text
from tasks.language.batches import Completion
from tasks.language.generation import Sampler, sample
from tasks.runtime import config, record, records, report

_Row = dict[str, Any]
_LENGTH_PENALTY = 0.1
"""Of the length-controlled win rate's slope: of no weight beside hundreds of comparisons, enough to keep it finite."""
_UNJUDGED = Path(".rlhf/unjudged")
"""Where pairs are left that people have to judge."""


def run(
    shared: config.Shared, cfg: config.Evaluation, *, policy: Path, sft: Path, baseline: Path, corpus: Path, out: Path
) -> _Row:
    """Write `answers.jsonl` (a held-out prompt a line, with the policy's answer and its figures) and `summary.json`."""
    tokenizer = text.load_tokenizer(sft)
    rows = records.read_jsonl(baseline / "answers.jsonl", "id", "prompt", "prompt_tokens", "answers")
    tuned, reference = (models.load_policy(folder, shared.precision) for folder in (policy, sft))
    answers = sample(
        tuned,
        [row["prompt_tokens"] for row in rows],
        Sampler(shared.answer_tokens, shared.temperature, tokenizer.eos_token_id, tokenizer.pad_token_id, cfg.batch),
        generator=torch.Generator().manual_seed(shared.seed + 3),
        progress=lambda done, total: record.log(done, total, {}),
    )
    completions = [Completion(row["prompt_tokens"], found[0].tokens) for row, found in zip(rows, answers, strict=True)]
    options = {"temperature": shared.temperature, "fill": tokenizer.pad_token_id, "size": min(cfg.batch, 32)}
    own, under_sft = (scoring.all_log_probs(m, completions, **options) for m in (tuned, reference))
    lines = [
        {
            "id": row["id"],
            "prompt": row["prompt"],
            "prompt_tokens": row["prompt_tokens"],
            "answer": text.text_of(tokenizer, found[0].tokens),
            "answer_tokens": found[0].tokens,
            "finished": found[0].finished,
            "kl": float((p - q).sum()),
            "sft_log_prob": float(q.sum()),
        }
        for row, found, p, q in zip(rows, answers, own, under_sft, strict=True)
    ]
    gold = judge.load(corpus / "judge")
    outcomes, judged = _outcomes(gold, lines, rows)
    waiting = judge.leave_unjudged(gold, _UNJUDGED / f"evaluation-{policy.name}.jsonl")
    if waiting:
        record.note(waiting)
    if all(o is None for row in outcomes for o in row):
        raise UserError(f"no pair has a verdict (corpus.judge.verdicts); {waiting}")
    for line, found in zip(lines, outcomes, strict=True):
        known = [o for o in found if o is not None]
        line["win"] = sum(known) / len(known) if known else None
    records.write_jsonl(out / "answers.jsonl", lines)
    _show(lines, rows)
    said, theirs = [_said(line) for line in lines], [[_said(a) for a in row["answers"]] for row in rows]
    summary = _summary(cfg, lines, rows, outcomes, seed=shared.seed) | judged
    summary |= _texts(said, theirs)
    summary["hacking"] = _suspicions(cfg, said, theirs, tokenizer, seed=shared.seed)
    for sentence in report.suspicions(summary["hacking"]):
        record.note(f"warning: {policy.name} may exploit its reward: {sentence}")
    records.write_json(out / "summary.json", summary)
    return summary


def _outcomes(gold: judge.Judge, lines: list[_Row], rows: list[_Row]) -> tuple[list[list[float | None]], _Row]:
    """The policy's share against each baseline answer [P, M], and what a pairwise judge's verdicts were like.

    Where the judge has scores, each line gets its gold reward.
    """
    if judge.has_scores(gold):
        scores = gold.score([line["prompt"] for line in lines], [line["answer"] for line in lines])
        for line, score in zip(lines, scores, strict=True):
            line["gold"] = score
        pairs = zip(scores, rows, strict=True)
        return [[judge.by_score(score, a["gold"]) for a in row["answers"]] for score, row in pairs], {}
    asked = [(line, a["text"]) for line, row in zip(lines, rows, strict=True) for a in row["answers"]]
    verdicts = judge.compare(
        gold, [line["prompt"] for line, _ in asked], [line["answer"] for line, _ in asked], [said for _, said in asked]
    )
    found = iter(verdicts.outcomes)
    agreement = {} if verdicts.agreement is None else {"order_agreement": verdicts.agreement}
    return [[next(found) for _ in row["answers"]] for row in rows], {"judge": agreement | gold.counts()}


def _summary(
    cfg: config.Evaluation, lines: list[_Row], rows: list[_Row], outcomes: list[list[float | None]], *, seed: int
) -> _Row:
    settings = {"confidence": cfg.confidence, "resamples": cfg.bootstrap, "generator": np.random.default_rng(seed)}
    judged = [i for i, line in enumerate(lines) if line["win"] is not None]
    complete = all(o is not None for i in judged for o in outcomes[i])
    table = [outcomes[i] if complete else [lines[i]["win"]] for i in judged]
    summary = {
        "confidence": cfg.confidence,
        "win_rate": win_rate_interval(table, **settings)._asdict(),
        "length_controlled": _length_controlled([(lines[i], rows[i], outcomes[i]) for i in judged], settings),
        "kl": mean_with_interval([line["kl"] for line in lines], confidence=cfg.confidence)._asdict(),
    }
    if "gold" in lines[0]:
        summary["gold"] = mean_with_interval([line["gold"] for line in lines], confidence=cfg.confidence)._asdict()
        summary["baseline_gold"] = float(np.mean([a["gold"] for row in rows for a in row["answers"]]))
    return summary


def _length_controlled(judged: list[tuple[_Row, _Row, list[float | None]]], settings: _Row) -> dict[str, float]:
    """The length-controlled win rate over all comparisons, with the bootstrap's interval over prompts."""
    prompts = []
    for line, row, outcomes in judged:
        known = [(o, a) for o, a in zip(outcomes, row["answers"], strict=True) if o is not None]
        differences = [float(len(line["answer_tokens"]) - len(a["tokens"])) for _, a in known]
        prompts.append((np.array([o for o, _ in known]), np.array(differences)))

    def fitted(drawn: Any) -> Any:
        wins, differences = zip(*(prompts[i] for i in drawn), strict=True)
        return length_controlled_win_rate(np.concatenate(wins), np.concatenate(differences), penalty=_LENGTH_PENALTY)

    low, high = bootstrap(lambda drawn: fitted(drawn).rate, len(prompts), **settings)
    found = fitted(range(len(prompts)))
    return {"rate": found.rate, "low": low, "high": high, "slope": found.slope}


def _said(row: _Row) -> Said:
    """An answer of the policy (a line of answers.jsonl) or of SFT (one of a baseline's row)."""
    if "tokens" in row:
        return Said(row["tokens"], row["finished"], row["log_prob"])
    return Said(row["answer_tokens"], row["finished"], row["sft_log_prob"])


def _texts(said: list[Said], theirs: list[list[Said]]) -> _Row:
    """What the answers are like as text, beside SFT's: a mean over its M sets, as diversity depends on the amount."""
    sets = [fluency([answers[m] for answers in theirs]) for m in range(len(theirs[0]))]
    return {
        "answers": fluency(said),
        "baseline_answers": {name: float(np.mean([found[name] for found in sets])) for name in sets[0]},
    }


def _suspicions(
    cfg: config.Evaluation, said: list[Said], theirs: list[list[Said]], tokenizer: Any, *, seed: int
) -> _Row:
    """The signals of reward hacking, as metrics, and in words what stands everywhere."""
    settings = {"confidence": cfg.confidence, "resamples": cfg.bootstrap, "generator": np.random.default_rng([seed, 1])}
    draw = partial(bootstrap, **settings)
    signals, ngram = hacking_verdict(said, theirs, **cfg.hacking.model_dump(), draw=draw)
    found = {name: signal._asdict() for name, signal in signals.items()}
    found["everywhere"]["ngram"] = text.text_of(tokenizer, list(ngram))
    return found


def _show(lines: list[_Row], rows: list[_Row]) -> None:
    """The first prompts with both answers, for MLflow."""
    shown = ("prompt", "answer", "win", *(("gold",) if "gold" in lines[0] else ()))
    record.table(
        "answers",
        [
            {name: line[name] for name in shown} | {"baseline": row["answers"][0]["text"]}
            for line, row in zip(lines[:50], rows[:50], strict=True)
        ],
    )
