"""SFT's answers to the held-out prompts, sampled once: what every policy, and best-of-n, is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tasks.errors import UserError
from tasks.language import judge, models, text
from tasks.language.generation import Answer, Sampler, sample
from tasks.runtime import config, record, records

_Row = dict[str, Any]


def run(shared: config.Shared, cfg: config.Baseline, *, sft: Path, corpus: Path, out: Path) -> _Row:
    """Write `answers.jsonl`: a held-out prompt a line, with its baseline answers and best-of-n's candidates.

    An answer carries its log-probability under SFT in nats and, where the judge has scores, its gold reward.
    """
    tokenizer = text.load_tokenizer(sft)
    rows = records.read_jsonl(corpus / "held_out.jsonl", "id", "prompt")[: cfg.prompts]
    if not rows:
        raise UserError(f"{corpus}/held_out.jsonl holds no prompt")
    prompts = [text.prompt_tokens(tokenizer, row["prompt"], shared.format) for row in rows]
    sampler = Sampler(
        shared.answer_tokens, shared.temperature, tokenizer.eos_token_id, tokenizer.pad_token_id, cfg.batch
    )
    model = models.load_policy(sft, shared.precision)
    generator = torch.Generator().manual_seed(shared.seed + 2)
    chosen = prompts[: cfg.candidate_prompts] if cfg.candidates else []
    total = len(prompts) + len(chosen)

    def progress(before: int) -> Any:
        return lambda done, _: record.log(before + done, total, {})

    options = {"generator": generator, "progress": progress(0)}
    found = sample(model, prompts, sampler, answers=cfg.answers, **options)
    options["progress"] = progress(len(prompts))
    # Candidates are further draws: no baseline answer competes with itself.
    more = sample(model, chosen, sampler, answers=cfg.candidates or 1, **options) if chosen else []
    more += [[] for _ in prompts[len(chosen) :]]
    lines = [
        {
            "id": row["id"],
            "prompt": row["prompt"],
            "prompt_tokens": prompt,
            "answers": [_kept(tokenizer, a) for a in answers],
            "candidates": [_kept(tokenizer, a) for a in candidates],
        }
        for row, prompt, answers, candidates in zip(rows, prompts, found, more, strict=True)
    ]
    every = _judged(judge.load(corpus / "judge"), lines)
    records.write_jsonl(out / "answers.jsonl", lines)
    figures = {
        "prompts": len(lines),
        "answers": sum(len(line["answers"]) for line in lines),
        "candidates": sum(len(line["candidates"]) for line in lines),
        "length": sum(len(a["tokens"]) for a in every) / len(every),
        "finished": sum(a["finished"] for a in every) / len(every),
    }
    if "gold" in every[0]:
        figures["gold"] = sum(a["gold"] for a in every) / len(every)
    return figures


def _kept(tokenizer: Any, answer: Answer) -> _Row:
    return {
        "text": text.text_of(tokenizer, answer.tokens),
        "tokens": answer.tokens,
        "finished": answer.finished,
        "log_prob": sum(answer.log_probs),
    }


def _judged(gold: judge.Judge, lines: list[_Row]) -> list[_Row]:
    """Add the gold reward to every answer, where the judge has one; returns all answers."""
    asked = [(line["prompt"], a) for line in lines for a in (*line["answers"], *line["candidates"])]
    if judge.has_scores(gold):
        scores = gold.score([prompt for prompt, _ in asked], [a["text"] for _, a in asked])
        for (_, answer), score in zip(asked, scores, strict=True):
            answer["gold"] = score
    return [answer for _, answer in asked]
