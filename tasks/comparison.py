"""Every evaluated policy side by side, with the reward model's score as the proxy beside the judge's gold reward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.algorithms.intervals import wilson, win_rate
from tasks.errors import UserError
from tasks.language import models, scoring, text
from tasks.language.batches import Completion
from tasks.runtime import config, record, records, report

_ORDER = ("sft", "dpo", "ppo")
_Rows = list[dict[str, Any]]


def run(shared: config.Shared, cfg: config.Comparison, *, evaluation: Path, reward: Path, out: Path) -> dict[str, Any]:
    """Write `table.md` and `examples.md` for people, `win_rates.csv` for plots."""
    names = [name for name in _ORDER if (evaluation / name).is_dir()]
    if not names:
        raise UserError(f"{evaluation} holds no evaluated policy")
    summaries = {name: records.read_json(evaluation / name / "summary.json") for name in names}
    answers = {name: records.read_jsonl(evaluation / name / "answers.jsonl", "gold", "answer_tokens") for name in names}
    proxies = _proxies(shared, reward, answers)
    records.write_text(out / "table.md", report.table(summaries, proxies))
    records.write_text(out / "examples.md", report.examples(answers, cfg.examples))
    lines = ["policy,win_rate,low,high,kl"]
    for name, s in summaries.items():
        win = s["win_rate"]
        lines.append(f"{name},{win['rate']},{win['low']},{win['high']},{s['kl']['mean']}")
    records.write_text(out / "win_rates.csv", "\n".join(lines) + "\n")
    pairs = {
        f"{a}_over_{b}": _rate(answers[a], answers[b], summaries[a]["confidence"])
        for i, b in enumerate(names)
        for a in names[i + 1 :]
    }
    record.table("examples", _side_by_side(answers)[:50])
    return {"proxy": proxies, "win_rate": pairs}


def _proxies(shared: config.Shared, reward: Path, answers: dict[str, _Rows]) -> dict[str, float]:
    """Mean normalised score of each policy's answers: 0 and 1 are the mean and spread of SFT's own samples."""
    tokenizer, model = text.load_tokenizer(reward), models.load_scalar_model(reward)
    models.cast_parameters(model, models.PRECISIONS[shared.precision])
    found = {}
    for done, (name, rows) in enumerate(answers.items()):
        completions = [Completion(row["prompt_tokens"], row["answer_tokens"]) for row in rows]
        scores = scoring.all_scores(model, completions, fill=tokenizer.pad_token_id, size=32)
        found[name] = float(scores.mean())
        record.log(done + 1, len(answers), {})
    return found


def _rate(policy: _Rows, baseline: _Rows, confidence: float) -> dict[str, float]:
    """Win rate of one policy's answers over another's on the same prompts, by gold reward."""
    counts = win_rate([row["gold"] for row in policy], [row["gold"] for row in baseline])
    low, high = wilson(counts.wins + counts.ties / 2, len(policy), confidence=confidence)
    return {"rate": counts.rate, "low": low, "high": high}


def _side_by_side(answers: dict[str, _Rows]) -> _Rows:
    first = next(iter(answers.values()))
    return [
        {"prompt": row["prompt"]} | {name: rows[i]["answer"] for name, rows in answers.items()}
        for i, row in enumerate(first)
    ]
