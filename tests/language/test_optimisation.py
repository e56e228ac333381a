"""The float32 step behind a model that computes in bfloat16."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import pytest
import torch

from tasks.errors import UserError
from tasks.language import models, scoring
from tasks.language.batches import Completion, pad
from tasks.language.master_weights import MasterWeights
from tasks.language.optimisation import accumulate, fit, linear_schedule
from tasks.runtime import work
from tests.language.conftest import PAD

COMPLETIONS = [Completion([5, 9, 12], [4, 4, 8, 7]), Completion([3], [2]), Completion([20, 21], [30, 31, 7])]


def settings(**changes):
    base = {"learning_rate": 1e-2, "batch": 3, "epochs": 8, "warmup": 0.0, "weight_decay": 0.0, "max_grad_norm": 1e9}
    return SimpleNamespace(**base | {"max_skipped": 2} | changes)


def master(model, precision, **changes):
    return MasterWeights(model, settings(**changes), precision=precision)


def loss(model, rows=(0, 1, 2), count=8):
    batch = pad([COMPLETIONS[i] for i in rows], fill=PAD, device=model.device)
    return -scoring.answer_log_probs(model, batch, temperature=1.0).sum() / count


def test_float32_steps_equal_torch_s_adamw(llama):
    twin = copy.deepcopy(llama)
    reference = torch.optim.AdamW(twin.parameters(), lr=1e-2, eps=1e-5, weight_decay=0.0)
    trained = master(llama, torch.float32)
    for _ in range(3):
        loss(twin).backward()
        reference.step()
        reference.zero_grad()
        trained.backward(loss(llama))
        trained.step(1e-2)
    for found, expected in zip(llama.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


def test_updates_too_small_for_bfloat16_are_not_lost(llama):
    """At rate 1e-6 one step rounds away in bfloat16 for a weight near 0.3; the master keeps each."""
    before = llama.get_input_embeddings().weight.detach().clone()
    trained = master(llama, torch.bfloat16)
    for _ in range(5):
        trained.backward(loss(llama))
        trained.step(1e-6)
    moved = trained.weights()["model.embed_tokens.weight"] - before
    assert moved.abs().max() == pytest.approx(5e-6, rel=0.1)


def test_the_model_in_memory_is_the_rounded_checkpoint(llama, tmp_path):
    """KL between what is saved and what trained: zero, as the log-probabilities are equal to the bit."""
    from tasks.language.text import byte_tokenizer

    trained = master(llama, torch.bfloat16)
    for _ in range(3):
        trained.backward(loss(llama))
        trained.step(1e-3)
    models.save(llama, byte_tokenizer(), tmp_path, trained.weights())
    loaded = models.load_policy(tmp_path)
    assert all(p.dtype == torch.float32 for p in loaded.parameters())
    models.cast_parameters(loaded, torch.bfloat16)
    assert torch.equal(loss(loaded), loss(llama))


def test_tied_and_frozen_weights_are_exported_in_float32(llama):
    original = {k: v.clone() for k, v in llama.state_dict().items()}
    models.freeze_below(llama, 1)
    weights = master(llama, torch.bfloat16).weights()
    assert weights.keys() == original.keys()
    for name, value in weights.items():
        assert torch.equal(value, original[name]), name


def test_rotary_frequencies_stay_float32(llama):
    models.cast_parameters(llama, torch.bfloat16)
    assert {b.dtype for n, b in llama.named_buffers() if "inv_freq" in n} == {torch.float32}


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_micro_batches_add_up_to_the_batch(llama, precision):
    twin = copy.deepcopy(llama)
    whole, split = master(llama, precision), master(twin, precision)
    whole.backward(loss(llama))
    total = accumulate(split, ((loss(twin, rows), {}) for rows in [(0,), (1, 2)]))
    tolerance = 1e-5 if precision == torch.float32 else 2e-2
    assert total["loss"] == pytest.approx(float(loss(llama).detach()), rel=tolerance)
    assert split.step(1e-3) == pytest.approx(whole.step(1e-3), rel=tolerance)


def test_the_gradient_is_clipped_and_its_norm_before_that_returned(llama):
    trained = master(llama, torch.float32, max_grad_norm=0.5)
    trained.backward(loss(llama) * 100)
    expected = torch.cat([p.grad.flatten() for p in llama.parameters()]).norm()
    assert expected > 0.5
    assert trained.step(0.0) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_gradient_that_is_not_finite_updates_nothing(llama, precision):
    trained = master(llama, precision)
    before = {name: value.clone() for name, value in trained.weights().items()}
    trained.backward(loss(llama) * float("nan"))
    assert math.isnan(trained.step(1e-3))
    assert all(torch.equal(before[name], value) for name, value in trained.weights().items())
    trained.backward(loss(llama))
    assert math.isfinite(trained.step(1e-3))
    assert all(value.isfinite().all() for value in trained.weights().values())


def test_the_schedule_rises_linearly_and_falls_to_zero():
    """10 steps, warm-up .2: 1/3, 2/3, then 8/8 down to 1/8."""
    rates = [linear_schedule(step, 10, peak=1.0, warmup=0.2) for step in range(10)]
    assert rates == pytest.approx([1 / 3, 2 / 3, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])


def test_fit_lowers_the_loss_and_reports_every_step(llama):
    trained, seen = master(llama, torch.float32), []
    fit(
        trained,
        lambda rows: iter([(loss(llama, rows, count=3), {})]),
        settings(),
        rows=3,
        generator=torch.Generator().manual_seed(0),
        report=lambda step, total, figures: seen.append((step, total, figures["loss"])),
        checkpoints=work.Checkpoints(None),
    )
    assert [(step, total) for step, total, _ in seen] == [(n, 8) for n in range(1, 9)]
    assert seen[-1][2] < 0.5 * seen[0][2]


def fitted(llama, bad=(), **changes) -> list[dict[str, float]]:
    """Eight steps of which those in `bad` (from 1) have a loss that is not a number."""
    steps = iter(range(1, 9))

    def losses(rows):
        step = next(steps)
        yield loss(llama, rows, count=3) * (math.nan if step in bad else 1.0), {"margin": torch.tensor(0.5)}

    return fit(
        master(llama, torch.float32, **changes),
        losses,
        settings(**changes),
        rows=3,
        generator=torch.Generator().manual_seed(0),
        report=lambda step, total, figures: None,
        checkpoints=work.Checkpoints(None),
    )


def test_an_update_that_is_not_finite_is_skipped_and_counted(llama):
    history = fitted(llama, bad=(3, 5))
    assert [figures["skipped"] for figures in history] == [0, 0, 1, 1, 2, 2, 2, 2]
    assert [math.isfinite(figures["gradient_norm"]) for figures in history] == [n not in (3, 5) for n in range(1, 9)]
    assert all(p.isfinite().all() for p in llama.parameters())
    assert history[7]["loss"] < 0.5 * history[0]["loss"]


def test_too_many_in_a_row_stop_the_run_and_name_what_broke_first(llama):
    with pytest.raises(UserError, match=r"2 updates in a row .* first loss was nan\. The last good checkpoint"):
        fitted(llama, bad=(3, 4))
    assert all(p.isfinite().all() for p in llama.parameters())
    with pytest.raises(UserError, match="3 updates in a row"):
        fitted(llama, bad=(5, 6, 7), max_skipped=3)
