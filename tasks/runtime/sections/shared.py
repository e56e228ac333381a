"""What several stages read."""

from __future__ import annotations

from typing import Literal

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
