"""Packed rows reproduce the unpacked loss and gradient, or the architecture is refused."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from tasks.algorithms.supervised import negative_log_likelihood
from tasks.errors import UserError
from tasks.language import scoring
from tasks.language.batches import Completion, pack, packs, pad
from tasks.language.packing import require_separable

IDS = {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 7, "pad_token_id": 0}
LLAMA = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3,
}  # fmt: skip
GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "initializer_range": 0.3}
NEO = {
    "hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
    "window_size": 4, "max_position_embeddings": 64, "initializer_range": 0.3,
}  # fmt: skip
SCALED = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
POSSIBLE = {
    "llama: rotary, grouped heads, tied": ("Llama", LLAMA | {"tie_word_embeddings": True}),
    "llama: biases, scaled rotary": ("Llama", LLAMA | {"attention_bias": True, "mlp_bias": True}, SCALED),
    "gpt2: absolute positions": ("GPT2", GPT2),
    "gpt-neo: absolute positions, local attention": ("GPTNeo", NEO),
    "gpt-neox: partial rotary, parallel residual": ("GPTNeoX", {k: v for k, v in LLAMA.items() if "key" not in k}),
    "mistral: window shorter than a row": ("Mistral", LLAMA | {"sliding_window": 4}),
    "gemma2: alternating windows, soft caps": ("Gemma2", LLAMA | {"head_dim": 8, "sliding_window": 4}),
    "qwen3: normalised queries": ("Qwen3", LLAMA | {"head_dim": 8}),
    "cohere: scaled logits": ("Cohere", LLAMA),
    "mixtral: experts": ("Mixtral", LLAMA | {"num_local_experts": 4}),
}
REFUSED = {
    "mamba: a recurrent state": ("Mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}),
    "bloom: takes no positions": ("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
}


def build(name, settings, rotary=None):
    torch.manual_seed(3)
    more = {"rope_parameters": rotary} if rotary else {}
    return AutoModelForCausalLM.from_config(getattr(transformers, f"{name}Config")(**IDS, **settings, **more)).eval()


def completions():
    """Seven, of lengths from 2 to 12."""
    generator = torch.Generator().manual_seed(1)
    lengths = [(3, 9), (1, 1), (2, 4), (5, 3), (1, 6), (4, 2), (2, 2)]
    drawn = [torch.randint(40, (p + a,), generator=generator).tolist() for p, a in lengths]
    return [Completion(ids[:p], ids[p:]) for ids, (p, _) in zip(drawn, lengths, strict=True)]


def loss_and_gradient(model, parts, count):
    model.zero_grad()
    total = 0.0
    for part in parts:
        log_probs = scoring.answer_log_probs(model, part, temperature=1.0)
        loss = negative_log_likelihood(log_probs, part.mask, count=count)
        loss.backward()
        total += loss.item()
    return total, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("features", POSSIBLE.values(), ids=POSSIBLE)
def test_packing_reproduces_loss_and_gradient(features):
    model, rows = build(*features), completions()
    options = {"fill": 0, "device": model.device}
    packed = [[rows[i] for i in row] for row in packs(rows, 12)]
    assert [len(row) for row in packed] == [1, 2, 2, 2]
    count = sum(len(c.answer) for c in rows)
    loss, gradient = loss_and_gradient(model, [pad(rows, **options)], count)
    for split in ([packed], [packed[:1], packed[1:]]):
        found, slopes = loss_and_gradient(model, [pack(part, **options) for part in split], count)
        assert found == pytest.approx(loss, rel=1e-6)
        assert slopes.keys() == gradient.keys()
        for name, expected in gradient.items():
            # Of the largest entry of each weight's gradient: float32 sums in another order (1.2e-6 seen).
            torch.testing.assert_close(slopes[name], expected, rtol=0, atol=5e-6 * max(1.0, expected.abs().max()))
    require_separable(model, 12)


@pytest.mark.parametrize("features", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_packed_is_refused(features):
    model = build(*features)
    with pytest.raises(UserError, match=r"sft.packing: is true, expected false for \w+ForCausalLM: .* sees the one"):
        require_separable(model, 12)


def test_positions_that_do_not_restart_are_refused(monkeypatch):
    """A model that keeps rows apart but counts on: GPT-2 whose positions are those of the row."""
    model = build("GPT2", GPT2)
    layer = model.transformer.wpe
    monkeypatch.setattr(layer, "forward", lambda p: layer.weight[torch.arange(p.shape[-1]).expand_as(p)])
    with pytest.raises(UserError, match="positions do not restart"):
        require_separable(model, 12)


def test_the_packed_batch_scores_each_completion_as_alone(model):
    rows = completions()
    packed = pack([rows[:3], rows[3:5], rows[5:]], fill=7, device=model.device)
    with torch.no_grad():
        found = scoring.answer_log_probs(model, packed, temperature=0.7)
        for row, completion in zip(found, rows, strict=True):
            logits = model(torch.tensor([completion.prompt + completion.answer])).logits[0] / 0.7
            at = torch.arange(len(completion.prompt) - 1, len(completion) - 1)
            expected = logits.log_softmax(-1)[at, torch.tensor(completion.answer)]
            torch.testing.assert_close(row[: len(completion.answer)], expected, atol=1e-5, rtol=1e-5)


def test_first_fit_decreasing_by_hand():
    """Lengths 12 2 6 8 7 6 4 into 12: 12 | 8 4 | 7 2 | 6 6."""
    assert packs(completions(), 12) == [[0], [3, 6], [4, 1], [2, 5]]
    with pytest.raises(ValueError, match="completion 0 has 12 tokens, a row holds 11"):
        packs(completions(), 11)
