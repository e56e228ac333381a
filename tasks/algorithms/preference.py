"""Losses on pairs of answers of which one is preferred.

Legend: B pairs; `chosen[i]` and `rejected[i]` belong to one prompt.
Reduction: a direct loss is returned per pair [B], in nats; its mean over the pairs of the whole optimiser batch is what
is minimised. Elsewhere `count` is the number of those pairs; with it the losses and the statistics of micro-batches add
up to the batch's, however it was split. None: this batch's own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

Statistics = dict[str, Tensor]


def answer_scores(
    log_probs: Tensor, reference: Tensor, tokens: Tensor, *, against_reference: bool, per_token: bool
) -> Tensor:
    """What a direct loss compares: log pi(y|x), less log ref(y|x) if `against_reference`, over |y| if `per_token`.

    Shapes: log_probs, reference [B], SUMS over the answer's tokens in nats, none of the prompt's or the padding's;
    tokens [B], their number |y| (end-of-sequence included). Returns [B] in nats, or nats per token.
    No gradient flows to the reference; where it is left out, nothing that stands in it matters.
    Errors: ValueError for shapes that differ.
    """
    _same_rows(log_probs, reference, tokens)
    scores = log_probs - reference.detach() if against_reference else log_probs
    return scores / tokens if per_token else scores


def preference_statistics(chosen: Tensor, rejected: Tensor, *, scale: float, count: float | None = None) -> Statistics:
    """Implicit rewards, scale * answer score, and how they order the pairs.

    Shapes: chosen, rejected [B] answer scores; returns detached scalars: `accuracy` (share with the chosen reward
    above), `ties` (share with equality: neither right nor wrong), `margin`, `chosen_reward`, `rejected_reward` (means).
    Errors: ValueError for no pairs or shapes that differ.
    """
    divisor = _pairs(chosen, rejected, count=count)
    chosen, rejected = scale * chosen.detach(), scale * rejected.detach()
    statistics = _statistics(chosen - rejected, divisor)
    return statistics | {"chosen_reward": chosen.sum() / divisor, "rejected_reward": rejected.sum() / divisor}


def kl_baseline(log_probs: Tensor, reference: Tensor) -> Tensor:
    """KTO's reference point: max(0, mean_j (log pi(y'_j|x_j) - log ref(y'_j|x_j))), y'_j an answer to another prompt.

    Source: Ethayarajh et al. 2024 (arXiv 2402.01306), section 4.1: a biased but cheap estimate of KL(pi || ref).
    Reduction: mean over all mismatched answers of the optimiser batch, before it is split: a baseline per micro-batch
    would make the loss depend on the split. Shapes: both [B] sums in nats; returns a detached scalar.
    Errors: ValueError for no answers or shapes that differ.
    """
    divisor = _pairs(log_probs, reference, count=None)
    return ((log_probs - reference).detach().sum() / divisor).clamp(min=0)


# Below: the loss of each pair [B], of its two answer scores. `tasks.runtime.sections.dpo` says for each kind which
# scores it takes: h_w for the chosen and h_l for the rejected answer, h = log pi - log ref, or p = log pi.


def sigmoid_loss(chosen: Tensor, rejected: Tensor, *, beta: float, label_smoothing: float) -> Tensor:
    """DPO: Bradley-Terry on implicit rewards; with label smoothing the conservative cDPO.

    -(1 - e) log sigmoid(m) - e log sigmoid(-m), m = beta (h_w - h_l), e the share of labels taken to be flipped.
    Source: Rafailov et al. 2023 (arXiv 2305.18290), equation 7; Mitchell 2023, "A note on DPO with noisy preferences".
    Optimum for e > 0: m = log((1 - e) / e), 2.197 at e = .1; for e = 0 there is none, m grows for ever.
    Policy = reference gives ln 2 with a gradient that is not zero; identical answers give ln 2 with gradient zero.
    Some trainers take a label smoothing and ignore it for other losses; here no other kind has the key.
    Errors: ValueError for beta not positive (all kinds), label_smoothing outside 0 to 0.5.
    """
    _in_range(beta=beta, label_smoothing=label_smoothing)
    margin = beta * chosen - beta * rejected
    return -(1 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)


def robust_loss(chosen: Tensor, rejected: Tensor, *, beta: float, label_smoothing: float) -> Tensor:
    """Robust DPO: unbiased for the loss on clean labels when a share e < 1/2 of them is flipped at random.

    ((1 - e) L(m) - e L(-m)) / (1 - 2e), L(m) = -log sigmoid(m), m = beta (h_w - h_l).
    Source: Chowdhury et al. 2024 (arXiv 2403.00409), section 3. May be negative, and falls for ever as m grows:
    h = 50, beta = .1, e = .1 gives -.618. Its expectation over flips is L: that is the identity that is tested.
    """
    _in_range(beta=beta, label_smoothing=label_smoothing)
    if not label_smoothing < 0.5:
        raise ValueError(f"label_smoothing is {label_smoothing}, expected below 0.5: labels of coin flips say nothing")
    margin = beta * chosen - beta * rejected
    clean, flipped = -logsigmoid(margin), -logsigmoid(-margin)
    return ((1 - label_smoothing) * clean - label_smoothing * flipped) / (1 - 2 * label_smoothing)


def ipo_loss(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """IPO: a margin of its own size, not an unbounded one: (h_w - h_l - 1 / (2 beta))^2.

    Source: Azar et al. 2023 (arXiv 2310.12036), equation 17, with tau = beta. Optimum: h_w - h_l = 1 / (2 beta).
    h is per token: of sums, a long answer would reach the margin by its length alone. The paper writes log pi(y|x); its
    authors said that averages are meant, and TRL, which summed, changed to them (its pull request 1265, 2024).
    """
    _in_range(beta=beta)
    return (chosen - rejected - 1 / (2 * beta)).square()


def hinge_loss(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """SLiC's hinge on the implicit rewards: max(0, 1 - beta (h_w - h_l)). Gradient zero once the margin is 1.

    Source: Zhao et al. 2023 (arXiv 2305.10425), max(0, delta - p_w + p_l), with h for p as Liu et al. 2023 (arXiv
    2309.06657) have it, divided by delta = 1 / beta: the reference takes the place of SLiC's own regulariser.
    """
    _in_range(beta=beta)
    return (1 - beta * (chosen - rejected)).clamp(min=0)


def simpo_loss(chosen: Tensor, rejected: Tensor, *, beta: float, target_margin: float) -> Tensor:
    """SimPO: -log sigmoid(beta (p_w / |y_w| - p_l / |y_l|) - gamma), gamma = target_margin; no reference.

    Source: Meng et al. 2024 (arXiv 2405.14734), equation 6. `target_margin` is gamma itself, in rewards; the ratio
    gamma / beta that the paper also reports is not what stands here.
    """
    _in_range(beta=beta)
    return -logsigmoid(beta * (chosen - rejected) - target_margin)


def orpo_loss(chosen: Tensor, rejected: Tensor, *, weight: float) -> Tensor:
    """ORPO's odds-ratio term: -weight log sigmoid(log odds_w - log odds_l), odds = P / (1 - P), P = exp(p / |y|).

    Source: Hong et al. 2024 (arXiv 2403.07691), equations 4, 6 and 7; `weight` is lambda. The paper's L_SFT is the
    section's `sft_weight` (1 there), over the answer's tokens alone: TRL's trainer supervises the prompt too, so that
    a long prompt outweighs the answer.
    log(1 - P) = log(-expm1(p)) keeps its digits where P is near 1 or tiny; P = 1 itself counts as the number below it.
    """
    _in_range(weight=weight)
    return -weight * logsigmoid(_log_odds(chosen) - _log_odds(rejected))


def kto_loss(
    chosen: Tensor,
    rejected: Tensor,
    baseline: Tensor,
    *,
    beta: float,
    desirable_weight: float,
    undesirable_weight: float,
) -> Tensor:
    """KTO: each answer on its own against a baseline z; nothing pairs chosen[i] with rejected[i].

    Mean of w_d (1 - sigmoid(beta (h - z))) over the chosen and w_u (1 - sigmoid(beta (z - h))) over the rejected ones.
    Source: Ethayarajh et al. 2024 (arXiv 2402.01306), equation 8 (lambda_y - v). `baseline`: scalar, `kl_baseline`.
    Returned per pair, half the sum of its two sides, so that the mean over pairs is the mean over answers.
    TRL takes z from one micro-batch, so that accumulation changes its loss; here it is the whole batch's.
    """
    _in_range(beta=beta, desirable_weight=desirable_weight, undesirable_weight=undesirable_weight)
    z = baseline.detach()
    desirable = desirable_weight * (1 - torch.sigmoid(beta * (chosen - z)))
    undesirable = undesirable_weight * (1 - torch.sigmoid(beta * (z - rejected)))
    return (desirable + undesirable) / 2


def contrastive_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """The unconstrained baseline: p_l - p_w, raise log p(chosen) and lower log p(rejected); no reference.

    Unbounded below with a gradient that never fades: the cheapest way down is to make the rejected answer impossible,
    and the policy forgets its language on the way. It degenerates, and so shows what the KL term is for, from which
    DPO's weight on a pair, fading once the pair is told apart, follows (Rafailov et al. 2023, section 4).
    """
    return rejected - chosen


LOSSES: dict[str, Callable[..., Tensor]] = {
    "sigmoid": sigmoid_loss,
    "robust": robust_loss,
    "ipo": ipo_loss,
    "hinge": hinge_loss,
    "simpo": simpo_loss,
    "orpo": orpo_loss,
    "kto": kto_loss,
    "contrastive": contrastive_loss,
}
"""dpo.loss.kind -> the loss of each pair."""


def _log_odds(log_p: Tensor) -> Tensor:
    """log(P / (1 - P)) of log P."""
    below_one = log_p.clamp(max=-torch.finfo(log_p.dtype).eps)
    return below_one - torch.log(-torch.expm1(below_one))


def _in_range(*, label_smoothing: float = 0.0, **positive: float) -> None:
    for name, value in positive.items():
        if not value > 0:
            raise ValueError(f"{name} is {value}, expected a positive number")
    if not 0 <= label_smoothing <= 0.5:
        raise ValueError(f"label_smoothing is {label_smoothing}, expected 0 to 0.5")


def _same_rows(*sides: Tensor) -> None:
    """Refuses shapes that would broadcast."""
    shapes = [tuple(side.shape) for side in sides]
    if len(set(shapes)) != 1 or len(shapes[0]) != 1:
        raise ValueError(f"shapes {shapes}, expected the same [B] for all")


def _statistics(margin: Tensor, divisor: float) -> Statistics:
    margin = margin.detach()
    return {
        "accuracy": (margin > 0).sum() / divisor,
        "ties": (margin == 0).sum() / divisor,
        "margin": margin.sum() / divisor,
    }


def _pairs(*sides: Tensor, count: float | None) -> float:
    """The divisor: `count`, or the number of pairs. Refuses shapes that would broadcast."""
    shapes = [tuple(side.shape) for side in sides]
    if len(set(shapes)) != 1 or len(shapes[0]) != 1:
        raise ValueError(f"shapes {shapes}, expected the same [B] for all")
    divisor = shapes[0][0] if count is None else count
    if not divisor > 0:
        raise ValueError(f"a mean over {divisor} pairs")
    return divisor
