"""Binds a stage's declared artefacts (dvc.yaml) to the arguments of its `run`.

The signature is the contract: `run(shared, cfg, *, sft, preferences, out)` reads `runs/sft` and `runs/preferences`,
writes `runs/<word>`, and dvc.yaml says so too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from tasks.errors import UserError

_ITEM = re.compile(r"\$\{item\.(\w+)\}")


@dataclass(frozen=True)
class Binding:
    """One stage of dvc.yaml, resolved: `evaluation@dpo` has word `evaluation` and variant `dpo`."""

    address: str
    word: str
    variant: str | None
    inputs: dict[str, Path]
    """Argument name -> artefact path; a path that is a matrix item (`runs/${item.policy}`) is named after its key."""
    out: Path

    @property
    def metrics(self) -> Path:
        """JSON with the stage's final figures."""
        return self._record(".json")

    @property
    def history(self) -> Path:
        """CSV with one row per logged step."""
        return self._record(".csv")

    def _record(self, suffix: str) -> Path:
        return Path("metrics", *self.address.split("@")).with_suffix(suffix)


def bind(address: str, dvc: Path = Path("dvc.yaml")) -> Binding:
    """Resolve `word` or `word@variant`. Raises UserError for a stage that dvc.yaml does not declare."""
    word, _, variant = address.partition("@")
    stages = yaml.safe_load(dvc.read_text(encoding="utf-8"))["stages"]
    spec = stages.get(word)
    matrix = spec.get("matrix", {}) if spec else {}
    options = next(iter(matrix.values()), [None])
    if spec is None or (variant or None) not in options:
        raise UserError(f"unknown stage {address!r}: expected one of {', '.join(addresses(dvc))}")
    item = dict.fromkeys(matrix, variant)
    inputs = {}
    for dep in spec["deps"]:
        if dep.startswith("runs/"):
            key = _ITEM.search(dep)
            inputs[key[1] if key else Path(dep).name] = Path(_ITEM.sub(lambda m: str(item[m[1]]), dep))
    out = _ITEM.sub(lambda m: str(item[m[1]]), next(o for o in spec["outs"] if isinstance(o, str)))
    return Binding(address, word, variant or None, inputs, Path(out))


def addresses(dvc: Path = Path("dvc.yaml")) -> list[str]:
    """Every stage of dvc.yaml by its address, in file order, the matrix expanded."""
    found = []
    for word, spec in yaml.safe_load(dvc.read_text(encoding="utf-8"))["stages"].items():
        items: list[str] = next(iter(spec.get("matrix", {}).values()), [])
        found += [f"{word}@{item}" for item in items] or [word]
    return found


def maker(path: Path, dvc: Path = Path("dvc.yaml")) -> str:
    """Address of the stage that makes this artefact, or the first of those that make the parts of this folder."""
    return next((a for a in addresses(dvc) if bind(a, dvc).out.is_relative_to(path)), path.name)


def uses_gpu(word: str, dvc: Path = Path("dvc.yaml")) -> bool:
    """Whether dvc.yaml tags the stage `gpu`: it computes with the model, so two of them share no device."""
    spec = yaml.safe_load(dvc.read_text(encoding="utf-8"))["stages"][word]
    return "gpu" in spec.get("meta", {}).get("prefect", {}).get("tags", [])
