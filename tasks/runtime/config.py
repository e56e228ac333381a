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
from tasks.runtime.sections.evaluation import Baseline as Baseline
from tasks.runtime.sections.evaluation import Comparison as Comparison
from tasks.runtime.sections.evaluation import Evaluation as Evaluation
from tasks.runtime.sections.evaluation import Hacking as Hacking
from tasks.runtime.sections.ppo import PPO as PPO
from tasks.runtime.sections.ppo import AdaptiveKL as AdaptiveKL
from tasks.runtime.sections.ppo import FixedKL as FixedKL
from tasks.runtime.sections.preferences import Origin as Origin
from tasks.runtime.sections.preferences import Preferences as Preferences
from tasks.runtime.sections.preferences import Samples as Samples
from tasks.runtime.sections.reward import Reward as Reward
from tasks.runtime.sections.section import Section as Section
from tasks.runtime.sections.sft import SFT as SFT
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
