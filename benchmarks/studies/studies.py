"""The studies: each a list of settings and what is done for one of them in one world."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.studies.measures import Eyes, Steps, scratch, train_dpo, train_ppo
from benchmarks.studies.world import REWARD_PAIRS, World, changed, inside
from tasks import preferences, reward
from tasks.algorithms.best_of_n import best_of_n_weights
from tasks.algorithms.intervals import pearson
from tasks.algorithms.kl import best_of_n_kl
from tasks.algorithms.ordering import ordered
from tasks.language import models
from tasks.language.batches import Completion
from tasks.runtime import work

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Study:
    settings: dict[str, Callable[[World], Figures]]
    quick: tuple[str, ...]
    """The settings of `QUICK=1`."""


def sft(world: World) -> Figures:
    """SFT itself: what gains are counted from."""
    return Eyes(world).look(world.folder / "sft")


def direct(beta: float, world: World) -> Figures:
    with scratch(world) as out:
        train_dpo(world, changed(world.params.dpo, {"loss": {"beta": beta}}), out / "dpo")
        return Eyes(world).look(out / "dpo")


def reinforced(changes: Mapping[str, Any], world: World) -> Figures:
    """PPO with `changes`: the final policy, and the coefficient it ended with."""
    with scratch(world) as out:
        listener, _, _ = train_ppo(world, changed(world.params.ppo, changes), out / "ppo")
        return {**Eyes(world).look(out / "ppo"), "coefficient": listener.rows[-1]["kl/coefficient"]}


def best_of(world: World) -> Figures:
    """Best of n of SFT's answers by the reward model, unbiased over all subsets of N answers; KL is analytic."""
    prompts, drawn = (8, 64) if world.quick else (16, 256)
    eyes = Eyes(world)
    tables = _judged(eyes, prompts, drawn)
    sizes = [2**k for k in range(drawn.bit_length())]
    weighted = [
        [[float(np.dot(best_of_n_weights(proxy, n=n), values)) for values in (proxy, gold)] for n in sizes]
        for proxy, gold in tables
    ]
    means = np.mean(weighted, axis=0)
    return {
        "n": sizes,
        "kl": [best_of_n_kl(n) if n > 1 else 0.0 for n in sizes],
        "proxy": means[:, 0].tolist(),
        "gold": means[:, 1].tolist(),
    }


def long_run(world: World) -> Figures:
    """A long PPO run that is hardly held: KL, proxy and gold reward of every rollout."""
    updates = 12 if world.quick else LONG
    changes = {"updates": updates, "kl": {"kind": "fixed", "coefficient": 0.002}}
    eyes = Eyes(world)
    with scratch(world) as out:
        listener, rollouts, _ = train_ppo(world, changed(world.params.ppo, changes), out / "ppo")
    gold = [float(np.mean(eyes.gold([c.answer for c in rollout.completions]))) for rollout in rollouts]
    return {
        "kl": [row["kl/sum"] for row in listener.rows],
        "proxy": [row["reward/score"] for row in listener.rows],
        "gold": gold,
        "answers": [eyes.tokenizer.decode(c.answer) for c in rollouts[-1].completions[:3]],
    }


def dropout(rate: float, training_mode: bool, world: World) -> Figures:
    """Largest distance of a first minibatch's ratio from 1 (log), with attention dropout in the model's config."""
    with scratch(world) as out:
        model = models.load_policy(world.folder / "sft")
        model.config.attention_dropout = rate
        models.save(model, Eyes(world).tokenizer, out / "sft")
        load = models.load_policy
        torch.manual_seed(world.params.shared.seed)
        if training_mode:
            # What the product never does: its loader ends with eval().
            models.load_policy = lambda *arguments: load(*arguments).train()
        try:
            section = changed(world.params.ppo, {"updates": 3, "episodes": 32})
            listener, _, _ = train_ppo(world, section, out / "ppo", sft=out / "sft")
        finally:
            models.load_policy = load
    return {"first_log_ratio": max(row.get("ppo/first_log_ratio", 0.0) for row in listener.rows)}


def pairing(pairs: Mapping[str, Any], world: World) -> Figures:
    """One pair a prompt by a strategy: the reward model's order of fresh answers, best of 16 by it, and DPO on it."""
    params = world.params
    section = changed(params.preferences, {"pairs": pairs, "per_prompt": 1})
    with scratch(world) as out:
        with inside(world.folder):
            inputs = world.inputs("samples", "corpus", "base")
            made = preferences.run(params.shared, section, **inputs, out=out / "preferences")
            inputs = world.inputs(*REWARD_PAIRS) | {"preferences": out / "preferences"}
            reward.run(params.shared, params.reward, **inputs, out=out / "reward")
        tables = _judged(Eyes(world, out / "reward"), 64, 16)
        train_dpo(world, params.dpo, out / "dpo", out / "preferences")
        policy = Eyes(world).look(out / "dpo")
    # Answer 2k against answer 2k + 1: random pairs, the same ones for every reward model.
    margins = [
        (p[k] - p[k + 1]) * math.copysign(1, g[k] - g[k + 1])
        for p, g in tables
        for k in range(0, len(p), 2)
        if g[k] != g[k + 1]
    ]
    best = [float(np.dot(best_of_n_weights(p, n=16), g)) for p, g in tables]
    return {
        "pairs": sum(made["pairs"].values()),
        "accuracy": ordered(margins).accuracy,
        "correlation": pearson([x for p, _ in tables for x in p], [x for _, g in tables for x in g]),
        "best_of_16": float(np.mean(best)),
        "dpo": policy["gold"],
        "dpo_kl": policy["kl"],
    }


def resumed(world: World) -> Figures:
    """A short PPO run with the adaptive coefficient, stopped and resumed at every update, against one in peace."""
    updates = 4 if world.quick else 5
    kl = {"kind": "adaptive", "coefficient": 0.05, "target": 1.0, "horizon": 128.0}
    section = changed(world.params.ppo, {"updates": updates, "episodes": 32, "kl": kl})
    environment = work.os.environ
    with scratch(world) as out:
        environment[work.INTERVAL] = "0"
        try:
            whole, _, metrics = train_ppo(world, section, out / "whole")
            wanted, same, files = _digests(out / "whole"), 0, 0
            for update in range(1, updates):
                with work.using("ppo", f"{out.name}-{update}"):
                    _stopped(world, section, out / "resumed", update + 1)
                    again, _, figures = train_ppo(world, section, out / "resumed")
                found = _digests(out / "resumed")
                alike = [found.get(name) == value for name, value in wanted.items()]
                alike += [found.keys() == wanted.keys(), figures == metrics, again.rows == whole.rows]
                same, files = same + sum(alike), files + len(alike)
        finally:
            environment.pop(work.INTERVAL)
    coefficients = [row["kl/coefficient"] for row in whole.rows]
    return {"resumes": updates - 1, "compared": files, "identical": same, "coefficients": coefficients}


def _stopped(world: World, section: Any, out: Path, update: int) -> None:
    """Run up to the figures of `update`: the newest checkpoint is then that of the update before."""
    try:
        train_ppo(world, section, out, listener=Steps(update))
    except KeyboardInterrupt:
        return
    raise RuntimeError(f"the run was not stopped at update {update}")


def _digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


def _judged(eyes: Eyes, prompts: int, answers: int) -> list[tuple[list[float], list[float]]]:
    """Proxy and gold rewards of fresh SFT answers, prompt by prompt."""
    asked = eyes.prompts[:prompts]
    found = eyes.sample(eyes.reference, asked, answers, seed=2)
    return [
        (eyes.proxy([Completion(p, a.tokens) for a in row]), eyes.gold([a.tokens for a in row]))
        for p, row in zip(asked, found, strict=True)
    ]


LONG = 40
BETAS = (1.0, 3.0, 10.0, 30.0)
TARGETS = (0.5, 1.0, 2.0, 4.0)
COEFFICIENTS = (0.8, 0.2, 0.05, 0.0125)
SWITCHED = 0.05
"""Coefficient of the runs with and without the rule for answers that do not end."""
_ADAPTIVE = {"kind": "adaptive", "coefficient": 0.1, "horizon": 64.0}
STUDIES: dict[str, Study] = {
    "sft": Study({"sft": sft}, ("sft",)),
    "overoptimisation": Study({"ppo": long_run}, ("ppo",)),
    "best_of_n": Study({"best_of_n": best_of}, ("best_of_n",)),
    "dpo": Study({f"{beta:g}": partial(direct, beta) for beta in BETAS}, ("3", "30")),
    "ppo": Study(
        {f"{target:g}": partial(reinforced, {"kl": {**_ADAPTIVE, "target": target}}) for target in TARGETS},
        ("0.5", "4"),
    ),
    "coefficient": Study(
        {f"{c:g}": partial(reinforced, {"kl": {"kind": "fixed", "coefficient": c}}) for c in COEFFICIENTS},
        ("0.2", "0.05"),
    ),
    # Off it is the coefficient's own run.
    "eos": Study(
        {
            "on": partial(
                reinforced,
                {"missing_eos": {"kind": "replace", "value": -1.0}, "kl": {"kind": "fixed", "coefficient": SWITCHED}},
            )
        },
        ("on",),
    ),
    "dropout": Study(
        {
            "none": partial(dropout, 0.0, False),
            "configured": partial(dropout, 0.1, False),
            "on": partial(dropout, 0.1, True),
        },
        ("none", "configured", "on"),
    ),
    "resume": Study({"adaptive": resumed}, ("adaptive",)),
    "pairing": Study(
        {"best_worst": partial(pairing, {"kind": "best_worst"}), "random": partial(pairing, {"kind": "all"})},
        ("best_worst", "random"),
    ),
}
