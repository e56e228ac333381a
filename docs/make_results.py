"""Puts the last default run's figures into README.md and docs/results.md: `python -m docs.make_results`.

Reads runs/comparison, runs/evaluation and metrics/, which `make align` made.
"""

from __future__ import annotations

import re
from pathlib import Path

from tasks.runtime import records, report

README, RESULTS = Path("README.md"), Path("docs/results.md")
SHOWN = 24
"""Held-out prompts in docs/results.md: the first, not picked."""


def readme(text: str, table: str) -> str:
    """README.md with `table` between its result marks."""
    block = f"<!-- results -->\n{table}<!-- /results -->"
    return re.sub(r"<!-- results -->.*<!-- /results -->", lambda _: block, text, flags=re.DOTALL)


def results() -> str:
    """docs/results.md."""
    table = Path("runs/comparison/table.md").read_text(encoding="utf-8")
    names = [p.name for p in Path("runs/evaluation").iterdir()]
    names.sort(key=["sft", "dpo", "ppo"].index)
    answers = {name: records.read_jsonl(Path("runs/evaluation", name, "answers.jsonl"), "answer") for name in names}
    return "\n".join(
        [
            "# Results of the default run",
            "",
            "Made by `make align`, then `python -m docs.make_results`. How to read the table: README.",
            "",
            table,
            _intervals(names),
            _between(),
            _reward(),
            "## Answers",
            "",
            f"The first {SHOWN} held-out prompts, good and bad, with the judge's predicted rating (-4 to 4).",
            "",
            report.examples(answers, SHOWN),
        ]
    )


def _intervals(names: list[str]) -> str:
    """Both intervals of the win rate, what optimisation gained, and how fluent the answers stay."""
    gains = records.read_json(Path("metrics/comparison.json"))["gain"]
    lines = [
        "| policy | Wilson | bootstrap | KL, interval of the mean | proxy gain | gold gain | perplexity under SFT "
        "| ended | distinct bigrams |",
        "| --- | --- | --- | --- | --- | --- | ---: | ---: | ---: |",
    ]
    for name in names:
        s = records.read_json(Path("runs/evaluation", name, "summary.json"))
        win, kl, answers, gain = s["win_rate"], s["kl"], s["answers"], gains[name]
        lines.append(
            f"| {name.upper()} | [{win['low']:.3f}, {win['high']:.3f}] "
            f"| [{win['bootstrap_low']:.3f}, {win['bootstrap_high']:.3f}] | [{kl['low']:.2f}, {kl['high']:.2f}] "
            f"| {_interval(gain['proxy'])} | {_interval(gain['gold'])} "
            f"| {answers['perplexity_under_sft']:.1f} | {answers['finished']:.2f} | {answers['distinct_2']:.2f} |"
        )
    text = "Gains are over SFT's answers to the same prompts, in standard deviations of SFT's answers."
    return "\n".join([*lines, "", text]) + "\n"


def _interval(mean: dict[str, float]) -> str:
    return f"{mean['mean']:+.2f} [{mean['low']:+.2f}, {mean['high']:+.2f}]"


def _between() -> str:
    """Win rates between any two policies, and each policy against the largest best-of-n."""
    metrics = records.read_json(Path("metrics/comparison.json"))
    lines = ["| policy | over | win rate |", "| --- | --- | --- |"]
    for pair, win in metrics["win_rate"].items():
        ours, _, theirs = pair.partition("_over_")
        rate = f"{win['rate']:.3f} [{win['low']:.3f}, {win['high']:.3f}]"
        lines.append(f"| {ours.upper()} | {theirs.upper()} | {rate} |")
    text = [""]
    over = metrics.get("over_best_of", {})
    for name, found in over.items():
        if name != "n":
            text.append(
                f"{name.upper()}'s win rate against SFT minus that of best of {over['n']}: {found['difference']:+.3f} "
                f"[{found['low']:+.3f}, {found['high']:+.3f}] on {found['prompts']} prompts."
            )
    return "\n".join(lines + text) + "\n"


def _reward() -> str:
    """How often the reward model orders held-out pairs as preferred, by where the pairs come from."""
    held_out = records.read_json(Path("metrics/reward.json"))["held_out"]
    judge = records.read_json(Path("metrics/corpus.json"))["judge"]
    accuracy = ", ".join(f"{o} {f['accuracy']:.2f} ({f['pairs']} pairs)" for o, f in sorted(held_out.items()))
    error = ", ".join(
        f"{o} {f['calibration_error']:.3f} ({f['scaled']['calibration_error']:.3f})"
        for o, f in sorted(held_out.items())
    )
    return (
        f"Reward model, accuracy on held-out pairs by origin: {accuracy}. Expected calibration error, and that after "
        f"temperature scaling (fitted on other held-out prompts): {error}. Judge, on rated texts it was not fitted on: "
        f"Pearson r {judge['pearson']:.2f} with people's mean rating; it orders "
        f"{judge['pairs_ordered_as_people']:.0%} of the pairs that differ by one point or more as people do.\n"
    )


def main() -> None:
    """Write both files."""
    table = Path("runs/comparison/table.md").read_text(encoding="utf-8")
    records.write_text(README, readme(README.read_text(encoding="utf-8"), table))
    records.write_text(RESULTS, results())


if __name__ == "__main__":
    main()
