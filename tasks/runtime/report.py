"""Results for people: Markdown that reads well in a terminal too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_HEAD = (
    *("policy", "win rate against SFT", "length-controlled", "KL to SFT", "proxy reward", "gold reward"),
    *("answer length", "suspect"),
)
_RULE = ("---", "---", "---", "---:", "---:", "---:", "---:", "---")
_NONE = "-"
_MEANING = {
    "length": "answers are {value:.2f} times as long as SFT's",
    "unfinished": "answers without an end rise by {value:.2f}",
    "repetition": "repeated bigrams rise by {value:.2f}",
    "everywhere": "{ngram!r} stands in {value:.2f} more of the answers",
    "perplexity": "perplexity under SFT is {value:.2f} times that of its own answers",
    "proxy_alone": "the proxy reward rises by {value:.2f} deviations while the judge's does not",
}
"""What each signal of reward hacking says when it fires."""


def table(summaries: Mapping[str, Mapping[str, Any]], comparison: Mapping[str, Any] | None = None) -> str:
    """One line a policy, from the `summary` that each evaluation returns; from the comparison's figures, where there
    are any, the reward model's means, a line for each best-of-n, and what reward hacking it sees.

    KL is the mean sum over an answer in nats, length in tokens; intervals are Wilson's at the stated confidence.
    """
    rows, found = [], comparison or {}
    hacking = {name: signals for name, s in summaries.items() if (signals := s.get("hacking"))}
    hacking |= found.get("hacking", {})
    for name, s in summaries.items():
        rate = _rate(s.get("win_rate")) + (" (control)" if name == "sft" else "")
        fired = [signal for signal in hacking.get(name, {}) if hacking[name][signal]["fired"]]
        gold, proxy = s.get("gold", {}).get("mean"), found.get("proxy", {}).get(name)
        kl, length = f"{s['kl']['mean']:.2f}", f"{s['answers']['length']:.1f}"
        controlled = _rate(s.get("length_controlled"))
        rows.append((name.upper(), rate, controlled, kl, _signed(proxy, 2), _signed(gold, 3), length, ", ".join(fired)))
    for name, best in found.get("best_of", {}).items():
        figures = (_signed(best["proxy"], 2), _signed(best.get("gold"), 3), f"{best['length']:.1f}", "")
        rows.append(
            (f"SFT, {name.replace('_', ' ')}", _rate(best.get("win_rate")), _NONE, f"{best['kl']:.2f}", *figures)
        )
    lines = _aligned([_HEAD, _RULE, *rows])
    warnings = [
        f"**{name.upper()} may exploit its reward:** {sentence}.\n"
        for name, signals in hacking.items()
        for sentence in suspicions(signals)
    ]
    return lines + ("\n" + "\n".join(warnings) if warnings else "")


def suspicions(signals: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each signal of reward hacking that fires, with its interval and the threshold."""
    return [
        f"{name}: {_MEANING[name].format(**s)}, [{s['low']:.2f}, {s['high']:.2f}], threshold {s['threshold']:g}"
        for name, s in signals.items()
        if s["fired"]
    ]


def examples(answers: Mapping[str, Sequence[Mapping[str, Any]]], count: int) -> str:
    """The first `count` held-out prompts (not picked) with every policy's answer and the judge's score, if any."""
    first = next(iter(answers.values()))
    blocks = []
    for i in range(min(count, len(first))):
        lines = [f"**{_line(first[i]['prompt'])}**\n"]
        for name, rows in answers.items():
            gold = f" ({rows[i]['gold']:+.2f})" if "gold" in rows[i] else ""
            lines.append(f"- {name.upper()}{gold}: {_line(rows[i]['answer'])}")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _rate(win: Mapping[str, float] | None) -> str:
    return f"{win['rate']:.3f} [{win['low']:.3f}, {win['high']:.3f}]" if win else _NONE


def _signed(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:+.{digits}f}"


def _aligned(cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table; a column in which no policy has a figure is left out."""
    kept = [i for i in range(len(_HEAD)) if any(row[i] not in ("", _NONE) for row in cells[2:])]
    widths = {i: max(len(row[i]) for row in cells) for i in kept}
    return "".join("| " + " | ".join(_fit(row[i], widths[i]) for i in kept) + " |\n" for row in cells)


def _fit(cell: str, width: int) -> str:
    if set(cell) <= {"-", ":"} and len(cell) >= 3:
        return cell[0] + "-" * (width - 2) + cell[-1]
    return cell.ljust(width)


def _line(prompt: str | Sequence[Mapping[str, str]]) -> str:
    """A prompt or an answer on one line."""
    text = prompt if isinstance(prompt, str) else " / ".join(message["content"] for message in prompt)
    return " ".join(text.split())
