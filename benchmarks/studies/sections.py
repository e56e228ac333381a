"""The sections of docs/studies.md. What they say of the figures is worked out from them here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies import cells, plots
from benchmarks.studies.curves import Points, common_range, falls_while_rising, in_order, mean_gain, shown
from benchmarks.studies.reading import COLUMNS, Results, along, columns, line, minus, table, within
from benchmarks.studies.studies import SWITCHED
from tasks.algorithms.overoptimisation import Fit, fit_best_of_n, fit_reinforcement

FORMS: dict[str, Callable[[Any, Any], Fit]] = {"RL form": fit_reinforcement, "best-of-n form": fit_best_of_n}
_WINDOW = 5
"""Updates whose mean a peak is looked for in: single rollouts scatter."""


class Page(Results):
    """The page's parts, one by one."""

    def frontier(self, out: Path) -> str:
        # Weakest pull last, so that the means over seeds go from left to right.
        curves = {
            "DPO": [points[::-1] for points in self.curves("dpo")],
            "PPO": self.curves("ppo"),
            "best of n": self.best_of_n(),
        }
        limit = common_range([points for seeds in curves.values() for points in seeds])
        plots.frontier(out / "studies-frontier.png", curves, limit)
        areas = {name: [mean_gain(points, limit=limit) for points in seeds] for name, seeds in curves.items()}
        rows = [self.row("DPO", f"beta {s}", found=self.of("dpo", s)) for s in self.settings("dpo")]
        rows += [self.row("PPO", f"target {s}", found=self.of("ppo", s)) for s in self.settings("ppo")]
        best = self.of("best_of_n", "best_of_n")
        for i, n in enumerate(best[0]["n"]):
            if n > 1:
                gold, proxy = ([f[k][i] - f[k][0] for f in best] for k in ("gold", "proxy"))
                values = (f"{best[0]['kl'][i]:.2f}", shown(gold, sign=True), shown(proxy, sign=True))
                rows.append(line("best of n", f"n {n}", *values, "", ""))
        names = list(areas)
        pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
        text = [
            "## 1. Reward against KL",
            "",
            "![Gold gain over distance](studies-frontier.png)",
            "",
            f"Mean gain on the way from SFT to d = {limit:.2f}, the largest distance that every curve of every seed",
            "reaches: the area under gold gain over d = sqrt(KL), straight lines from (0, 0) through the points,",
            "divided by that distance.",
            "",
            *table("method", "mean gain", "points within, by seed"),
            *(line(n, shown(v, sign=True), within(curves[n], limit)) for n, v in areas.items()),
            "",
            *_unmeasured(curves, limit),
            *table("difference, seed by seed", "mean gain"),
            *(line(f"{a} less {b}", shown(minus(areas[a], areas[b]), sign=True)) for a, b in pairs),
            "",
            *table("method", "setting", *COLUMNS),
            *rows,
        ]
        return "\n".join(text)

    def overoptimisation(self, out: Path) -> str:
        runs, best = self.of("overoptimisation", "ppo"), self.best_of_n()
        own = [along(run) for run in runs]
        mean_best = np.mean(best, axis=0).tolist()
        pooled = {name: fit(*columns([p for points in own for p in points])) for name, fit in FORMS.items()}
        plots.overoptimisation(out / "studies-overoptimisation.png", runs, pooled, [(0.0, 0.0), *mean_best])
        rows = []
        for name, seeds in {"PPO, every rollout": own, "best of n": best}.items():
            for form, fit in FORMS.items():
                found = [fit(*columns([(0.0, 0.0), *points])) for points in seeds]
                shares = [shown([getattr(f, k) for f in found]) for k in ("alpha", "beta", "r2")]
                peaks = ", ".join("none" if math.isinf(f.peak) else f"{f.peak:.2f}" for f in found)
                rows.append(line(name, form, *shares, peaks))
        text = [
            "## 2. Over-optimisation",
            "",
            "![Proxy and gold reward along PPO](studies-overoptimisation.png)",
            "",
            *_peaks(runs),
            f"Along best of n, up to n = {self.of('best_of_n', 'best_of_n')[0]['n'][-1]}, the mean gold reward is",
            f"highest at d = {max(mean_best, key=lambda point: point[1])[0]:.2f} of {mean_best[-1][0]:.2f}.",
            "",
            "The two forms of Gao et al. 2022 (arXiv 2210.10760), gain = d (alpha - beta d) for best of n and",
            "d (alpha - beta ln d) for reinforcement learning, each fitted to both, seed by seed:",
            "",
            *table("points", "form", "alpha", "beta", "R^2", "peak at d"),
            *rows,
        ]
        return "\n".join(text)

    def coefficient(self, _: Path) -> str:
        settings = self.settings("coefficient")
        found = [self.of("coefficient", s) for s in settings]
        ordered = {
            name: sum(in_order([f[i][name] for f in found]) for i in range(len(self.seeds)))
            for name in ("proxy", "gold", "kl")
        }
        means = {name: in_order([float(np.mean([x[name] for x in f])) for f in found]) for name in ordered}
        said = [
            f"{word} {'in order' if means[name] else 'not in order'} in the mean and in {ordered[name]} of "
            f"{len(self.seeds)} seeds"
            for name, word in (("proxy", "proxy reward"), ("gold", "gold reward"), ("kl", "KL"))
        ]
        return "\n".join(
            [
                "## 3. A looser KL coefficient",
                "",
                "Expected: each looser coefficient gives more of the reward that PPO is trained on, the proxy, and",
                f"more drift; the gold reward follows as far as its peak. Found: {said[0]},",
                f"{said[1]}, {said[2]}.",
                "",
                *table("coefficient, fixed", *COLUMNS),
                *(self.row(s, found=f) for s, f in zip(settings, found, strict=True)),
            ]
        )

    def switches(self, _: Path) -> str:
        drop = {s: [f["first_log_ratio"] for f in self.of("dropout", s)] for s in self.settings("dropout")}
        names = {
            "none": "no dropout in the model's config",
            "configured": "attention_dropout .1 in the config, the stage as it is",
            "on": "the same, and the models put into training mode, which the product never does",
        }
        eos = {
            "on: such an answer scores -1": self.of("eos", "on"),
            "off": self.of("coefficient", f"{SWITCHED:g}"),
        }
        kept = all(value < 1e-5 for name in ("none", "configured") for value in drop[name])
        broken = all(value > 1e-3 for value in drop["on"])
        return "\n".join(
            [
                "## 4. Rules that are easily lost",
                "",
                f"The rule for answers without an end-of-sequence token (`ppo.missing_eos`), coefficient {SWITCHED}:",
                "",
                *table("rule", *COLUMNS),
                *(self.row(text, found=found) for text, found in eos.items()),
                "",
                "Dropout and the ratio of the first minibatch, before any step: largest absolute log ratio over",
                "updates and seeds.",
                f"{'Below 1e-5 wherever dropout is off' if kept else 'NOT below 1e-5 where dropout is off'};"
                f" {'not near 0 with dropout on.' if broken else 'NOT visibly different with dropout on.'}",
                "",
                *table("dropout", "largest log ratio"),
                *(line(text, f"{max(drop[s]):.2g}") for s, text in names.items()),
            ]
        )

    def pairing(self, _: Path) -> str:
        found = {s: self.of("pairing", s) for s in self.settings("pairing")}
        kinds = {
            "pairs": ("pairs, with held-out ones", 0),
            "accuracy": ("accuracy on random pairs of fresh answers", 3),
            "correlation": ("correlation of proxy and gold", 3),
            "best_of_16": ("gold reward of best of 16", 2),
            "dpo": ("gold reward of DPO", 2),
            "dpo_kl": ("KL of DPO", 2),
        }
        rows, beats = [], []
        for name, (text, digits) in kinds.items():
            best, random = ([f[name] for f in found[s]] for s in ("best_worst", "random"))
            difference = minus(best, random)
            rows.append(
                line(
                    text,
                    *(shown(v, digits=digits) for v in (best, random)),
                    shown(difference, digits=digits, sign=True),
                )
            )
            if name in ("accuracy", "correlation", "best_of_16", "dpo"):
                beats.append(f"{text}: higher in {sum(d > 0 for d in difference)} of {len(difference)} seeds")
        return "\n".join(
            [
                "## 5. Best against worst, or random pairs",
                "",
                "One pair a prompt in both: the best of four answers against the worst, or one of the six pairs at",
                "random.",
                f"Best against worst has {'; '.join(beats)}.",
                "An interval of the difference that holds 0 shows no difference.",
                "",
                *table("figure", "best against worst", "random pair", "difference, seed by seed"),
                *rows,
            ]
        )

    def resume(self, _: Path) -> str:
        found = self.of("resume", "adaptive")
        compared, same = (sum(f[k] for f in found) for k in ("compared", "identical"))
        moved = all(len(set(f["coefficients"])) > 1 for f in found)
        return "\n".join(
            [
                "## 6. Resume",
                "",
                f"A PPO run of {found[0]['resumes'] + 1} updates with the adaptive coefficient"
                f" ({'which changes' if moved else 'which did NOT change'} along the way), stopped and resumed",
                f"after each of its updates but the last, {sum(f['resumes'] for f in found)} times in all: {same} of",
                f"{compared} comparisons with the uninterrupted run are identical to the bit (every file of the",
                "policy, the list of files, the metrics, the figures of every update).",
            ]
        )


def _unmeasured(curves: Mapping[str, Sequence[Points]], limit: float) -> list[str]:
    """What is to be said of methods without a point in the common range."""
    names = [name for name, seeds in curves.items() if any(all(d > limit for d, _ in points) for points in seeds)]
    if not names:
        return []
    return [
        f"{' and '.join(names)}: in some seed without points within, and known there by the straight line from (0, 0)",
        "alone; that mean gain is no measurement of weaker settings.",
        "",
    ]


def _peaks(runs: Sequence[cells.Figures]) -> list[str]:
    falls = [falls_while_rising(run["gold"], run["proxy"], window=_WINDOW) for run in runs]
    over = sum(fall > 0 and rise > 0 for _, fall, rise in falls)
    peaks = ", ".join(str(peak + _WINDOW // 2 + 1) for peak, _, _ in falls)
    gold, proxy = (shown(values, sign=True) for values in zip(*((-fall, rise) for _, fall, rise in falls), strict=True))
    return [
        f"One PPO run of {len(runs[0]['kl'])} updates that is hardly held (fixed coefficient .002). Smoothed over",
        f"{_WINDOW} updates, gold peaks and falls while the proxy goes on rising in {over} of {len(runs)} seeds. The",
        f"peak is at update {peaks}; from there to the end gold changes by {gold},",
        f"the proxy by {proxy}. An interval that holds 0 shows no change.",
    ]
