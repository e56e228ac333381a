"""K answers per training prompt from the SFT policy: the raw material of on-policy preferences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tasks.errors import UserError
from tasks.language import models, text
from tasks.language.generation import Sampler, sample
from tasks.runtime import config, record, records, work


def run(shared: config.Shared, cfg: config.Samples, *, sft: Path, corpus: Path, out: Path) -> dict[str, Any]:
    """Write `samples.jsonl`: a prompt a line, with its K answers as text and as the ids that were sampled."""
    tokenizer = text.load_tokenizer(sft)
    rows = records.read_jsonl(corpus / "prompts.jsonl", "id", "prompt")[: cfg.prompts]
    if not rows:
        raise UserError(f"{corpus}/prompts.jsonl holds no prompt")
    prompts = [text.prompt_tokens(tokenizer, row["prompt"], shared.format) for row in rows]
    model = models.load_policy(sft, shared.precision)
    found = sample(
        model,
        prompts,
        Sampler(
            max_tokens=shared.answer_tokens,
            temperature=shared.temperature,
            eos=tokenizer.eos_token_id,
            pad=tokenizer.pad_token_id,
            batch=cfg.batch,
            top_p=cfg.top_p,
        ),
        answers=cfg.answers,
        generator=torch.Generator().manual_seed(shared.seed + 1),
        progress=lambda done, total: record.log(done, total, {}),
        checkpoints=work.checkpoints(),
    )
    lines = [
        {
            "id": row["id"],
            "prompt": row["prompt"],
            "prompt_tokens": prompt,
            "answers": [
                {"text": text.text_of(tokenizer, a.tokens), "tokens": a.tokens, "finished": a.finished} for a in answers
            ],
        }
        for row, prompt, answers in zip(rows, prompts, found, strict=True)
    ]
    records.write_jsonl(out / "samples.jsonl", lines)
    record.table(
        "samples", [{"prompt": line["prompt"], "answer": a["text"]} for line in lines[:20] for a in line["answers"]]
    )
    every = [answer for answers in found for answer in answers]
    return {
        "prompts": len(lines),
        "answers": len(every),
        "tokens_mean": sum(len(a.tokens) for a in every) / len(every),
        "finished": sum(a.finished for a in every) / len(every),
    }
