"""A tiny random Llama and a GPT-2 (another architecture: absolute positions), float32, in memory."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

EOS, PAD = 7, 0


def _llama() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True, initializer_range=0.3,
        bos_token_id=1, eos_token_id=EOS, pad_token_id=PAD,
    )  # fmt: skip


def _gpt2() -> GPT2Config:
    return GPT2Config(
        vocab_size=40, n_embd=32, n_layer=3, n_head=4, n_positions=64, initializer_range=0.3,
        bos_token_id=1, eos_token_id=EOS, pad_token_id=PAD,
    )  # fmt: skip


@pytest.fixture(params=[_llama, _gpt2], ids=["llama", "gpt2"])
def model(request):
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(request.param()).eval()


@pytest.fixture
def llama():
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(_llama()).eval()
