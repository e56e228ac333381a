"""docs/studies.md and its plots, from the cells. What the page says of the figures is worked out from them here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies import cells, plots
from benchmarks.studies.curves import Points, common_range, falls_while_rising, in_order, mean_gain, shown
from benchmarks.studies.studies import STUDIES
from tasks.algorithms.overoptimisation import Fit, fit_best_of_n, fit_reinforcement
from tasks.runtime import records

FORMS: dict[str, Callable[[Any, Any], Fit]] = {"RL form": fit_reinforcement, "best-of-n form": fit_best_of_n}
_WINDOW = 5
"""Updates whose mean a peak is looked for in: single rollouts scatter."""
_COLUMNS = ("KL to SFT", "gold gain", "proxy gain", "length", "ended")
INTRODUCTION = """# Studies

Made by `make results` (`make results QUICK=1`: one seed, fewer settings, in minutes); code in
[benchmarks/studies](../benchmarks/studies). The model is a random Llama of .1 million parameters that speaks letters, and
the gold reward a function that is known exactly ([gold.py](../benchmarks/studies/gold.py)): these tables show how the
algorithms behave, not how good a model gets. Every seed has its own data, base model, SFT policy, pairs and reward model,
made by the product's stages with `params.yaml`, `profiles/tiny.yaml` and
[params.yaml](../benchmarks/studies/params.yaml) of the studies. Brackets are Student's 95 % intervals over the seeds
({seeds}). Gains are over SFT on the same held-out prompts, KL is in nats per answer, the proxy is the reward model's score
(SFT's own samples: mean 0, standard deviation 1).

What was tuned, on seed 1 alone and before these runs: the place of the gold reward's peak, the number of pairs, the
learning rates and the number of updates, so that one run takes seconds and a reward model can be over-optimised. The
seeds were not chosen.
"""


class Page:
    """The cells' figures, and the page's parts one by one."""

    def __init__(self, folder: Path, seeds: Sequence[int], *, quick: bool) -> None:
        self._folder, self._seeds, self._quick = folder, seeds, quick
        self._sft = self.of("sft", "sft")

    def settings(self, study: str) -> list[str]:
        found = STUDIES[study]
        return list(found.quick if self._quick else found.settings)

    def of(self, study: str, setting: str) -> list[cells.Figures]:
        return cells.figures(self._folder, study, setting, self._seeds)

    def gains(self, found: Sequence[cells.Figures], name: str) -> list[float]:
        return [f[name] - sft[name] for f, sft in zip(found, self._sft, strict=True)]

    def row(self, *names: str, found: Sequence[cells.Figures]) -> str:
        values = [
            shown([f["kl"] for f in found]),
            shown(self.gains(found, "gold"), sign=True),
            shown(self.gains(found, "proxy"), sign=True),
            shown([f["length"] for f in found], digits=1),
            shown([f["finished"] for f in found]),
        ]
        return _line(*names, *values)

    def curves(self, study: str) -> list[list[tuple[float, float]]]:
        """Each seed's points (sqrt(KL), gold gain), setting by setting."""
        found = [self.of(study, setting) for setting in self.settings(study)]
        gains = [self.gains(f, "gold") for f in found]
        return [
            [(math.sqrt(max(f[i]["kl"], 0.0)), g[i]) for f, g in zip(found, gains, strict=True)]
            for i in range(len(self._seeds))
        ]

    def best_of_n(self) -> list[list[tuple[float, float]]]:
        return [
            [(math.sqrt(kl), gold - f["gold"][0]) for kl, gold in zip(f["kl"], f["gold"], strict=True)][1:]
            for f in self.of("best_of_n", "best_of_n")
        ]

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
                rows.append(_line("best of n", f"n {n}", *values, "", ""))
        names = list(areas)
        pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
        text = [
            "## 1. Reward against KL",
            "",
            "![Gold gain over distance](studies-frontier.png)",
            "",
            f"Mean gain on the way from SFT to d = {limit:.2f}, the largest distance that every curve of every seed",
            "reaches: the area under gold gain over d = sqrt(KL), straight lines from (0, 0) through the points, divided",
            "by that distance.",
            "",
            *_table("method", "mean gain"),
            *(_line(name, shown(values, sign=True)) for name, values in areas.items()),
            "",
            *_table("difference, seed by seed", "mean gain"),
            *(_line(f"{a} less {b}", shown(_minus(areas[a], areas[b]), sign=True)) for a, b in pairs),
            "",
            *_table("method", "setting", *_COLUMNS),
            *rows,
        ]
        return "\n".join(text)

    def overoptimisation(self, out: Path) -> str:
        runs, best = self.of("overoptimisation", "ppo"), self.best_of_n()
        pooled = [
            (math.sqrt(max(k, 0.0)), g - f["gold"][0]) for f in runs for k, g in zip(f["kl"], f["gold"], strict=True)
        ]
        mean_best = np.mean(best, axis=0).tolist()
        fits = {name: fit(*_columns(pooled)) for name, fit in FORMS.items()}
        plots.overoptimisation(out / "studies-overoptimisation.png", runs, fits, [(0.0, 0.0), *mean_best])
        falls = [falls_while_rising(f["gold"], f["proxy"], window=_WINDOW) for f in runs]
        over = sum(fall > 0 and rise > 0 for _, fall, rise in falls)
        own = [
            [(math.sqrt(max(k, 0.0)), g - f["gold"][0]) for k, g in zip(f["kl"], f["gold"], strict=True)] for f in runs
        ]
        rows = []
        for name, seeds in {"PPO, every rollout": own, "best of n": best}.items():
            for form, fit in FORMS.items():
                found = [fit(*_columns([(0.0, 0.0), *points])) for points in seeds]
                shares = [shown([getattr(f, k) for f in found]) for k in ("alpha", "beta", "r2")]
                peaks = ", ".join("none" if math.isinf(f.peak) else f"{f.peak:.2f}" for f in found)
                rows.append(_line(name, form, *shares, peaks))
        last = mean_best[-1][1] < max(gain for _, gain in mean_best)
        text = [
            "## 2. Over-optimisation",
            "",
            "![Proxy and gold reward along PPO](studies-overoptimisation.png)",
            "",
            f"One PPO run of {len(runs[0]['kl'])} updates, hardly held (fixed coefficient .002). Smoothed over {_WINDOW}",
            f"updates, gold peaks and falls while the proxy goes on rising in {over} of {len(runs)} seeds: the peak is at",
            f"update {', '.join(str(peak + _WINDOW // 2 + 1) for peak, _, _ in falls)}; from there to the end gold changes by",
            f"{shown([-fall for _, fall, _ in falls], sign=True)} and the proxy by {shown([r for _, _, r in falls], sign=True)}.",
            f"Along best of n, up to n = {self.of('best_of_n', 'best_of_n')[0]['n'][-1]}, the mean gold reward "
            + ("falls before the end." if last else "does not fall: it does not get far enough from SFT."),
            "",
            "The two forms of Gao et al. 2022 (arXiv 2210.10760), gain = d (alpha - beta d) for best of n and",
            "d (alpha - beta ln d) for reinforcement learning, each fitted to both, seed by seed:",
            "",
            *_table("points", "form", "alpha", "beta", "R^2", "peak at d"),
            *rows,
        ]
        return "\n".join(text)

    def coefficient(self) -> str:
        settings = self.settings("coefficient")
        found = [self.of("coefficient", s) for s in settings]
        ordered = {
            name: sum(in_order([f[i][name] for f in found]) for i in range(len(self._seeds)))
            for name in ("proxy", "gold", "kl")
        }
        means = {name: in_order([float(np.mean([x[name] for x in f])) for f in found]) for name in ordered}
        said = [
            f"{word} {'in order' if means[name] else 'not in order'} in the mean and in {ordered[name]} of "
            f"{len(self._seeds)} seeds"
            for name, word in (("proxy", "proxy reward"), ("gold", "gold reward"), ("kl", "KL"))
        ]
        return "\n".join(
            [
                "## 3. A looser KL coefficient",
                "",
                f"Expected: each looser coefficient gives more reward and more drift. Found: {said[0]},",
                f"{said[1]}, {said[2]}.",
                "",
                *_table("coefficient, fixed", *_COLUMNS),
                *(self.row(s, found=f) for s, f in zip(settings, found, strict=True)),
            ]
        )

    def switches(self) -> str:
        drop = {s: [f["first_log_ratio"] for f in self.of("dropout", s)] for s in self.settings("dropout")}
        names = {
            "none": "no dropout in the model's config",
            "configured": "attention_dropout .1 in the config, the stage as it is",
            "on": "the same, and the models put into training mode, which the product never does",
        }
        eos = {"on": "on: such an answer scores -1", "off": "off"}
        kept = all(value < 1e-5 for name in ("none", "configured") for value in drop[name])
        broken = all(value > 1e-3 for value in drop["on"])
        return "\n".join(
            [
                "## 4. Rules that are easily lost",
                "",
                "The rule for answers without an end-of-sequence token (`ppo.missing_eos`):",
                "",
                *_table("rule", *_COLUMNS),
                *(self.row(text, found=self.of("eos", s)) for s, text in eos.items()),
                "",
                "Dropout and the ratio of the first minibatch, before any update: largest |log ratio| over the updates and",
                f"seeds. {'Below 1e-5 wherever dropout is off' if kept else 'NOT below 1e-5 where dropout is off'};"
                f" {'not near 0 with dropout on.' if broken else 'NOT visibly different with dropout on.'}",
                "",
                *_table("dropout", "largest log ratio"),
                *(_line(text, f"{max(drop[s]):.2g}") for s, text in names.items()),
            ]
        )

    def pairing(self) -> str:
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
            difference = _minus(best, random)
            rows.append(
                _line(
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
                "One pair a prompt in both: the best answer against the worst of four, or one of the six pairs at random.",
                f"Best against worst has {'; '.join(beats)}.",
                "An interval of the difference that holds 0 shows no difference.",
                "",
                *_table("figure", "best against worst", "random pair", "difference, seed by seed"),
                *rows,
            ]
        )

    def resume(self) -> str:
        found = self.of("resume", "adaptive")
        compared, same = (sum(f[k] for f in found) for k in ("compared", "identical"))
        moved = all(len(set(f["coefficients"])) > 1 for f in found)
        return "\n".join(
            [
                "## 6. Resume",
                "",
                f"A PPO run of {found[0]['resumes'] + 1} updates with the adaptive coefficient"
                f" ({'which changes at every seed' if moved else 'which did NOT change'}), stopped and resumed after each",
                f"of its updates but the last, {sum(f['resumes'] for f in found)} times in all: {same} of {compared}"
                " comparisons with the uninterrupted run are identical to the bit (every file of the policy, the list of"
                " files, the metrics, the figures of every update).",
            ]
        )


def write(folder: Path, out: Path, seeds: Sequence[int], *, quick: bool) -> None:
    """The page and its plots in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    page = Page(folder, seeds, quick=quick)
    parts = [page.frontier(out), page.overoptimisation(out), page.coefficient(), page.switches(), page.pairing()]
    introduction = INTRODUCTION.format(seeds=", ".join(map(str, seeds)))
    records.write_text(out / "studies.md", "\n\n".join([introduction.rstrip(), *parts, page.resume()]) + "\n")


def _table(*names: str) -> list[str]:
    return [_line(*names), _line(*("---" for _ in names))]


def _line(*values: str) -> str:
    return "| " + " | ".join(values) + " |"


def _minus(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x - y for x, y in zip(a, b, strict=True)]


def _columns(points: Points) -> tuple[list[float], list[float]]:
    return [d for d, _ in points], [gain for _, gain in points]
