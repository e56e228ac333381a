"""Results for people: Markdown that reads well in a terminal too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_HEAD = ("policy", "win rate against SFT", "KL to SFT", "proxy reward", "gold reward", "answer length")
_RULE = ("---", "---", "---:", "---:", "---:", "---:")


def table(summaries: Mapping[str, Mapping[str, Any]], proxies: Mapping[str, float] | None = None) -> str:
    """One line a policy, from the `summary` that each evaluation returns; `proxies`: reward-model means, if known.

    KL is the mean sum over an answer in nats, length in tokens; the interval is Wilson's at the stated confidence.
    """
    cells = [_HEAD, _RULE]
    for name, s in summaries.items():
        win = s["win_rate"]
        proxy = f"{proxies[name]:+.2f}" if proxies else "-"
        rate = f"{win['rate']:.3f} [{win['low']:.3f}, {win['high']:.3f}]" + (" (control)" if name == "sft" else "")
        gold, length = f"{s['gold']['mean']:+.3f}", f"{s['answers']['length']:.1f}"
        cells.append((name.upper(), rate, f"{s['kl']['mean']:.2f}", proxy, gold, length))
    widths = [max(len(row[i]) for row in cells) for i in range(len(_HEAD))]
    return "".join("| " + " | ".join(_fit(c, w) for c, w in zip(row, widths, strict=True)) + " |\n" for row in cells)


def examples(answers: Mapping[str, Sequence[Mapping[str, Any]]], count: int) -> str:
    """The first `count` held-out prompts (not picked) with every policy's answer and the judge's score of it."""
    first = next(iter(answers.values()))
    blocks = []
    for i in range(min(count, len(first))):
        lines = [f"**{_line(first[i]['prompt'])}**\n"]
        for name, rows in answers.items():
            lines.append(f"- {name.upper()} ({rows[i]['gold']:+.2f}): {_line(rows[i]['answer'])}")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _fit(cell: str, width: int) -> str:
    if set(cell) <= {"-", ":"} and len(cell) >= 3:
        return cell[0] + "-" * (width - 2) + cell[-1]
    return cell.ljust(width)


def _line(prompt: str | Sequence[Mapping[str, str]]) -> str:
    """A prompt or an answer on one line."""
    text = prompt if isinstance(prompt, str) else " / ".join(message["content"] for message in prompt)
    return " ".join(text.split())
