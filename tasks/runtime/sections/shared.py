"""What several stages read."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tasks.runtime.sections.section import Count, Fraction, NotNegative, Positive, Section, Whole


class Shared(Section):
    """What every stage reads."""

    seed: Whole
    """Seed of every random choice; each stage derives its own stream from it."""
    precision: Literal["bfloat16", "float32"]
    """Precision of the arithmetic. Weights, optimiser moments and checkpoints are float32 in either case."""
    format: Literal["plain", "chat", "auto"]
    """plain: the prompt as it stands, the answer continues it. chat: through the tokenizer's chat template. auto: chat
    where the tokenizer has a template, plain otherwise."""
    prompt_tokens: Count
    """Longest prompt in tokens; a longer one is an error."""
    answer_tokens: Count
    """Longest answer in tokens, its end-of-sequence token included."""
    temperature: Positive
    """Divides the logits wherever the policy is sampled or scored."""


class Optimiser(Section):
    """AdamW with linear warm-up and linear decay to 0."""

    learning_rate: Positive
    """Peak learning rate."""
    batch: Count
    """Sequences (sft), prompts (reward), pairs (dpo) or episodes (ppo) per optimiser step."""
    micro_batch: Count
    """Sequences per forward pass: bounds memory, changes no result."""
    epochs: Count
    """Passes over the data."""
    warmup: Fraction
    """Share of the steps over which the learning rate rises."""
    weight_decay: NotNegative
    """Decoupled weight decay of AdamW."""
    max_grad_norm: Positive
    """Gradients are scaled down to this global norm."""
    max_skipped: Count
    """Updates in a row that may be skipped because loss or gradient is not finite; at this many the stage stops."""


class _Trainable(Section):
    merge: ClassVar[bool] = True

    @property
    def settings(self) -> dict[str, Any]:
        """The keyword arguments of the kind's function (tasks/language/trainable.py)."""
        return self.model_dump(exclude={"kind", "merge"})


class Everything(_Trainable):
    """Every weight is trained."""

    kind: Literal["all"]


class LastLayers(_Trainable):
    """The last layers, the final norm and the head are trained, the rest stays."""

    kind: Literal["layers"]
    count: Count
    """How many layers."""


class LowRank(Section):
    """Low-rank adapters beside every linear map of the layers (LoRA, Hu et al. 2021), and the head of a reward model.

    The reference of ppo is then the same model without its adapters: one model less in memory.
    """

    kind: Literal["lora"]
    rank: Count
    """Of the two matrices whose product is added to a map's weights."""
    alpha: Positive
    """The product is scaled by alpha / rank."""
    merge: bool
    """true: the artefact holds the changed weights. false: the unchanged ones, and the adapters in `adapter/`."""

    @property
    def settings(self) -> dict[str, Any]:
        """The keyword arguments of the kind's function (tasks/language/trainable.py)."""
        return {"rank": self.rank, "alpha": self.alpha}


Trainable = Annotated[Everything | LastLayers | LowRank, Field(discriminator="kind")]
