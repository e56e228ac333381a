"""params.yaml, typed.

Every value stands in params.yaml and none has a default here: what DVC tracks is all there is to know about a run,
and this file can change without changing a result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tasks.errors import UserError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
OpenFraction = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Origin = Literal["sampled", "ratings", "file"]


class Section(BaseModel):
    """A part of params.yaml: closed, frozen, strict about types."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Shared(Section):
    """What every stage reads."""

    seed: Whole
    """Seed of every random choice; each stage derives its own stream from it."""
    precision: Literal["bfloat16", "float32"]
    """Precision of the arithmetic. Weights, optimiser moments and checkpoints are float32 in either case."""
    format: Literal["plain", "chat"]
    """plain: the prompt as it stands, the answer continues it. chat: through the tokenizer's chat template."""
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
    """Sequences (sft), pairs (reward, dpo) or episodes (ppo) per optimiser step."""
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


class Base(Section):
    """The model that everything starts from."""

    model: str
    """embedded (SmolLM2-135M-Instruct from the package index), tiny (random weights), a hub id, or a folder."""
    revision: str | None
    """Commit, tag or branch of a hub id."""
    track: Path
    """A file or folder whose change reruns this stage; for a model folder, the folder itself."""


class Corpus(Section):
    """Demonstrations, prompts, held-out prompts, off-policy pairs and the judge."""

    data: Path
    """Folder whose change reruns this stage: the user's files, or the pins of the embedded downloads."""
    source: Annotated[EmbeddedSource | FileSource, Field(discriminator="kind")]
    """Where the rows come from."""
    judge: Annotated[FittedJudge | ClassifierJudge | CallableJudge, Field(discriminator="kind")]
    """Who gives the gold reward."""
    held_out: Count
    """Prompts kept for the evaluation; no training stage sees them."""
    overlap: Annotated[int, Field(ge=2)]
    """A training text that shares this many consecutive words with a held-out text is dropped."""


class EmbeddedSource(Section):
    """Movie snippets with individual human ratings (vaderSentiment 3.3.2 source distribution)."""

    kind: Literal["embedded"]
    prompt_words: Count
    """Opening words of a snippet that make the prompt; the rest is the demonstrated answer."""
    judge_share: OpenFraction
    """Share of the snippets that only the judge sees."""
    demonstrations: Count
    """At most this many demonstrations."""
    prompts: Count
    """Training prompts, for samples and ppo."""
    pairs: Whole
    """Off-policy pairs made from the human ratings."""
    pair_gap: Positive
    """Smallest difference of the two mean ratings (scale -4 to 4) in an off-policy pair."""


class Table(Section):
    """Rows of a JSONL or parquet file (or a glob of them), or of a hub data set, with their column names."""

    path: str
    """A path below `corpus.data`, or a hub data set id when `hub` is true."""
    hub: bool
    """Whether `path` names a hub data set."""
    split: str | None
    """Split of a hub data set."""
    columns: dict[Literal["prompt", "answer", "messages", "chosen", "rejected", "text", "rating"], str]
    """Our name -> the column's name in the file."""


class FileSource(Section):
    """The user's own rows."""

    kind: Literal["files"]
    demonstrations: Table
    """prompt and answer, or messages (the last assistant turn is the answer)."""
    prompts: Table | None
    """prompt, or messages; null: the demonstrations' prompts."""
    held_out: Table | None
    """prompt, or messages; null: split off the prompts by a hash of their text."""
    preferences: Table | None
    """prompt, chosen and rejected: off-policy pairs."""


class FittedJudge(Section):
    """TF-IDF and ridge regression on rated texts."""

    kind: Literal["fitted"]
    rated: Table | None
    """text and rating; null with the embedded source, which brings its own."""
    ridge: Positive
    """Strength of the L2 penalty."""


class ClassifierJudge(Section):
    """A Hugging Face sequence classifier: log-odds of `label` (or the only output)."""

    kind: Literal["classifier"]
    model: str
    """A folder below `corpus.data`, or a hub id (`id@revision`)."""
    label: str | None
    """The label that means "good"; null for a model with one output."""


class CallableJudge(Section):
    """A function of the user's: (prompts, answers) -> one score each, higher is better."""

    kind: Literal["callable"]
    function: Annotated[str, Field(pattern=r"^[\w./-]+:\w+$")]
    """path/to/file.py:name (below `corpus.data`), or package.module:name."""


class SFT(Section):
    """Supervised fine-tuning on the demonstrations' answers."""

    demonstrations: Count
    """At most this many demonstrations."""
    optimiser: Optimiser
    """AdamW and its schedule."""


class Samples(Section):
    """K answers per training prompt, from the SFT policy."""

    prompts: Count
    """At most this many training prompts."""
    answers: Annotated[int, Field(ge=2, le=16)]
    """K."""
    batch: Count
    """Sequences generated together."""


class Preferences(Section):
    """Judged answers, paired best against worst; the off-policy pairs join them."""

    margin: NotNegative
    """Smallest difference of the judge's scores in a pair."""
    held_out: OpenFraction
    """Share of the prompts whose pairs are kept for measuring the reward model."""


class Reward(Section):
    """Bradley-Terry reward model on the SFT trunk."""

    origins: Annotated[list[Origin], Field(min_length=1)]
    """Which pairs it learns from."""
    trainable_layers: Count | None
    """Train the last N layers and the head; null trains everything."""
    optimiser: Optimiser
    """AdamW and its schedule."""


class DPO(Section):
    """Direct preference optimisation against the SFT policy."""

    beta: Positive
    """Strength of the pull towards the reference policy."""
    origins: Annotated[list[Origin], Field(min_length=1)]
    """Which pairs it learns from."""
    optimiser: Optimiser
    """AdamW and its schedule."""


class FixedKL(Section):
    """The same penalty from first to last (Ouyang et al. 2022)."""

    kind: Literal["fixed"]
    coefficient: NotNegative
    """Weight of the KL penalty in the reward."""


class AdaptiveKL(Section):
    """Ziegler et al. 2019: the coefficient follows the measured KL (sum per answer)."""

    kind: Literal["adaptive"]
    coefficient: Positive
    """Initial value."""
    target: Positive
    """KL per answer, in nats."""
    horizon: Positive
    """Episodes."""


class PPO(Section):
    """Proximal policy optimisation on the reward model, critic from the reward model."""

    updates: Count
    """Rollouts."""
    episodes: Count
    """Answers per rollout."""
    optimiser: Optimiser
    """epochs are passes over one rollout, batch is the minibatch."""
    critic_learning_rate: Positive
    """Peak learning rate of the critic."""
    critic_layers: Count | None
    """Train the critic's last N layers and head; null trains everything."""
    critic_warmup: Whole
    """Rollouts on which only the critic learns."""
    discount: Fraction
    """gamma."""
    trace: Fraction
    """lambda of GAE."""
    clip: OpenFraction
    """Policy ratio stays in [1-clip, 1+clip]."""
    value_clip: Positive
    """A value stays within this distance of the rollout's, in units of the normalised score."""
    value_coefficient: Positive
    """Weight of the value loss."""
    kl: Annotated[FixedKL | AdaptiveKL, Field(discriminator="kind")]
    """The pull towards SFT: fixed or adaptive."""
    score_clip: Positive
    """The normalised reward-model score is clipped to [-score_clip, score_clip]."""
    missing_eos: float
    """Score of an answer that has no end-of-sequence token, in place of the reward model's."""

    @model_validator(mode="after")
    def _consistent(self) -> PPO:
        if self.episodes % self.optimiser.batch:
            raise ValueError(
                f"episodes ({self.episodes}) must be a multiple of optimiser.batch ({self.optimiser.batch})"
            )
        if self.critic_warmup >= self.updates:
            raise ValueError(
                f"critic_warmup ({self.critic_warmup}) leaves no update to the policy (updates: {self.updates})"
            )
        if self.kl.kind == "adaptive" and self.episodes / self.kl.horizon >= 5:
            raise ValueError(
                f"episodes / kl.horizon is {self.episodes / self.kl.horizon:g}, expected below 5: the coefficient would"
                " turn negative"
            )
        return self


class Evaluation(Section):
    """A policy against SFT on the held-out prompts."""

    prompts: Count
    """At most this many held-out prompts."""
    batch: Count
    """Sequences generated together."""
    confidence: OpenFraction
    """Of every interval, for example 0.95."""
    bootstrap: Count
    """Resamples of the paired bootstrap over prompts."""


class Comparison(Section):
    """All evaluated policies side by side, with the reward model's score."""

    examples: Count
    """Prompts shown with every policy's answer."""


class Params(Section):
    shared: Shared
    base: Base
    corpus: Corpus
    sft: SFT
    samples: Samples
    preferences: Preferences
    reward: Reward
    dpo: DPO
    ppo: PPO
    evaluation: Evaluation
    comparison: Comparison

    @model_validator(mode="after")
    def _consistent(self) -> Params:
        faults = []
        if self.evaluation.prompts > self.corpus.held_out:
            faults.append(
                f"evaluation.prompts ({self.evaluation.prompts}) exceeds corpus.held_out ({self.corpus.held_out})"
            )
        source = self.corpus.source
        if source.kind == "embedded":
            wanted = max(self.ppo.episodes, self.samples.prompts)
            if wanted > source.prompts:
                faults.append(
                    f"corpus.source.prompts ({source.prompts}) is below ppo.episodes ({self.ppo.episodes}) or"
                    f" samples.prompts ({self.samples.prompts})"
                )
            if self.sft.demonstrations > source.demonstrations:
                faults.append(
                    f"sft.demonstrations ({self.sft.demonstrations}) exceeds corpus.source.demonstrations"
                    f" ({source.demonstrations})"
                )
        if "ratings" in self.dpo.origins:
            faults.append("dpo.origins holds ratings: those pairs have no prompt, so their answers have no probability")
        if faults:
            raise ValueError("; ".join(faults))
        return self


def load(path: Path = Path("params.yaml")) -> Params:
    """Read and check params.yaml. Raises UserError that lists every fault: path, value, expectation."""
    try:
        raw: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} not found: run this from the repository root") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {error}") from None
    try:
        return Params.model_validate(raw)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc'])) or '(top)'}: {_shown(e)}" for e in error.errors()]
        raise UserError(f"{path} has {len(lines)} fault(s):\n" + "\n".join(lines)) from None


def _shown(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown key"
    if error["type"] == "missing":
        return "missing"
    value = f" (is {error['input']!r})" if not isinstance(error["input"], dict) else ""
    return str(error["msg"]).removeprefix("Value error, ") + value
