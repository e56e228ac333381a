"""A policy against SFT on the held-out prompts: win rate with intervals, KL, gold reward, fluency.

For SFT itself this is the control: two independent samples of one policy, whose win rate must be near one half.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasks.algorithms.fluency import distinct_n, repetition, top_token_share
from tasks.algorithms.intervals import mean_interval, paired_bootstrap, wilson, win_rate
from tasks.errors import UserError
from tasks.language import judge, models, scoring, text
from tasks.language.batches import Completion
from tasks.language.generation import Answer, Sampler, sample
from tasks.runtime import config, record, records


def run(
    shared: config.Shared, cfg: config.Evaluation, *, policy: Path, sft: Path, corpus: Path, out: Path
) -> dict[str, Any]:
    """Write `answers.jsonl` (a held-out prompt a line, both answers, their gold rewards) and `summary.json`."""
    tokenizer = text.load_tokenizer(sft)
    rows = records.read_jsonl(corpus / "held_out.jsonl", "id", "prompt")[: cfg.prompts]
    if not rows:
        raise UserError(f"{corpus}/held_out.jsonl holds no prompt")
    prompts = [text.prompt_tokens(tokenizer, row["prompt"], shared.format) for row in rows]
    sampler = Sampler(
        shared.answer_tokens, shared.temperature, tokenizer.eos_token_id, tokenizer.pad_token_id, cfg.batch
    )
    # Baseline first: all evaluations share its seed, and so the very same baseline answers.
    reference = _load(sft, shared.precision)
    baseline = _answers(reference, prompts, sampler, seed=shared.seed + 2, half=0)
    tuned = _load(policy, shared.precision)
    answers = _answers(tuned, prompts, sampler, seed=shared.seed + 3, half=1)
    completions = [Completion(p, a.tokens) for p, a in zip(prompts, answers, strict=True)]
    options = {"temperature": shared.temperature, "fill": sampler.pad, "size": min(cfg.batch, 32)}
    own = scoring.all_log_probs(tuned, completions, **options)
    under_sft = scoring.all_log_probs(reference, completions, **options)
    asked = [row["prompt"] for row in rows]
    gold = judge.load(corpus / "judge")
    texts, baseline_texts = ([text.text_of(tokenizer, a.tokens) for a in side] for side in (answers, baseline))
    scores, baseline_scores = gold.score(asked, texts), gold.score(asked, baseline_texts)
    kl = [float((p - q).sum()) for p, q in zip(own, under_sft, strict=True)]
    lines = [
        {
            "id": row["id"],
            "prompt": row["prompt"],
            "prompt_tokens": completion.prompt,
            "answer": said,
            "answer_tokens": completion.answer,
            "finished": answer.finished,
            "kl": drift,
            "gold": score,
            "baseline": baseline_text,
            "baseline_gold": baseline_score,
        }
        for row, completion, answer, said, drift, score, baseline_text, baseline_score in zip(
            rows, completions, answers, texts, kl, scores, baseline_texts, baseline_scores, strict=True
        )
    ]
    records.write_jsonl(out / "answers.jsonl", lines)
    shown = ("prompt", "answer", "gold", "baseline", "baseline_gold")
    record.table("answers", [{key: line[key] for key in shown} for line in lines[:50]])
    generator = np.random.default_rng(shared.seed)
    summary = {
        "confidence": cfg.confidence,
        "win_rate": _win_rate(scores, baseline_scores, cfg, generator),
        "gold": _mean(scores, cfg.confidence),
        "baseline_gold": float(np.mean(baseline_scores)),
        "kl": _mean(kl, cfg.confidence),
        "perplexity_under_sft": math.exp(-float(torch.cat(under_sft).mean())),
        "answers": _fluency(answers),
        "baseline_answers": _fluency(baseline),
    }
    records.write_json(out / "summary.json", summary)
    return summary


def _load(folder: Path, precision: str) -> Any:
    model = models.load_policy(folder)
    models.cast_parameters(model, models.PRECISIONS[precision])
    return model


def _answers(model: Any, prompts: list[list[int]], sampler: Sampler, *, seed: int, half: int) -> list[Answer]:
    total = 2 * len(prompts)
    found = sample(
        model,
        prompts,
        sampler,
        generator=torch.Generator().manual_seed(seed),
        progress=lambda done, _: record.log(half * len(prompts) + done, total, {}),
    )
    return [answers[0] for answers in found]


def _win_rate(
    scores: list[float], baseline: list[float], cfg: config.Evaluation, generator: np.random.Generator
) -> dict[str, float]:
    """Ties count one half; Wilson's interval, and the paired bootstrap over prompts."""
    counts = win_rate(scores, baseline)
    low, high = wilson(counts.wins + counts.ties / 2, len(scores), confidence=cfg.confidence)
    outcomes = [0.5 + 0.5 * float(np.sign(a - b)) for a, b in zip(scores, baseline, strict=True)]
    bootstrap = paired_bootstrap(outcomes, confidence=cfg.confidence, resamples=cfg.bootstrap, generator=generator)
    return {
        "rate": counts.rate,
        "low": low,
        "high": high,
        "bootstrap_low": bootstrap[0],
        "bootstrap_high": bootstrap[1],
        "prompts": len(scores),
        "ties": counts.ties,
    }


def _mean(values: list[float], confidence: float) -> dict[str, float]:
    low, high = mean_interval(values, confidence=confidence)
    return {"mean": float(np.mean(values)), "low": low, "high": high}


def _fluency(answers: list[Answer]) -> dict[str, float]:
    tokens = [a.tokens for a in answers]
    return {
        "length": sum(map(len, tokens)) / len(tokens),
        "finished": sum(a.finished for a in answers) / len(answers),
        "distinct_2": distinct_n(tokens, 2),
        "repetition_2": sum(repetition(t, 2) for t in tokens) / len(tokens),
        "top_token_share": top_token_share(tokens),
    }
