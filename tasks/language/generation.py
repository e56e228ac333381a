"""Sampling answers: token ids in; ids and their log-probabilities out.

One prefill serves the K answers of a prompt, keys and values are cached, and finished rows leave the batch. Each
answer draws from its own row of uniform numbers, so that what it is batched with does not decide what it says.
Legend: R rows still running, P longest prompt (padded on the left), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from tasks.algorithms.logprobs import nucleus_logits, token_log_probs
from tasks.language.progress import Checkpoints, read_state, write_state


@dataclass
class Answer:
    """Sampled ids; `log_probs` under the distribution sampled; `finished` when it ends with end-of-sequence."""

    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finished: bool = False


@dataclass(frozen=True)
class Sampler:
    """How answers are drawn. Temperature 0 takes the likeliest token and needs no random numbers."""

    max_tokens: int
    temperature: float
    eos: int
    pad: int
    batch: int
    """Rows generated together."""
    top_p: float = 1.0
    """Below 1 only the nucleus is drawn from, and `log_probs` are those of the truncated distribution."""


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    prompts: Sequence[list[int]],
    sampler: Sampler,
    *,
    answers: int = 1,
    generator: torch.Generator | None = None,
    progress: Callable[[int, int], None] | None = None,
    checkpoints: Checkpoints | None = None,
) -> list[list[Answer]]:
    """`answers` answers to each prompt, in the order of the prompts.

    `generator` (on the CPU) decides every draw; `progress(done, total)` is told the prompts finished so far. With
    `checkpoints` it goes on from the newest. Raises ValueError for an empty prompt.
    """
    if any(not prompt for prompt in prompts):
        raise ValueError(f"prompt {[len(p) for p in prompts].index(0)} has no token")
    draws = torch.rand(len(prompts) * answers, sampler.max_tokens, generator=generator, dtype=torch.float64)
    found: list[list[Answer]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), i))
    size = max(1, sampler.batch // answers)
    first = 0
    if checkpoints and (saved := checkpoints.newest()):
        found = [[Answer(**answer) for answer in row] for row in read_state(saved)["answers"]]
        first = sum(bool(row) for row in found)
    for start in range(first, len(order), size):
        group = order[start : start + size]
        rows = torch.tensor([i * answers + k for i in group for k in range(answers)])
        done = _decode(model, [prompts[i] for i in group], sampler, answers, draws[rows])
        for position, i in enumerate(group):
            found[i] = done[position * answers : (position + 1) * answers]
        if progress:
            progress(min(start + size, len(order)), len(order))
        if checkpoints and start + size < len(order) and checkpoints.due(_ANSWER_BYTES * answers * (start + size)):
            state = {"answers": [[asdict(answer) for answer in row] for row in found]}
            checkpoints.save(start // size + 1, partial(write_state, state))
    return found


_ANSWER_BYTES = 1000
"""Of one answer in a checkpoint, about."""


def _decode(
    model: PreTrainedModel, prompts: list[list[int]], sampler: Sampler, answers: int, draws: Tensor
) -> list[Answer]:
    """One group: prefill, then a token a step for every row that still runs."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[sampler.pad] * (width - len(p)) + p for p in prompts], device=model.device)
    attention = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    cache = DynamicCache(config=model.config)
    logits = _forward(model, tokens, attention, cache).repeat_interleave(answers, dim=0)
    cache.batch_repeat_interleave(answers)
    attention = attention.repeat_interleave(answers, dim=0)
    found = [Answer() for _ in range(len(prompts) * answers)]
    running = torch.arange(len(found))
    for step in range(sampler.max_tokens):
        chosen, log_probs = _draw(logits, sampler, draws[running, step].to(logits.device))
        _append(found, running.tolist(), chosen.tolist(), log_probs.tolist(), sampler.eos)
        alive = torch.tensor([not found[row].finished for row in running.tolist()])
        if step + 1 == sampler.max_tokens or not alive.any():
            break
        if alive.sum() <= _KEEP * len(alive):
            keep = alive.nonzero().squeeze(1)
            running, keep = running[keep], keep.to(model.device)
            cache.batch_select_indices(keep)
            chosen, attention = chosen[keep], attention[keep]
        attention = torch.cat([attention, attention.new_ones(len(attention), 1)], dim=1)
        logits = _forward(model, chosen.unsqueeze(1), attention, cache)
    return found


_KEEP = 0.9
"""Finished rows are dropped once they are a tenth of the batch: copying the cache costs about as much as they do."""


def _forward(model: PreTrainedModel, tokens: Tensor, attention: Tensor, cache: DynamicCache) -> Tensor:
    """Logits of the next token [R, V]."""
    positions = (attention.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
    return model(
        input_ids=tokens,
        attention_mask=attention,
        position_ids=positions,
        cache=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]


def _draw(logits: Tensor, sampler: Sampler, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Next tokens and their log-probabilities [R]: invert the cumulative distribution at `uniform` in [0, 1)."""
    temperature = sampler.temperature
    if temperature == 0:
        chosen = logits.argmax(-1)
        return chosen, token_log_probs(logits.unsqueeze(0), chosen.unsqueeze(0), temperature=1.0).squeeze(0)
    logits = nucleus_logits(logits, temperature=temperature, top_p=sampler.top_p)
    cumulative = (logits.float() / temperature).softmax(-1).cumsum(-1)
    total = cumulative[:, -1]
    # A token of probability 0 spans no interval and is never drawn: right=True sees to uniform = 0, and staying below
    # the total sees to a uniform that rounds to 1.
    point = torch.minimum(uniform.to(total.dtype) * total, total.nextafter(torch.zeros_like(total)))
    chosen = torch.searchsorted(cumulative, point.unsqueeze(1), right=True).squeeze(1)
    return chosen, token_log_probs(logits.unsqueeze(0), chosen.unsqueeze(0), temperature=temperature).squeeze(0)


def _append(found: list[Answer], rows: list[int], tokens: list[int], log_probs: list[float], eos: int) -> None:
    for row, token, log_prob in zip(rows, tokens, log_probs, strict=True):
        answer = found[row]
        if not answer.finished:
            answer.tokens.append(token)
            answer.log_probs.append(log_prob)
            answer.finished = token == eos
