"""params.yaml, typed.

Every value stands in params.yaml and none has a default here: what DVC tracks is all there is to know about a run,
and this file can change without changing a result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import model_validator

from tasks.errors import UserError
from tasks.runtime import document
from tasks.runtime.faults import faults
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
    def _prompts_to_evaluate_on(self) -> Params:
        if self.baseline.prompts > self.corpus.held_out:
            raise ValueError(
                f"baseline.prompts ({self.baseline.prompts}) exceeds corpus.held_out ({self.corpus.held_out})"
            )
        return self

    @model_validator(mode="after")
    def _candidates_for_best_of(self) -> Params:
        if self.comparison.best_of and self.comparison.best_of[-1] > (self.baseline.candidates or 0):
            raise ValueError(
                f"comparison.best_of ({self.comparison.best_of[-1]}) exceeds baseline.candidates"
                f" ({self.baseline.candidates})"
            )
        return self

    @model_validator(mode="after")
    def _prompts_for_samples(self) -> Params:
        source, wanted = self.corpus.source, self.samples.prompts
        if source.kind == "embedded" and wanted > source.prompts:
            raise ValueError(f"samples.prompts ({wanted}) exceeds corpus.source.prompts ({source.prompts})")
        return self

    @model_validator(mode="after")
    def _prompts_for_ppo(self) -> Params:
        source, wanted = self.corpus.source, self.ppo.episodes // self.ppo.advantage.group
        if source.kind == "embedded" and wanted > source.prompts:
            raise ValueError(f"a ppo rollout has {wanted} prompts, corpus.source.prompts only {source.prompts}")
        return self

    @model_validator(mode="after")
    def _demonstrations_for_sft(self) -> Params:
        source, wanted = self.corpus.source, self.sft.demonstrations
        if source.kind == "embedded" and wanted > source.demonstrations:
            raise ValueError(
                f"sft.demonstrations ({wanted}) exceeds corpus.source.demonstrations ({source.demonstrations})"
            )
        return self

    @model_validator(mode="after")
    def _a_batch_for_sft(self) -> Params:
        if self.sft.optimiser.batch > self.sft.demonstrations:
            raise ValueError(
                f"sft.optimiser.batch ({self.sft.optimiser.batch}) exceeds sft.demonstrations"
                f" ({self.sft.demonstrations}): they do not fill one batch"
            )
        return self

    @model_validator(mode="after")
    def _a_batch_of_pairs_for_dpo(self) -> Params:
        batch, prompts, answers = self.dpo.optimiser.batch, self.samples.prompts, self.samples.answers
        # K answers make at most K (K-1) / 2 pairs, so this bound needs no data.
        most = prompts * answers * (answers - 1) // 2
        if set(self.dpo.origins) == {"sampled"} and batch > most:
            raise ValueError(
                f"dpo.optimiser.batch ({batch}) exceeds the {most} pairs that samples.prompts ({prompts}) with"
                f" samples.answers ({answers}) can give: they do not fill one batch"
            )
        return self

    @model_validator(mode="after")
    def _a_batch_of_prompts_for_reward(self) -> Params:
        batch, prompts = self.reward.optimiser.batch, self.samples.prompts
        if set(self.reward.origins) == {"sampled"} and batch > prompts:
            raise ValueError(
                f"reward.optimiser.batch ({batch}) exceeds samples.prompts ({prompts}): they do not fill one batch"
            )
        return self

    @model_validator(mode="after")
    def _pairs_that_exist_for_dpo(self) -> Params:
        _exist(self.corpus.source, "dpo", self.dpo.origins)
        return self

    @model_validator(mode="after")
    def _pairs_that_exist_for_reward(self) -> Params:
        _exist(self.corpus.source, "reward", self.reward.origins)
        return self

    @model_validator(mode="after")
    def _prompts_in_dpo(self) -> Params:
        if "ratings" in self.dpo.origins:
            raise ValueError(
                "dpo.origins holds ratings: those pairs have no prompt, so their answers have no probability"
            )
        return self

    @model_validator(mode="after")
    def _data_in_the_project(self) -> Params:
        data = self.corpus.data
        if data.is_absolute() or ".." in data.parts or not data.parts:
            raise ValueError(f"corpus.data is {str(data)!r}, expected a folder below the repository root")
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
    params = check(document.read(path), str(path))
    data, root = path.parent / params.corpus.data, path.parent.resolve()
    if not data.resolve().is_relative_to(root):
        raise UserError(
            f"corpus.data: {params.corpus.data} is a link to {data.resolve()}, expected a folder in {root}"
            " (mount or copy it there): what lies outside is not versioned"
        )
    return params


_REFUSED = {
    "top_p": "only samples has it: elsewhere answers are scored, and a token outside the nucleus of one policy, but not"
    " of the other, would make their ratio and their KL infinite"
}
"""Keys that one could expect, with the reason why a section has them not."""


def check(raw: Any, where: str) -> Params:
    """`raw` as Params. Raises UserError that begins with `where` and lists every fault: path, value, expectation."""
    if found := faults(Params, raw, refused=_REFUSED):
        raise UserError(f"{where} has {len(found)} fault(s):\n" + "\n".join(f"  {fault}" for fault in found))
    return Params.model_validate(raw)


def _exist(source: EmbeddedSource | FileSource, word: str, origins: list[Origin]) -> None:
    """Raise ValueError for an origin of which the source has no pairs, and for one that stands twice."""
    if len(set(origins)) < len(origins):
        raise ValueError(f"{word}.origins is {', '.join(origins)}, expected each once")
    if "ratings" in origins and source.kind == "files":
        raise ValueError(f"{word}.origins holds ratings, but corpus.source is files, which brings none: take it out")
    if "ratings" in origins and source.kind == "embedded" and source.pairs == 0:
        raise ValueError(f"{word}.origins holds ratings, but corpus.source.pairs is 0: take it out, or raise pairs")
    if "file" in origins and (source.kind == "embedded" or source.preferences is None):
        raise ValueError(f"{word}.origins holds file, but corpus.source has no preferences table: take it out")
