"""Random models of a few thousand weights and random completions, the same for both sides."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from tasks.language.batches import Completion

VOCABULARY, PAD, EOS = 48, 0, 1
CPU = torch.device("cpu")


def policy(seed: int) -> Any:
    """A causal model whose next-token distributions are far from uniform."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(_config()).eval()


def scalar_model(seed: int) -> Any:
    """A reward or value model, one number per position."""
    torch.manual_seed(seed)
    return LlamaForSequenceClassification(_config(num_labels=1)).eval()


@torch.no_grad()
def moved(model: Any, *, by: float, seed: int) -> Any:
    """A copy, each weight moved at random: log-ratios between the two are neither 0 nor huge."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for parameter in other.parameters():
        parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return other


def answers(count: int, *, seed: int, prompt: tuple[int, int] = (2, 6), longest: int = 9) -> list[Completion]:
    """Completions of different lengths that end with EOS."""
    draw = random.Random(seed)

    def tokens(low: int, high: int) -> list[int]:
        return [draw.randrange(2, VOCABULARY) for _ in range(draw.randint(low, high))]

    return [Completion(tokens(*prompt), [*tokens(1, longest - 1), EOS]) for _ in range(count)]


def other_answers(completions: list[Completion], *, seed: int, longest: int = 9) -> list[Completion]:
    """A second answer to each prompt."""
    fresh = answers(len(completions), seed=seed, longest=longest)
    return [Completion(c.prompt, other.answer) for c, other in zip(completions, fresh, strict=True)]


def _config(**options: Any) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=EOS,
        tie_word_embeddings=False,
        **options,
    )
