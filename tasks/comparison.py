"""Every evaluated policy side by side, and best-of-n of SFT: proxy beside gold reward, win rates between any two."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from tasks.algorithms.hacking import proxy_signal
from tasks.algorithms.intervals import mean_with_interval, paired_bootstrap
from tasks.algorithms.kl import best_of_n_kl
from tasks.algorithms.win_rates import probit_gain, win_rate_interval
from tasks.errors import UserError
from tasks.language import judge, models, scoring, text
from tasks.language.batches import Completion
from tasks.language.best_of_n import best_of_n
from tasks.runtime import config, record, records, report

_ORDER = ("sft", "dpo", "ppo")
_UNJUDGED = Path(".rlhf/unjudged/comparison.jsonl")
_Row = dict[str, Any]
_Rows = list[_Row]


def run(
    shared: config.Shared,
    cfg: config.Comparison,
    *,
    evaluation: Path,
    reward: Path,
    baseline: Path,
    corpus: Path,
    out: Path,
) -> _Row:
    """Write `table.md` and `examples.md` for people, `win_rates.csv` for plots."""
    names = [name for name in _ORDER if (evaluation / name).is_dir()]
    if not names:
        raise UserError(f"{evaluation} holds no evaluated policy")
    summaries = {name: records.read_json(evaluation / name / "summary.json") for name in names}
    answers = {name: records.read_jsonl(evaluation / name / "answers.jsonl", "answer_tokens") for name in names}
    rows = records.read_jsonl(baseline / "answers.jsonl", "prompt_tokens", "answers", "candidates")
    _score(shared, reward, answers, rows)
    gold = judge.load(corpus / "judge")
    confidence = summaries[names[0]]["confidence"]
    settings = {
        "confidence": confidence,
        "resamples": cfg.bootstrap,
        "generator": np.random.default_rng(shared.seed),
    }
    best, wins = _best_of(gold, rows, cfg.best_of, settings)
    found = {
        "proxy": {name: float(np.mean([line["proxy"] for line in lines])) for name, lines in answers.items()},
        "gain": {name: _gains(summaries[name], lines, rows, confidence) for name, lines in answers.items()},
        "win_rate": _between(gold, answers, settings),
        "best_of": best,
    }
    if best:
        found["over_best_of"] = {"n": cfg.best_of[-1]} | {
            name: over for name, lines in answers.items() if (over := _over(lines, wins[-1], settings))
        }
    found["hacking"] = {
        name: summaries[name]["hacking"] | {"proxy_alone": _proxy_alone(cfg, summaries[name], found["gain"][name])}
        for name in names
    }
    for name, signals in found["hacking"].items():
        for sentence in report.suspicions(signals):
            record.note(f"warning: {name} may exploit its reward: {sentence}")
    if waiting := judge.leave_unjudged(gold, _UNJUDGED):
        record.note(waiting)
    _write(out, cfg, summaries, answers, found)
    return found


def _score(shared: config.Shared, reward: Path, answers: dict[str, _Rows], rows: _Rows) -> None:
    """Add the reward model's normalised score (0 and 1: mean and spread of SFT's own samples) to what it compares: the
    policies' answers, the first baseline answer of each prompt, and the candidates."""
    tokenizer, model = text.load_tokenizer(reward), models.load_scalar_model(reward, shared.precision)
    parts = [[(line, line["prompt_tokens"], line["answer_tokens"]) for line in lines] for lines in answers.values()]
    parts += [
        [(a, row["prompt_tokens"], a["tokens"]) for row in rows for a in row["answers"][:1]],
        [(a, row["prompt_tokens"], a["tokens"]) for row in rows for a in row["candidates"]],
    ]
    parts = [part for part in parts if part]
    for done, part in enumerate(parts):
        completions = [Completion(prompt, answer) for _, prompt, answer in part]
        scores = scoring.all_scores(model, completions, fill=tokenizer.pad_token_id, size=32).tolist()
        for (answer, _, _), score in zip(part, scores, strict=True):
            answer["proxy"] = score
        record.log(done + 1, len(parts), {})


def _gains(summary: _Row, lines: _Rows, rows: _Rows, confidence: float) -> _Row:
    """Mean gain over SFT's answers to the same prompts, in standard deviations of SFT's answers.

    gap: proxy gain minus gold gain, which is over-optimisation. Without gold rewards, the gold gain is what the win
    rate comes to, and there is no gap.
    """

    def over_sft(key: str, spread: float) -> np.ndarray:
        usual = [np.mean([a[key] for a in row["answers"] if key in a]) for row in rows]
        return (np.array([line[key] for line in lines]) - usual) / spread

    proxy = over_sft("proxy", 1.0)
    if "gold" not in lines[0]:
        win = summary["win_rate"]
        gain = {"mean": "rate", "low": "low", "high": "high"}
        return {
            "proxy": mean_with_interval(proxy, confidence=confidence)._asdict(),
            "gold": {name: probit_gain(win[key]) for name, key in gain.items()},
        }
    spread = float(np.std([a["gold"] for row in rows for a in row["answers"]]))
    gold = over_sft("gold", spread or 1.0)
    values = {"proxy": proxy, "gold": gold, "gap": proxy - gold}
    return {name: mean_with_interval(value, confidence=confidence)._asdict() for name, value in values.items()}


def _proxy_alone(cfg: config.Comparison, summary: _Row, gains: _Row) -> _Row:
    proxy, gold = ((gains[name]["low"], gains[name]["high"]) for name in ("proxy", "gold"))
    return proxy_signal(gains["proxy"]["mean"], proxy, gold, threshold=cfg.gain)._asdict()


def _best_of(gold: judge.Judge, rows: _Rows, ns: list[int], settings: _Row) -> tuple[dict[str, _Row], list[list[Any]]]:
    """Figures of best-of-n by name, and for each n its outcome prompt by prompt."""
    figures, wins = {}, []
    for n in ns:
        found = best_of_n(gold, rows, n)
        known = [[win] for win in found.wins if win is not None]
        win_rate = {"win_rate": win_rate_interval(known, **settings)._asdict()} if known else {}
        figures[f"best_of_{n}"] = found.figures | {"kl": best_of_n_kl(n), "prompts": len(found.wins)} | win_rate
        wins.append(found.wins)
    return figures, wins


def _over(lines: _Rows, wins: list[float | None], settings: _Row) -> dict[str, float] | None:
    """Win rate of a policy minus that of best-of-n, on the prompts that have both; None where there are none."""
    gaps = [line["win"] - win for line, win in zip(lines, wins, strict=False) if None not in (line["win"], win)]
    if not gaps:
        return None
    low, high = paired_bootstrap(gaps, **settings)
    return {"difference": float(np.mean(gaps)), "low": low, "high": high, "prompts": len(gaps)}


def _between(gold: judge.Judge, answers: dict[str, _Rows], settings: _Row) -> dict[str, _Row]:
    """Win rate of every policy's answers over every other's on the same prompts; without verdicts, no entry."""
    found = {}
    for (a, ours), (b, theirs) in itertools.combinations(answers.items(), 2):
        agreement = {}
        if judge.has_scores(gold):
            outcomes = [judge.by_score(x["gold"], y["gold"]) for x, y in zip(ours, theirs, strict=True)]
        else:
            sides = ([line["answer"] for line in lines] for lines in (ours, theirs))
            verdicts = judge.compare(gold, [line["prompt"] for line in ours], *sides)
            outcomes = [outcome for outcome in verdicts.outcomes if outcome is not None]
            agreement = {} if verdicts.agreement is None else {"order_agreement": verdicts.agreement}
        if outcomes:
            table = [[outcome] for outcome in outcomes]
            found[f"{a}_over_{b}"] = win_rate_interval(table, **settings)._asdict() | agreement
    return found


def _write(out: Path, cfg: config.Comparison, summaries: _Row, answers: dict[str, _Rows], found: _Row) -> None:
    records.write_text(out / "table.md", report.table(summaries, found))
    records.write_text(out / "examples.md", report.examples(answers, cfg.examples))
    lines = ["policy,win_rate,low,high,kl"]
    kls = {name: s["kl"]["mean"] for name, s in summaries.items()} | {n: b["kl"] for n, b in found["best_of"].items()}
    for name, s in {**summaries, **found["best_of"]}.items():
        if win := s.get("win_rate"):
            lines.append(f"{name},{win['rate']},{win['low']},{win['high']},{kls[name]}")
    records.write_text(out / "win_rates.csv", "\n".join(lines) + "\n")
    first = next(iter(answers.values()))
    side_by_side = [
        {"prompt": row["prompt"]} | {name: rows[i]["answer"] for name, rows in answers.items()}
        for i, row in enumerate(first[:50])
    ]
    record.table("examples", side_by_side)
