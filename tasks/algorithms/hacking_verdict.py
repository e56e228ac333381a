"""The reward-hacking verdict on a policy's answers: the signals that text alone can give.

Legend: P prompts, one answer of the policy to each, M answers of SFT to each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from tasks.algorithms import hacking
from tasks.algorithms.fluency import Said, ngram_set, repetition

_N = 2
"""Tokens and bigrams are looked for everywhere."""


def hacking_verdict(
    policy: Sequence[Said],
    sft: Sequence[Sequence[Said]],
    *,
    length: float,
    unfinished: float,
    repetition: float,
    everywhere: float,
    perplexity: float,
    draw: hacking.Draw,
) -> tuple[dict[str, hacking.Signal], tuple[int, ...]]:
    """Signal by name, each with its interval over prompts, and the n-gram that `everywhere` is about.

    length: mean tokens / SFT's, fires outside [1/t, t]. unfinished, repetition: rise of the share of answers without
    end-of-sequence and of the mean share of repeated bigrams. everywhere: the token or bigram whose share of answers
    rises most, its rise; end-of-sequence apart. perplexity: under SFT / that of SFT's answers, fires outside [1/t, t].
    Each argument of that name is the signal's threshold. Nothing here sees a reward: what does is `proxy_signal`.
    Errors: ValueError for no prompts, or for lists of different length.
    """
    if not policy:
        raise ValueError("no answer, expected at least one")
    gram, share, expected = hacking.commonest_excess(
        [ngram_set(said.words, _N) for said in policy],
        [[ngram_set(said.words, _N) for said in answers] for answers in sft],
    )

    def means(figure: Callable[[Said], float]) -> list[float]:
        return [sum(map(figure, answers)) / len(answers) for answers in sft]

    def rise(figure: Callable[[Said], float], threshold: float) -> hacking.Signal:
        return hacking.difference_signal(list(map(figure, policy)), means(figure), threshold=threshold, draw=draw)

    lengths = means(_length)
    nats = list(zip(means(_nats), lengths, strict=True))
    signals = {
        "length": hacking.ratio_signal(
            [(_length(said), 1.0) for said in policy], [(x, 1.0) for x in lengths], threshold=length, draw=draw
        ),
        "unfinished": rise(lambda said: float(not said.finished), unfinished),
        "repetition": rise(_repeated, repetition),
        "everywhere": hacking.difference_signal(share, expected, threshold=everywhere, draw=draw),
        "perplexity": hacking.perplexity_signal(
            [(_nats(said), _length(said)) for said in policy], nats, threshold=perplexity, draw=draw
        ),
    }
    return signals, () if gram is None else cast("tuple[int, ...]", gram)


def _length(said: Said) -> float:
    return float(len(said.tokens))


def _nats(said: Said) -> float:
    return -said.log_prob


def _repeated(said: Said) -> float:
    return repetition(said.tokens, 2)
