"""Low-rank adapters: nothing at first, W + (alpha / rank) B A after, the same once saved, and peft agrees."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from tasks.language import adapters, models, pretrained

TOKENIZER = pretrained.random_llama(1)[1]
IDS = torch.tensor([[5, 9, 12, 4, 4, 8, 7], [3, 2, 30, 31, 7, 1, 1]])
RANK, ALPHA = 4, 8.0


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


def adapted(model, seed=0):
    layers = max((m for m in model.base_model.modules() if isinstance(m, torch.nn.ModuleList)), key=len)
    adapters.add(model, layers, rank=RANK, alpha=ALPHA, generator=torch.Generator().manual_seed(seed))
    return model


def moved(model):
    """Adapters that a large step has changed."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                assert ".lora_" in name
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def test_fresh_adapters_change_nothing(model):
    plain = logits(copy.deepcopy(model))
    assert torch.equal(logits(adapted(model)), plain)


def test_only_the_adapters_train(model):
    """rank * (inputs + outputs) numbers for each linear map of the trunk: 7 maps of 3 Llama layers, 4 of 3 GPT-2's."""
    adapted(model)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if model.config.model_type == "llama":
        maps = 2 * (32 + 32) + 2 * (32 + 16) + 2 * (32 + 64) + (64 + 32)  # q o, k v, gate up, down
    else:
        maps = (32 + 96) + (32 + 32) + (32 + 128) + (128 + 32)
    assert trained == 3 * RANK * maps


def test_disabled_is_the_model_before_them(model):
    plain = logits(copy.deepcopy(model))
    moved(adapted(model))
    changed = logits(model)
    assert (changed - plain).abs().max() > 1e-2
    with adapters.disabled(model):
        assert torch.equal(logits(model), plain)
    assert torch.equal(logits(model), changed)
    assert any(p.requires_grad for p in model.parameters())


def test_a_draw_is_its_generator_s(model):
    twin = copy.deepcopy(model)
    for seed, same in ((0, True), (1, False)):
        one, other = adapted(copy.deepcopy(model)).state_dict(), adapted(copy.deepcopy(twin), seed).state_dict()
        assert all(torch.equal(one[name], other[name]) for name in one) is same


def test_merged_weights_compute_the_same(model):
    plain = copy.deepcopy(model)
    moved(adapted(model))
    plain.load_state_dict(adapters.merged(model.state_dict(), adapters.settings_of(model)))
    torch.testing.assert_close(logits(plain), logits(model), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("merge", [True, False])
def test_saved_and_loaded_it_says_the_same(model, tmp_path, merge):
    expected = logits(moved(adapted(model)))
    models.save(model, TOKENIZER, tmp_path, merge=merge)
    assert (tmp_path / "adapter").exists() is not merge
    torch.testing.assert_close(logits(models.load_policy(tmp_path)), expected, atol=1e-5, rtol=1e-5)


def test_peft_itself_reads_the_adapters(model, tmp_path):
    from peft import PeftModel

    expected = logits(moved(adapted(model)))
    models.save(model, TOKENIZER, tmp_path, merge=False)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    wrapped = PeftModel.from_pretrained(plain, tmp_path / "adapter")
    torch.testing.assert_close(logits(wrapped), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits(wrapped.merge_and_unload()), expected, atol=1e-5, rtol=1e-5)
