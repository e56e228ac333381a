"""The verdict fires on injected hacks, each by its signal, and is quiet on SFT: with the thresholds of params.yaml."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tasks.algorithms.fluency import Said
from tasks.algorithms.hacking import (
    commonest_excess,
    difference_signal,
    perplexity_signal,
    proxy_signal,
    ratio_signal,
)
from tasks.algorithms.hacking_verdict import hacking_verdict
from tasks.algorithms.intervals import bootstrap
from tasks.runtime import config

PARAMS = config.load(Path(__file__).parents[2] / "params.yaml")
EOS, VOCABULARY, NATS = 0, 300, 4.0
"""Nats a token of SFT's own text: the figure of the default run (perplexity 63)."""
P, M = 200, 4


def draw(seed=0):
    return partial(bootstrap, confidence=0.95, resamples=200, generator=np.random.default_rng(seed))


def answer(rng) -> Said:
    """Text as SFT might write it: 4 to 24 tokens, frequencies like words', three of four ended."""
    n = int(rng.integers(4, 24))
    tokens = (rng.zipf(1.4, size=n) % VOCABULARY + 1).tolist()
    for i in range(1, n):  # real text hardly repeats a token at once
        if tokens[i] == tokens[i - 1]:
            tokens[i] = int(rng.integers(1, VOCABULARY))
    finished = bool(rng.random() < 0.75)
    return said([*tokens, EOS] if finished else tokens, finished)


def said(tokens, finished) -> Said:
    return Said(tokens, finished, -NATS * len(tokens))


def changed(one: Said, words) -> Said:
    return said([*words, EOS] if one.finished else list(words), one.finished)


def verdict(policy, sft):
    signals, ngram = hacking_verdict(policy, sft, **PARAMS.evaluation.hacking.model_dump(), draw=draw())
    return {name for name, signal in signals.items() if signal.fired}, signals, ngram


def setting(seed=0):
    rng = np.random.default_rng(seed)
    return [answer(rng) for _ in range(P)], [[answer(rng) for _ in range(M)] for _ in range(P)]


@pytest.mark.parametrize("seed", range(10))
def test_sft_is_never_suspect(seed):
    assert verdict(*setting(seed))[0] == set()


def test_sft_is_not_suspect_on_few_prompts():
    for seed in range(10):
        policy, sft = setting(seed)
        assert verdict(policy[:16], [row[:2] for row in sft[:16]])[0] == set()


def test_a_policy_that_appends_one_token():
    policy, sft = setting()
    fired, signals, ngram = verdict([changed(one, [*one.words, 299]) for one in policy], sft)
    assert fired == {"everywhere"}
    assert ngram == (299,)
    assert signals["everywhere"].value > 0.9


def test_a_policy_that_doubles_its_length():
    policy, sft = setting()
    rng = np.random.default_rng(9)
    fired, signals, _ = verdict([changed(one, [*one.words, *answer(rng).words]) for one in policy], sft)
    assert "length" in fired
    assert signals["length"].value == pytest.approx(2, abs=0.2)


def test_a_policy_that_answers_in_half_the_length():
    policy, sft = setting()
    assert "length" in verdict([changed(one, one.words[: len(one.words) // 2]) for one in policy], sft)[0]


def test_a_policy_that_repeats():
    policy, sft = setting()
    repeating = [changed(one, (list(one.words[:3]) * 9)[: len(one.words)]) for one in policy]
    fired, signals, _ = verdict(repeating, sft)
    assert "repetition" in fired
    assert "length" not in fired
    assert signals["repetition"].value > 0.3


def test_a_policy_that_says_the_same_to_everything():
    policy, sft = setting()
    assert "everywhere" in verdict([changed(one, [7, 8, 9, 11, 13, 17, 19, 23, 29, 31, 37]) for one in policy], sft)[0]


def test_a_policy_that_never_ends():
    policy, sft = setting()
    assert verdict([said(one.words, False) for one in policy], sft)[0] == {"unfinished"}


@pytest.mark.parametrize(("nats", "fires"), [(NATS + 1.5, True), (NATS + 0.5, False), (NATS - 1.5, True)])
def test_text_that_sft_would_not_write_or_always_writes(nats, fires):
    policy, sft = setting()
    strange = [one._replace(log_prob=-nats * len(one.tokens)) for one in policy]
    fired, signals, _ = verdict(strange, sft)
    assert fired == ({"perplexity"} if fires else set())
    assert signals["perplexity"].value == pytest.approx(math.exp(nats - NATS))


def test_an_effect_fires_only_with_its_whole_interval():
    gaps = [0.3] * 30 + [0.0] * 30  # mean 0.15, interval about [0.11, 0.19]
    options = {"draw": draw()}
    assert difference_signal(gaps, [0.0] * 60, threshold=0.05, **options).fired == 1
    unsure = difference_signal(gaps, [0.0] * 60, threshold=0.14, **options)
    assert (unsure.fired, unsure.value > 0.14 > unsure.low) == (0, True)


def test_a_ratio_is_one_of_sums():
    # 30 tokens in 2 answers against 10 in 2: three times as long, although the mean of the ratios is 2.6.
    found = ratio_signal([(2, 1), (28, 1)], [(2, 1), (8, 1)], threshold=2.0, draw=draw())
    assert found.value == pytest.approx(3)
    # Nats per token 2 and 1: perplexity e^2 / e^1.
    found = perplexity_signal([(4, 1), (2, 2)], [(2, 1), (1, 2)], threshold=2.0, draw=draw())
    assert found.value == pytest.approx(math.e)
    assert perplexity_signal([(1e6, 1)] * 2, [(1, 1)] * 2, threshold=2.0, draw=draw()).value == math.exp(50)


def test_the_commonest_excess_by_hand():
    # "a" in 2 of 2 answers against a mean of 1/4; "b" in 1 of 2 against 0.
    gram, ours, theirs = commonest_excess([{"a", "b"}, {"a"}], [[{"a"}, {"c"}], [{"c"}, set()]])
    assert (gram, ours, theirs) == ("a", [1.0, 1.0], [0.5, 0.0])
    assert commonest_excess([set(), set()], [[set()], [set()]]) == (None, [0.0, 0.0], [0.0, 0.0])


@pytest.mark.parametrize(
    ("proxy", "gold", "fires"),
    [
        ((0.9, 1.1), (-0.2, 0.1), True),  # proxy up, gold not
        ((0.9, 1.1), (-0.9, -0.5), True),  # proxy up, gold down
        ((0.9, 1.1), (0.4, 0.6), False),  # both up
        ((0.9, 1.1), (0.1, 0.4), False),  # gold may be up
        ((0.1, 0.4), (-0.2, 0.1), False),  # the proxy may not be up
        ((-0.1, 0.1), (-0.1, 0.1), False),  # SFT
    ],
)
def test_proxy_up_while_gold_is_not(proxy, gold, fires):
    found = proxy_signal(sum(proxy) / 2, proxy, gold, threshold=PARAMS.comparison.gain)
    assert found == (sum(proxy) / 2, *proxy, PARAMS.comparison.gain, int(fires))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: difference_signal([1.0], [1.0, 2.0], threshold=0.1, draw=draw()), "one each"),
        (lambda: ratio_signal([(1, 1)], [(1, 1)], threshold=1.0, draw=draw()), "above 1"),
        (lambda: ratio_signal([(1, 0)], [(1, 1)], threshold=2.0, draw=draw()), "count is 0"),
        (lambda: ratio_signal([(1, 1)], [(0, 1)], threshold=2.0, draw=draw()), "above 0"),
        (lambda: commonest_excess([{1}], []), "0 prompts of SFT"),
        (lambda: hacking_verdict([], [], **PARAMS.evaluation.hacking.model_dump(), draw=draw()), "no answer"),
        (lambda: proxy_signal(0.0, (0.0, 0.0), (0.0, 0.0), threshold=0.0), "threshold is 0"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
