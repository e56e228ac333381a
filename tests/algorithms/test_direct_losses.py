"""The losses of direct preference optimisation. `h` and `p` as in tasks/algorithms/preference.py."""

import inspect
import math
from typing import get_args

import numpy as np
import pytest
import torch
from scipy.special import expit, log_expit, logit

from tasks.algorithms import preference
from tasks.algorithms.preference import LOSSES, answer_scores, kl_baseline, preference_statistics
from tasks.runtime import config
from tests.algorithms.checks import draws

LN2 = math.log(2)
ROWS = {
    "sigmoid": {"beta": 0.3, "label_smoothing": 0.1},
    "robust": {"beta": 0.3, "label_smoothing": 0.1},
    "ipo": {"beta": 0.3},
    "hinge": {"beta": 0.3},
    "simpo": {"beta": 2.0, "target_margin": 1.0},
    "orpo": {"weight": 0.5},
    "kto": {"beta": 0.3, "desirable_weight": 1.0, "undesirable_weight": 1.5},
    "contrastive": {},
}
ALL = pytest.mark.parametrize("kind", ROWS)


def loss(kind, chosen, rejected, *extra, **changes):
    tensors = [torch.as_tensor(x, dtype=torch.float64).reshape(-1) for x in (chosen, rejected)]
    return LOSSES[kind](*tensors, *extra, **ROWS[kind] | changes)


def extra(kind):
    return [torch.tensor(0.4)] if kind == "kto" else []


def slopes(kind, chosen, rejected, **changes):
    """Gradient with respect to the two scores."""
    sides = [torch.tensor([float(x)], dtype=torch.float64, requires_grad=True) for x in (chosen, rejected)]
    LOSSES[kind](*sides, *extra(kind), **ROWS[kind] | changes).sum().backward()
    return tuple(side.grad.item() for side in sides)


class TestGolden:
    def test_sigmoid_against_scipy(self):
        a, b = draws(5, seed=0) * 3, draws(5, seed=1) * 3
        expected = -log_expit(0.3 * (a.double() - b.double()).numpy())
        np.testing.assert_allclose(loss("sigmoid", a, b, label_smoothing=0.0), expected, rtol=1e-6)

    def test_conservative_loss_by_hand(self):
        # m = 2: .9 * .126928 + .1 * 2.126928
        assert loss("sigmoid", 2.0, 0.0, beta=1.0).item() == pytest.approx(0.326928, abs=1e-6)

    def test_robust_loss_may_be_negative(self):
        assert loss("robust", 50.0, 0.0, beta=0.1).item() == pytest.approx(-0.618, abs=5e-4)  # facts: h 50

    def test_ipo_by_hand(self):
        assert loss("ipo", 0.2, -0.3, beta=0.1).item() == pytest.approx(20.25)  # (.5 - 5)^2

    @pytest.mark.parametrize(("h", "expected"), [(1.0, 0.5), (2.0, 0.0), (4.0, 0.0), (-2.0, 2.0)])
    def test_hinge_by_hand(self, h, expected):
        assert loss("hinge", h, 0.0, beta=0.5).item() == pytest.approx(expected)

    def test_simpo_by_hand(self):
        # -10 over 5 tokens, -12 over 4: 2 * (-2 + 3) - 1 = 1, and -log sigmoid(1) = .313262
        sums, tokens = torch.tensor([-10.0, -12.0]), torch.tensor([5, 4])
        chosen, rejected = answer_scores(sums, sums, tokens, against_reference=False, per_token=True)
        assert loss("simpo", chosen, rejected).item() == pytest.approx(0.313262, abs=1e-6)

    def test_orpo_by_hand(self):
        # P = .5 and .2: odds 1 and 1/4, so sigmoid(ln 4) = 4/5
        found = loss("orpo", math.log(0.5), math.log(0.2), weight=1.0).item()
        assert found == pytest.approx(math.log(5 / 4))

    def test_kto_by_hand(self):
        # (1 - sigmoid(.5 * 2) + 1.5 * (1 - sigmoid(.5 * 4))) / 2 = (.268941 + 1.5 * .119203) / 2
        found = loss("kto", 3.0, -3.0, torch.tensor(1.0), beta=0.5).item()
        assert found == pytest.approx(0.223873, abs=1e-6)

    def test_contrastive_by_hand(self):
        assert loss("contrastive", -10.0, -12.0).item() == -2

    def test_kl_baseline_is_a_mean_held_at_zero(self):
        assert kl_baseline(torch.tensor([-1.0, -2.0]), torch.tensor([-2.0, -4.0])).item() == 1.5
        assert kl_baseline(torch.tensor([-2.0, -4.0]), torch.tensor([-1.0, -4.5])).item() == 0

    def test_statistics_by_hand(self):
        found = preference_statistics(torch.tensor([2.0, 1.0, 0.0, 3.0]), torch.tensor([1.0, 1.0, 5.0, 3.0]), scale=0.5)
        expected = {"accuracy": 0.25, "ties": 0.5, "margin": -0.5, "chosen_reward": 0.75, "rejected_reward": 1.25}
        assert {name: value.item() for name, value in found.items()} == expected


class TestIdentity:
    @pytest.mark.parametrize("kind", ["sigmoid", "robust"])
    @pytest.mark.parametrize("smoothing", [0.1, 0.3])
    def test_policy_equal_to_reference_gives_ln_2(self, kind, smoothing):
        assert loss(kind, 0.0, 0.0, label_smoothing=smoothing).item() == pytest.approx(LN2)

    def test_robust_is_unbiased_under_flipped_labels(self):
        """Mean over the flips, a share e of them, is the loss on clean labels."""
        a, b = draws(20, seed=2), draws(20, seed=3)
        noisy = 0.9 * loss("robust", a, b) + 0.1 * loss("robust", b, a)
        torch.testing.assert_close(noisy, loss("sigmoid", a, b, label_smoothing=0.0))

    def test_half_flipped_labels_prefer_neither(self):
        found = loss("sigmoid", [3.0, -1.0], [-1.0, 3.0], label_smoothing=0.5)
        assert found[0] == found[1]

    def test_kto_pairs_nothing(self):
        a, b, z = draws(6, seed=4), draws(6, seed=5), torch.tensor(0.2)
        whole = loss("kto", a, b, z).sum()
        torch.testing.assert_close(loss("kto", a, b.roll(2), z).sum(), whole)
        assert not torch.allclose(loss("sigmoid", a, b.roll(2)).sum(), loss("sigmoid", a, b).sum())

    def test_per_token_scores_do_not_grow_with_length(self):
        sums, tokens = draws(4, seed=6), torch.tensor([3, 1, 7, 2])
        options = {"against_reference": True, "per_token": True}
        once = answer_scores(sums, sums / 2, tokens, **options)
        torch.testing.assert_close(answer_scores(2 * sums, sums, 2 * tokens, **options), once)
        assert once[0].item() == pytest.approx(sums[0].item() / 6)

    def test_orpo_keeps_its_digits_at_both_ends(self):
        """P near 1: the odds are 1 / (1 - P) - 1, with 1 - P = 1e-9 - 5e-19 by the series. P tiny: P itself."""
        even, near, tiny = math.log(0.5), -1e-9, -300.0
        odds = near - math.log(1e-9 - 5e-19)
        assert loss("orpo", even, near, weight=1.0).item() == pytest.approx(-log_expit(-odds), abs=1e-9)
        assert loss("orpo", tiny, even, weight=1.0).item() == pytest.approx(300, abs=1e-9)
        certain = LOSSES["orpo"](torch.zeros(1), torch.full((1,), -1e4), weight=1.0)
        assert certain.isfinite().all()

    @ALL
    def test_micro_batches_add_up(self, kind):
        """Losses are per pair: nothing in them knows of the rest of the batch."""
        a, b = -draws(6, seed=7).abs(), -draws(6, seed=8).abs()
        parts = [loss(kind, a[s], b[s], *extra(kind)) for s in (slice(0, 1), slice(1, 6))]
        torch.testing.assert_close(torch.cat(parts), loss(kind, a, b, *extra(kind)), rtol=0, atol=0)

    def test_statistics_of_micro_batches_add_up(self):
        a, b = draws(6, seed=9), draws(6, seed=10)
        whole = preference_statistics(a, b, scale=0.3)
        parts = [preference_statistics(a[s], b[s], scale=0.3, count=6) for s in (slice(0, 2), slice(2, 6))]
        for name in whole:
            torch.testing.assert_close(parts[0][name] + parts[1][name], whole[name])


class TestGradient:
    @ALL
    def test_chosen_rises_and_rejected_falls(self, kind):
        chosen, rejected = slopes(kind, -0.9, -1.0)
        assert chosen < 0 < rejected

    def test_step_0_has_a_gradient_of_half_beta(self):
        assert slopes("sigmoid", 0, 0, beta=0.1, label_smoothing=0.0) == pytest.approx((-0.05, 0.05))

    def test_identical_answers_have_none(self):
        for kind in ("sigmoid", "robust", "ipo", "hinge", "simpo", "contrastive"):
            score = torch.tensor([-0.7], requires_grad=True)
            LOSSES[kind](score, score, **ROWS[kind]).sum().backward()
            assert score.grad.item() == 0, kind

    def test_conservative_optimum(self):
        assert logit(0.9) == pytest.approx(2.197, abs=5e-4)  # facts
        at = logit(0.9) / 0.3
        assert slopes("sigmoid", at, 0) == pytest.approx((0, 0), abs=1e-12)
        assert slopes("sigmoid", at - 0.1, 0)[0] < 0 < slopes("sigmoid", at + 0.1, 0)[0]

    def test_ipo_optimum(self):
        at = 1 / (2 * 0.3)
        assert slopes("ipo", at, 0) == pytest.approx((0, 0), abs=1e-12)
        assert slopes("ipo", at - 0.1, 0)[0] < 0 < slopes("ipo", at + 0.1, 0)[0]

    def test_hinge_has_none_beyond_its_margin(self):
        assert slopes("hinge", 4, 0) == (0, 0)
        assert slopes("hinge", 3, 0) == pytest.approx((-0.3, 0.3))

    def test_robust_never_stops(self):
        assert slopes("robust", 200, 0)[0] < -0.03  # the flipped part: -e beta / (1 - 2e) = -.0375

    def test_kto_slope_is_that_of_the_sigmoid(self):
        z, (chosen, rejected) = 0.4, slopes("kto", 1.0, -2.0)
        s, t = expit(0.3 * (1 - z)), expit(0.3 * (z + 2))
        assert chosen == pytest.approx(-0.3 * s * (1 - s) / 2)
        assert rejected == pytest.approx(1.5 * 0.3 * t * (1 - t) / 2)

    def test_contrastive_never_fades(self):
        assert slopes("contrastive", -1, -1) == slopes("contrastive", -1, -1e6) == (-1, 1)

    def test_none_reaches_the_reference_or_the_baseline(self):
        policy, reference = draws(3, seed=11).requires_grad_(), draws(3, seed=12).requires_grad_()
        scores = answer_scores(policy, reference, torch.ones(3), against_reference=True, per_token=False)
        baseline = kl_baseline(policy, reference)
        assert not baseline.requires_grad
        LOSSES["kto"](scores, scores * 0, torch.tensor(0.5, requires_grad=True), **ROWS["kto"]).sum().backward()
        assert reference.grad is None
        assert (policy.grad != 0).all()


class TestGarbage:
    @pytest.mark.parametrize("garbage", [1e9, math.inf, math.nan])
    def test_a_reference_that_is_left_out_does_not_matter(self, garbage):
        policy = draws(3, seed=13).requires_grad_()
        filled = torch.full((3,), garbage)
        found = answer_scores(policy, filled, torch.ones(3), against_reference=False, per_token=True)
        found.sum().backward()
        assert torch.equal(found, policy)
        assert torch.equal(policy.grad, torch.ones(3))

    def test_shapes_that_would_broadcast_are_an_error(self):
        with pytest.raises(ValueError, match="expected the same"):
            answer_scores(torch.zeros(3), torch.zeros(1), torch.ones(3), against_reference=True, per_token=False)
        with pytest.raises(ValueError, match="expected the same"):
            preference_statistics(torch.zeros(3, 1), torch.zeros(3), scale=1.0)
        with pytest.raises(ValueError, match="0 pairs"):
            kl_baseline(torch.zeros(0), torch.zeros(0))

    @pytest.mark.parametrize("kind", ["sigmoid", "robust", "ipo", "hinge", "simpo", "kto"])
    def test_beta_must_be_positive(self, kind):
        with pytest.raises(ValueError, match="beta is 0"):
            loss(kind, 0.0, 0.0, *extra(kind), beta=0.0)

    def test_a_smoothing_that_turns_the_labels_round_is_an_error(self):
        with pytest.raises(ValueError, match=r"0 to 0\.5"):
            loss("sigmoid", 0.0, 0.0, label_smoothing=0.6)
        with pytest.raises(ValueError, match="coin flips"):
            loss("robust", 0.0, 0.0, label_smoothing=0.5)


class TestRegistry:
    def test_every_row_of_the_config_has_its_function_and_no_function_lacks_a_row(self):
        rows = get_args(config.DPO.model_fields["loss"].annotation)
        assert {get_args(row.model_fields["kind"].annotation)[0] for row in rows} == set(LOSSES)
        for row in rows:
            function = LOSSES[get_args(row.model_fields["kind"].annotation)[0]]
            parameters = inspect.signature(function).parameters.values()
            named = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
            assert named == set(row.model_fields) - {"kind", "length_normalised"}, row
            assert ("baseline" in {p.name for p in parameters}) == row.mismatched, row

    @ALL
    def test_a_row_gives_its_hyperparameters_as_keywords(self, kind):
        normalised = {"length_normalised": True} if kind in ("sigmoid", "robust", "hinge") else {}
        others = {"loss": {"kind": kind, **ROWS[kind], **normalised}, "sft_weight": float(kind == "orpo")}
        optimiser = {"learning_rate": 1.0, "batch": 1, "micro_batch": 1, "epochs": 1, "warmup": 0.0}
        optimiser |= {"weight_decay": 0.0, "max_grad_norm": 1.0, "max_skipped": 3}
        section = config.DPO.model_validate(
            {
                **others,
                "origins": ["file"],
                "trainable": {"kind": "all"},
                "optimiser": optimiser,
                "drift_warning": 1.0,
                "kl_prompts": 2,
            }
        )
        assert section.loss.hyperparameters == ROWS[kind]
        assert section.loss.scale == ROWS[kind].get("beta", 1.0)
        assert section.loss.per_token == (kind not in ("kto", "contrastive"))
        assert section.loss.against_reference == (kind not in ("simpo", "orpo", "contrastive"))
        assert getattr(preference, f"{kind}_loss") is LOSSES[kind]
