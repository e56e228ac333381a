"""The plots of the studies, small PNG files with the same bytes for the same figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("agg")
from matplotlib import pyplot as plt

Points = Sequence[tuple[float, float]]
DISTANCE = "distance from SFT, sqrt(KL in nats per answer)"
_COLOURS = {"DPO": "#1b6ca8", "PPO": "#c8102e", "best of n": "#4d4d4d"}
_SIZE, _DOTS = (6.4, 4.0), 110


def frontier(path: Path, curves: Mapping[str, Sequence[Points]], limit: float) -> None:
    """Gold gain over distance: each method's mean over seeds as a line, its seeds as faint points."""
    figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
    for name, seeds in curves.items():
        mean = np.array([(0.0, 0.0), *np.mean(seeds, axis=0)])
        axes.plot(*mean.T, "o-", markersize=4, color=_COLOURS[name], label=name)
        for points in seeds:
            axes.plot(*np.array(points).T, ".", color=_COLOURS[name], alpha=0.35, markersize=4)
    axes.axvline(limit, color="0.7", linewidth=0.8, linestyle=":", label="common range")
    _finish(figure, axes, path, ylabel="gain of gold reward over SFT")


def overoptimisation(path: Path, runs: Sequence[Mapping[str, Any]], fits: Mapping[str, Any], best: Points) -> None:
    """Left: proxy and gold along the weakly held run. Right: gold gain over distance, with both fitted forms."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name, colour in (("proxy", "#e08214"), ("gold", "#1b7837")):
        values = np.array([run[name] for run in runs])
        steps = np.arange(1, values.shape[1] + 1)
        left.plot(steps, values.mean(0), color=colour, label=f"{name} reward")
        if len(values) > 1:
            left.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
    left.set_xlabel("update of PPO")
    left.set_ylabel("mean reward of the rollout (band: all seeds)")
    left.grid(alpha=0.25)
    left.legend(frameon=False)
    d = np.concatenate([np.sqrt(np.maximum(run["kl"], 0)) for run in runs])
    gain = np.concatenate([np.array(run["gold"]) - run["gold"][0] for run in runs])
    right.plot(d, gain, ".", color="#c8102e", alpha=0.4, markersize=4, label="PPO, every rollout")
    x = np.linspace(1e-3, d.max(), 200)
    for name, (form, dashes) in {"RL form": (np.log, "-"), "best-of-n form": (lambda z: z, "--")}.items():
        fit = fits[name]
        label = f"{name} fitted to PPO"
        right.plot(x, x * (fit.alpha - fit.beta * form(x)), dashes, color="0.2", linewidth=1.2, label=label)
    right.plot(*np.array(best).T, "s-", color="#1b6ca8", markersize=4, label="best of n")
    _finish(figure, right, path, ylabel="gain of gold reward over SFT")


def _finish(figure: Any, axes: Any, path: Path, *, ylabel: str) -> None:
    axes.set_xlabel(DISTANCE)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=_DOTS, metadata={"Software": None})
    plt.close(figure)
