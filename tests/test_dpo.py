"""Direct preference optimisation through `run`, on a tiny random model: every kind, the kept reference, the drift."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pydantic import ValidationError
from scipy.special import expit

from flows.workspace import merge
from tasks import dpo
from tasks.errors import UserError
from tasks.language import models, pretrained, text
from tasks.runtime import config, record, records
from tests.algorithms.checks import garbage
from tests.test_sft import Listener

ROOT = Path(__file__).parents[1]
KINDS: dict[str, dict[str, Any]] = {
    "sigmoid": {"kind": "sigmoid", "beta": 0.5, "label_smoothing": 0.1, "length_normalised": False},
    "normalised": {"kind": "sigmoid", "beta": 5.0, "label_smoothing": 0.0, "length_normalised": True},
    "robust": {"kind": "robust", "beta": 0.5, "label_smoothing": 0.1, "length_normalised": False},
    "ipo": {"kind": "ipo", "beta": 0.5},
    "hinge": {"kind": "hinge", "beta": 0.5, "length_normalised": False},
    "simpo": {"kind": "simpo", "beta": 2.0, "target_margin": 0.5},
    "orpo": {"kind": "orpo", "weight": 1.0},
    "kto": {"kind": "kto", "beta": 0.5, "desirable_weight": 1.0, "undesirable_weight": 1.5},
    "contrastive": {"kind": "contrastive"},
}
WORDS = ["good", "fine", "warm", "new"], ["bad", "dull", "cold", "old and grey"]


@pytest.fixture(scope="module")
def params() -> dict[str, Any]:
    read = [yaml.safe_load((ROOT / name).read_text(encoding="utf-8")) for name in ("params.yaml", "profiles/tiny.yaml")]
    return merge(*read)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, Path]:
    """A policy, and 20 pairs of which 16 train."""
    folder = tmp_path_factory.mktemp("inputs")
    model, tokenizer = pretrained.random_llama(1)
    models.save(model, tokenizer, folder / "sft")
    rows = []
    for n in range(20):
        chosen, rejected = (f" is {words[n % 4]}" for words in WORDS)
        rows.append(
            {
                "prompt_tokens": text.prompt_tokens(tokenizer, f"film {n}", "plain"),
                "chosen_tokens": text.answer_tokens(tokenizer, chosen, 16),
                "rejected_tokens": text.answer_tokens(tokenizer, rejected, 16),
                "origin": "sampled",
                "split": "train" if n < 16 else "held_out",
            }
        )
    records.write_jsonl(folder / "preferences/pairs.jsonl", rows)
    return {"sft": folder / "sft", "preferences": folder / "preferences"}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """The kept reference goes to a folder below the current one."""
    monkeypatch.chdir(tmp_path)


def section(params, loss: str | dict[str, Any], **changes) -> config.DPO:
    row = KINDS[loss] if isinstance(loss, str) else loss
    optimiser = {"batch": 16, "micro_batch": 32, "epochs": 4, "learning_rate": 1e-3, "warmup": 0.0}
    optimiser |= changes.pop("optimiser", {})
    weight = {"sft_weight": float(row["kind"] == "orpo")}
    found = merge(params["dpo"], {"loss": row, "optimiser": optimiser} | weight | changes)
    return config.DPO.model_validate(found)


def train(params, inputs, loss, out="out", shared=None, **changes):
    listener = Listener()
    with record.listening(listener):
        metrics = dpo.run(
            config.Shared.model_validate(params["shared"] | (shared or {})),
            section(params, loss, **changes),
            **inputs,
            out=Path(out),
        )
    return metrics, listener


def by_hand(inputs) -> list[list[tuple[float, int]]]:
    """Per training pair (sum of log p, number of tokens) of both answers under SFT: lone passes of transformers."""
    model = models.load_policy(inputs["sft"])
    found = []
    for row in records.read_jsonl(inputs["preferences"] / "pairs.jsonl")[:16]:
        sides = []
        for answer in (row["chosen_tokens"], row["rejected_tokens"]):
            start = len(row["prompt_tokens"])
            with torch.no_grad():
                log_p = model(torch.tensor([row["prompt_tokens"] + answer])).logits[0].log_softmax(-1)
            sides.append((sum(float(log_p[start + t - 1, token]) for t, token in enumerate(answer)), len(answer)))
        found.append(sides)
    return found


def simpo(w, r):
    return -math.log(expit(2 * (w[0] / w[1] - r[0] / r[1]) - 0.5))


def orpo(w, r):
    odds = [math.log(math.exp(p / n) / (1 - math.exp(p / n))) for p, n in (w, r)]
    return -math.log(expit(odds[0] - odds[1]))


STEP_0 = {
    "sigmoid": lambda w, r: math.log(2),
    "normalised": lambda w, r: math.log(2),
    "robust": lambda w, r: math.log(2),
    "ipo": lambda w, r: 1.0,  # (1 / (2 * .5))^2
    "hinge": lambda w, r: 1.0,
    "simpo": simpo,
    "orpo": orpo,
    "kto": lambda w, r: (0.5 + 1.5 * 0.5) / 2,
    "contrastive": lambda w, r: r[0] - w[0],
}


@pytest.mark.parametrize("loss", KINDS)
def test_every_kind_starts_where_its_equation_says_and_learns(params, inputs, loss):
    metrics, listener = train(params, inputs, loss)
    first, last = listener.rows[0], listener.rows[-1]
    sides = by_hand(inputs)
    likelihood = -sum(w[0] for w, _ in sides) / sum(w[1] for w, _ in sides)
    expected = sum(STEP_0[loss](*pair) for pair in sides) / 16 + (likelihood if loss == "orpo" else 0)
    assert first["dpo/loss"] == pytest.approx(expected, rel=1e-4)
    assert first["dpo/chosen_nll"] == pytest.approx(likelihood, rel=1e-4)
    for number, side in enumerate(("chosen", "rejected")):
        mean = sum(pair[number][0] for pair in sides) / 16
        assert first[f"dpo/{side}_log_prob"] == pytest.approx(mean, rel=1e-4)
        # The reference is the SFT policy, for every kind.
        assert first[f"dpo/{side}_drift"] == pytest.approx(0, abs=1e-4)
    assert last["dpo/loss"] < first["dpo/loss"]
    assert last["dpo/margin"] > first["dpo/margin"]
    assert last["dpo/chosen_drift"] - last["dpo/rejected_drift"] > 0.1
    assert metrics["last_step"]["accuracy"] == last["dpo/accuracy"]
    assert ("dpo/kl_baseline" in last) == (loss == "kto")


@pytest.mark.parametrize("loss", ["normalised", "orpo", "kto"])
def test_micro_batches_change_nothing(params, inputs, loss):
    """KTO's baseline is the whole batch's; the SFT term's tokens are, too."""
    whole = train(params, inputs, loss)[1].rows
    split = train(params, inputs, loss, optimiser={"micro_batch": 3})[1].rows
    for row, other in zip(whole, split, strict=True):
        assert other["dpo/loss"] == pytest.approx(row["dpo/loss"], rel=1e-4)
        assert other["dpo/margin"] == pytest.approx(row["dpo/margin"], rel=1e-3, abs=1e-4)


@garbage
@pytest.mark.parametrize("loss", KINDS)
def test_garbage_behind_an_answer_changes_nothing(params, loss, garbage):
    cfg = section(params, loss)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1]], dtype=torch.bool)
    extra = [torch.tensor(0.1)] if loss == "kto" else []
    found = []
    for filler in (0.0, garbage):
        log_probs = torch.where(mask, torch.linspace(-2, -1, 12).view(4, 3), filler).requires_grad_()
        value, figures = dpo._loss(cfg, log_probs, mask, -torch.arange(4.0), *extra, count=2, supervised=5)
        value.backward()
        found.append((value.detach(), log_probs.grad, figures))
    (clean, gradient, figures), (spoiled, spoiled_gradient, spoiled_figures) = found
    assert clean.isfinite()
    assert torch.equal(clean, spoiled)
    assert torch.equal(gradient, spoiled_gradient)
    assert (gradient[~mask] == 0).all()
    assert (gradient[mask] != 0).all()
    assert figures == spoiled_figures


class TestKeptReference:
    def test_with_without_and_after_it_the_policy_has_the_same_bytes(self, params, inputs, tmp_path, monkeypatch):
        computed = train(params, inputs, "kto", out="first", optimiser={"batch": 4})
        cache = tmp_path / dpo.CACHE
        files = {path: path.read_bytes() for path in cache.iterdir()}
        assert len(files) == 2  # the pairs, and KTO's mismatched answers
        read = train(params, inputs, "kto", out="second", optimiser={"batch": 4})
        next(iter(files)).write_bytes(b"damaged")
        mended = train(params, inputs, "kto", out="third", optimiser={"batch": 4})
        assert {path: path.read_bytes() for path in cache.iterdir()} == files
        made = [Path(out, "model.safetensors").read_bytes() for out in ("first", "second", "third")]
        assert made[0] == made[1] == made[2]
        assert computed[0] == read[0] == mended[0]
        # The same batches in the same order: every step's figures are equal to the bit.
        assert computed[1].rows == read[1].rows == mended[1].rows
        found = [sum("kept from before" in note for note in run[1].notes) for run in (computed, read, mended)]
        assert found == [0, 2, 1]

    def test_kinds_share_it(self, params, inputs):
        train(params, inputs, "sigmoid")
        _, listener = train(params, inputs, "ipo", sft_weight=0.5)
        assert "SFT's log-probabilities of 32 answers: kept from before" in listener.notes


class TestDrift:
    def test_the_unconstrained_baseline_outruns_dpo(self, params, inputs):
        """Same data, steps and rate: DPO eases off once a pair is told apart, the contrastive loss never does."""
        hard = {"epochs": 30, "learning_rate": 3e-3}
        held, loose = (
            train(params, inputs, loss, optimiser=hard, kl_prompts=20)[0] for loss in ("sigmoid", "contrastive")
        )
        assert held["last_step"]["accuracy"] == loose["last_step"]["accuracy"] == 1
        assert loose["kl"]["mean"] > 2 * held["kl"]["mean"] > 0
        assert loose["last_step"]["rejected_drift"] < 5 * held["last_step"]["rejected_drift"] < 0

    def test_a_fall_of_the_chosen_answers_is_said_once(self, params, inputs, tmp_path):
        quiet = train(params, inputs, "contrastive", drift_warning=1e6)[1]
        assert [note for note in quiet.notes if "less likely" in note] == []
        # Both answers are made of one letter, the rejected one of more: making that unlikely takes the chosen one down.
        rows = records.read_jsonl(inputs["preferences"] / "pairs.jsonl")
        for row in rows:
            row["chosen_tokens"], row["rejected_tokens"] = [97] * 6 + [98], [97] * 16
        records.write_jsonl(tmp_path / "alike/pairs.jsonl", rows)
        hard = {"epochs": 10, "learning_rate": 3e-3}
        alike = inputs | {"preferences": tmp_path / "alike"}
        _, listener = train(params, alike, "contrastive", drift_warning=1.0, optimiser=hard)
        (note,) = [note for note in listener.notes if "less likely" in note]
        step = next(n for n, row in enumerate(listener.rows, 1) if row["dpo/chosen_drift"] < -1)
        assert note.startswith(f"step {step}: the chosen answers are ")
        assert "dpo.drift_warning: 1)" in note

    @pytest.mark.parametrize(
        ("drifts", "warns"), [([-3.0], True), ([0.0, -2.0], False), ([0.0, -2.1], True), ([-3.0, 0.0, -4.0], False)]
    )
    def test_the_warning_is_about_the_first_crossing(self, drifts, warns):
        listener = Listener()
        with record.listening(listener):
            dpo._warn(drifts, 2.0)
        assert bool(listener.notes) == warns

    def test_an_sft_term_holds_the_chosen_answers(self, params, inputs):
        without, held = (train(params, inputs, "sigmoid", sft_weight=w)[0]["last_step"] for w in (0.0, 5.0))
        assert held["chosen_drift"] > without["chosen_drift"] + 0.5

    def test_the_sft_term_is_added_as_a_token_mean(self, params, inputs):
        first = train(params, inputs, "sigmoid", sft_weight=2.0)[1].rows[0]
        assert first["dpo/loss"] == pytest.approx(math.log(2) + 2 * first["dpo/chosen_nll"], rel=1e-5)

    def test_without_a_learning_rate_the_kl_on_samples_is_zero(self, params, inputs):
        metrics, _ = train(params, inputs, "sigmoid", optimiser={"learning_rate": 1e-30})
        assert metrics["kl"] == {"mean": 0, "standard_error": 0, "answers": 8}

    def test_held_out_prompts_come_first(self, params, inputs, monkeypatch):
        asked = []

        def sampled(policy, reference, prompts, *arguments, **options):
            asked.extend(prompts)
            return torch.zeros(len(prompts))

        monkeypatch.setattr(dpo, "sampled_log_ratios", sampled)
        train(params, inputs, "sigmoid", kl_prompts=6)
        rows = records.read_jsonl(inputs["preferences"] / "pairs.jsonl")
        assert asked == [row["prompt_tokens"] for row in [*rows[16:], *rows[:2]]]


class TestConfig:
    def test_the_default_is_plain_dpo(self):
        default = config.load(ROOT / "params.yaml").dpo
        plain = {"kind": "sigmoid", "beta": 0.1, "label_smoothing": 0.0, "length_normalised": False}
        assert default.loss.model_dump() == plain
        assert default.sft_weight == 0

    @pytest.mark.parametrize(
        ("loss", "weight", "reason"),
        [
            (KINDS["orpo"], 0.0, "orpo with sft_weight 0"),
            (KINDS["contrastive"], 0.5, "contrastive is the unconstrained baseline"),
            ({"kind": "sigmoid", "beta": 0.1, "label_smoothing": 0.6, "length_normalised": False}, 0.0, "0.5"),
            ({"kind": "robust", "beta": 0.1, "label_smoothing": 0.5, "length_normalised": False}, 0.0, "0.5"),
            ({"kind": "robust", "beta": 1.0, "label_smoothing": 0.0, "length_normalised": False}, 0.0, "greater than"),
            ({"kind": "ipo", "beta": 0.0}, 0.0, "greater than 0"),
            ({"kind": "ipo", "beta": 0.1, "length_normalised": True}, 0.0, "Extra inputs"),
            ({"kind": "kto", "beta": 0.1}, 0.0, "desirable_weight"),
            ({"kind": "dpo", "beta": 0.1}, 0.0, "does not match any of the expected tags"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, params, loss, weight, reason):
        with pytest.raises(ValidationError, match=reason):
            section(params, loss, sft_weight=weight)

    def test_kto_needs_another_prompt(self, params, inputs, tmp_path):
        rows = [row | {"prompt_tokens": [65]} for row in records.read_jsonl(inputs["preferences"] / "pairs.jsonl")]
        records.write_jsonl(tmp_path / "preferences/pairs.jsonl", rows)
        with pytest.raises(UserError, match="all pairs have one prompt"):
            train(params, inputs | {"preferences": tmp_path / "preferences"}, "kto")
