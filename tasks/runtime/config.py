"""params.yaml, typed.

Every value stands in params.yaml and none has a default here: what DVC tracks is all there is to know about a run,
and this file can change without changing a result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError, model_validator

from tasks.errors import UserError
from tasks.runtime.sections.advantage import GAE as GAE
from tasks.runtime.sections.advantage import GRPO as GRPO
from tasks.runtime.sections.advantage import RLOO as RLOO
from tasks.runtime.sections.advantage import Accept as Accept
from tasks.runtime.sections.advantage import Critic as Critic
from tasks.runtime.sections.advantage import HeadCritic as HeadCritic
from tasks.runtime.sections.advantage import LossPenalty as LossPenalty
from tasks.runtime.sections.advantage import MissingEOS as MissingEOS
from tasks.runtime.sections.advantage import Penalty as Penalty
from tasks.runtime.sections.advantage import Reinforce as Reinforce
from tasks.runtime.sections.advantage import Replace as Replace
from tasks.runtime.sections.advantage import RewardCritic as RewardCritic
from tasks.runtime.sections.advantage import RewardPenalty as RewardPenalty
from tasks.runtime.sections.advantage import SFTCritic as SFTCritic
from tasks.runtime.sections.advantage import Subtract as Subtract
from tasks.runtime.sections.corpus import Base as Base
from tasks.runtime.sections.corpus import CallableJudge as CallableJudge
from tasks.runtime.sections.corpus import ClassifierJudge as ClassifierJudge
from tasks.runtime.sections.corpus import Corpus as Corpus
from tasks.runtime.sections.corpus import EmbeddedSource as EmbeddedSource
from tasks.runtime.sections.corpus import EndpointJudge as EndpointJudge
from tasks.runtime.sections.corpus import FileSource as FileSource
from tasks.runtime.sections.corpus import FittedJudge as FittedJudge
from tasks.runtime.sections.corpus import HumanJudge as HumanJudge
from tasks.runtime.sections.corpus import Table as Table
from tasks.runtime.sections.dpo import DPO as DPO
from tasks.runtime.sections.dpo import ContrastiveLoss as ContrastiveLoss
from tasks.runtime.sections.dpo import DirectLoss as DirectLoss
from tasks.runtime.sections.dpo import HingeLoss as HingeLoss
from tasks.runtime.sections.dpo import IPOLoss as IPOLoss
from tasks.runtime.sections.dpo import KTOLoss as KTOLoss
from tasks.runtime.sections.dpo import ORPOLoss as ORPOLoss
from tasks.runtime.sections.dpo import RobustLoss as RobustLoss
from tasks.runtime.sections.dpo import SigmoidLoss as SigmoidLoss
from tasks.runtime.sections.dpo import SimPOLoss as SimPOLoss
from tasks.runtime.sections.evaluation import Baseline as Baseline
from tasks.runtime.sections.evaluation import Comparison as Comparison
from tasks.runtime.sections.evaluation import Evaluation as Evaluation
from tasks.runtime.sections.evaluation import Hacking as Hacking
from tasks.runtime.sections.ppo import PPO as PPO
from tasks.runtime.sections.ppo import AdaptiveKL as AdaptiveKL
from tasks.runtime.sections.ppo import FixedKL as FixedKL
from tasks.runtime.sections.ppo import PretrainingMix as PretrainingMix
from tasks.runtime.sections.preferences import AdjacentRanks as AdjacentRanks
from tasks.runtime.sections.preferences import BestRandom as BestRandom
from tasks.runtime.sections.preferences import BestWorst as BestWorst
from tasks.runtime.sections.preferences import EveryPair as EveryPair
from tasks.runtime.sections.preferences import JudgeLabels as JudgeLabels
from tasks.runtime.sections.preferences import Origin as Origin
from tasks.runtime.sections.preferences import Panel as Panel
from tasks.runtime.sections.preferences import Preferences as Preferences
from tasks.runtime.sections.preferences import Samples as Samples
from tasks.runtime.sections.preferences import TopBottom as TopBottom
from tasks.runtime.sections.reward import GradedMargin as GradedMargin
from tasks.runtime.sections.reward import ListwiseLoss as ListwiseLoss
from tasks.runtime.sections.reward import NoMargin as NoMargin
from tasks.runtime.sections.reward import PairwiseLoss as PairwiseLoss
from tasks.runtime.sections.reward import Reward as Reward
from tasks.runtime.sections.reward import ScaledMargin as ScaledMargin
from tasks.runtime.sections.section import Section as Section
from tasks.runtime.sections.sft import SFT as SFT
from tasks.runtime.sections.shared import Everything as Everything
from tasks.runtime.sections.shared import LastLayers as LastLayers
from tasks.runtime.sections.shared import LowRank as LowRank
from tasks.runtime.sections.shared import Optimiser as Optimiser
from tasks.runtime.sections.shared import Shared as Shared


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
    baseline: Baseline
    evaluation: Evaluation
    comparison: Comparison

    @model_validator(mode="after")
    def _consistent(self) -> Params:
        faults = []
        if self.baseline.prompts > self.corpus.held_out:
            faults.append(
                f"baseline.prompts ({self.baseline.prompts}) exceeds corpus.held_out ({self.corpus.held_out})"
            )
        if self.comparison.best_of and self.comparison.best_of[-1] > (self.baseline.candidates or 0):
            faults.append(
                f"comparison.best_of ({self.comparison.best_of[-1]}) exceeds baseline.candidates"
                f" ({self.baseline.candidates})"
            )
        source = self.corpus.source
        if source.kind == "embedded":
            rollout = self.ppo.episodes // self.ppo.advantage.group
            if max(rollout, self.samples.prompts) > source.prompts:
                faults.append(
                    f"corpus.source.prompts ({source.prompts}) is below the prompts of a ppo rollout ({rollout}) or"
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

    @model_validator(mode="after")
    def _two_sides_of_the_answers(self) -> Params:
        pairs, answers = self.preferences.pairs, self.samples.answers
        if pairs.kind == "top_bottom" and 2 * pairs.k > answers:
            raise ValueError(
                f"preferences.pairs.k ({pairs.k}) exceeds half of samples.answers ({answers}): an answer would be on"
                " both sides"
            )
        return self

    @model_validator(mode="after")
    def _pairs_for_a_panel(self) -> Params:
        if self.preferences.annotators.kind == "panel" and self.reward.loss.kind == "listwise":
            raise ValueError(
                "preferences.annotators is a panel, which labels pairs, but reward.loss is listwise, which learns from"
                " the judge's own ranking: expected pairwise"
            )
        return self

    @model_validator(mode="after")
    def _ratings_for_a_panel(self) -> Params:
        source, judge = self.corpus.source, self.corpus.judge
        rated = source.kind == "embedded" and judge.kind == "fitted" and judge.rated is None
        if self.preferences.annotators.kind == "panel" and not rated:
            raise ValueError(
                "preferences.annotators is a panel, which scatters around the judge's rating as the raters of the"
                " embedded snippets do: it needs corpus.source.kind embedded, corpus.judge.kind fitted, rated null"
            )
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


_REFUSED = {
    "top_p": "only samples has it: elsewhere answers are scored, and a token outside the nucleus of one policy, but not"
    " of the other, would make their ratio and their KL infinite"
}
"""Keys that one could expect, with the reason why a section has them not."""


def _shown(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        reason = _REFUSED.get(error["loc"][-1])
        return f"unknown key: {reason}" if reason else "unknown key"
    if error["type"] == "missing":
        return "missing"
    value = f" (is {error['input']!r})" if not isinstance(error["input"], dict) else ""
    return str(error["msg"]).removeprefix("Value error, ") + value
