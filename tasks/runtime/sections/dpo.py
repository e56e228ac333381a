"""Direct preference optimisation and its losses."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from tasks.runtime.sections.preferences import Origin
from tasks.runtime.sections.section import NotNegative, Positive, Section
from tasks.runtime.sections.shared import Optimiser, Trainable


class DirectLoss(Section):
    """What a loss compares, besides its hyperparameters; the functions are in tasks/algorithms/preference.py."""

    against_reference: ClassVar[bool] = True
    """Whether the SFT policy's log-probability is taken off."""
    averaged: ClassVar[bool] = False
    """Whether answers are always compared per token; a loss that leaves it open has the key length_normalised."""
    mismatched: ClassVar[bool] = False
    """Whether it needs a KL baseline from answers to other prompts."""

    @property
    def per_token(self) -> bool:
        return bool(getattr(self, "length_normalised", self.averaged))

    @property
    def scale(self) -> float:
        """From what is compared to an implicit reward."""
        return float(getattr(self, "beta", 1.0))

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The keyword arguments of the loss's function."""
        return self.model_dump(exclude={"kind", "length_normalised"})


class SigmoidLoss(DirectLoss):
    """DPO (Rafailov et al. 2023); with label smoothing cDPO."""

    kind: Literal["sigmoid"]
    beta: Positive
    """Strength of the pull towards SFT."""
    label_smoothing: Annotated[float, Field(ge=0, le=0.5)]
    """Share of the labels taken to be wrong; 0: none. The margin settles where its odds are (1 - share) / share."""
    length_normalised: bool
    """Compare per token instead of per answer; beta then wants to be about an answer's length times as large."""


class RobustLoss(DirectLoss):
    """Robust DPO (Chowdhury et al. 2024): unbiased when a known share of the labels is flipped."""

    kind: Literal["robust"]
    beta: Positive
    """Strength of the pull towards SFT."""
    label_smoothing: Annotated[float, Field(gt=0, lt=0.5)]
    """Share of flipped labels; without any, the loss is sigmoid."""
    length_normalised: bool
    """Compare per token instead of per answer."""


class IPOLoss(DirectLoss):
    """IPO (Azar et al. 2023), per token: the margin is drawn to 1 / (2 beta) instead of growing for ever."""

    averaged: ClassVar[bool] = True
    kind: Literal["ipo"]
    beta: Positive
    """The margin per token aimed at is 1 / (2 beta) nats."""


class HingeLoss(DirectLoss):
    """SLiC's hinge (Zhao et al. 2023) on the implicit rewards: nothing is learned of a pair once its margin is 1."""

    kind: Literal["hinge"]
    beta: Positive
    """Strength of the pull towards SFT."""
    length_normalised: bool
    """Compare per token instead of per answer."""


class SimPOLoss(DirectLoss):
    """SimPO (Meng et al. 2024): per token, without a reference."""

    against_reference: ClassVar[bool] = False
    averaged: ClassVar[bool] = True
    kind: Literal["simpo"]
    beta: Positive
    """Scale of the reward, beta times the mean log-probability of an answer's tokens."""
    target_margin: NotNegative
    """gamma: the reward difference aimed at."""


class ORPOLoss(DirectLoss):
    """ORPO (Hong et al. 2024): odds ratio per token, without a reference, beside an SFT term (dpo.sft_weight)."""

    against_reference: ClassVar[bool] = False
    averaged: ClassVar[bool] = True
    kind: Literal["orpo"]
    weight: Positive
    """lambda: weight of the odds-ratio term."""


class KTOLoss(DirectLoss):
    """KTO (Ethayarajh et al. 2024): chosen answers are desirable, rejected ones undesirable, each on its own."""

    mismatched: ClassVar[bool] = True
    kind: Literal["kto"]
    beta: Positive
    """Strength of the pull towards SFT."""
    desirable_weight: Positive
    """Weight of the chosen answers."""
    undesirable_weight: Positive
    """Weight of the rejected answers."""


class ContrastiveLoss(DirectLoss):
    """The unconstrained baseline, which degenerates: raise log p(chosen), lower log p(rejected), nothing else."""

    against_reference: ClassVar[bool] = False
    kind: Literal["contrastive"]


class DPO(Section):
    """Direct preference optimisation against the SFT policy."""

    loss: Annotated[
        SigmoidLoss | RobustLoss | IPOLoss | HingeLoss | SimPOLoss | ORPOLoss | KTOLoss | ContrastiveLoss,
        Field(discriminator="kind"),
    ]
    """What is minimised over the pairs, with its own hyperparameters."""
    sft_weight: NotNegative
    """Weight of an SFT term on the chosen answers (mean over their tokens), added to the loss. 0: none; ORPO: 1."""
    origins: Annotated[list[Origin], Field(min_length=1)]
    """Which pairs it learns from."""
    trainable: Trainable
    """Which weights learn."""
    optimiser: Optimiser
    """AdamW and its schedule."""
    drift_warning: Positive
    """Warn when the chosen answers' log-probability (mean over a batch) is this many nats below SFT's."""
    kl_prompts: Annotated[int, Field(ge=2)]
    """At the end, the KL to SFT is estimated on one sampled answer to each of this many prompts."""

    @model_validator(mode="after")
    def _consistent(self) -> DPO:
        if self.loss.kind == "orpo" and self.sft_weight == 0:
            raise ValueError(
                "loss.kind orpo with sft_weight 0 only compares odds, which both may fall: ORPO's likelihood term is"
                " sft_weight, 1 in its paper"
            )
        if self.loss.kind == "contrastive" and self.sft_weight > 0:
            raise ValueError(
                f"loss.kind contrastive is the unconstrained baseline, and sft_weight ({self.sft_weight:g}) would"
                " constrain it; expected 0"
            )
        return self
