import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from scipy.stats import entropy as scipy_entropy

from tasks.algorithms import logprobs
from tasks.algorithms.logprobs import entropy, nucleus_logits, token_log_probs
from tasks.algorithms.masking import masked_sum
from tests.algorithms.checks import draws, garbage

TOKENS = torch.tensor([[0, 4, 2], [1, 1, 3]])


def test_token_t_is_scored_by_the_logits_of_its_own_index():
    # Three distributions, one token each: .7, .1, .6. Shifted by one it would be another number.
    p = torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.3, 0.6, 0.1]]])
    found = token_log_probs(p.log(), torch.tensor([[0, 1, 1]]), temperature=1.0)
    torch.testing.assert_close(found.exp(), torch.tensor([[0.7, 0.1, 0.6]]))


def test_padding_changes_no_summed_log_prob_and_the_answer_hangs_on_its_prompt():
    # A bigram language model: row = token before, column = token. Output at t-1 scores token t.
    table = torch.tensor(
        [[0.1, 0.2, 0.3, 0.4], [0.5, 0.2, 0.2, 0.1], [0.25, 0.25, 0.25, 0.25], [0.4, 0.3, 0.2, 0.1]]
    ).log()

    def summed(prompt, answer, pads):
        ids = torch.tensor([prompt + answer + [3] * pads])
        counts = torch.tensor([[False] * (len(prompt) - 1) + [True] * len(answer) + [False] * pads])
        return masked_sum(token_log_probs(table[ids[:, :-1]], ids[:, 1:], temperature=1.0), counts).item()

    # Prompt 0 1, answer 2 0: p(2|1) p(0|2) = .2 * .25
    assert summed([0, 1], [2, 0], pads=0) == pytest.approx(math.log(0.05))
    assert summed([0, 1], [2, 0], pads=5) == pytest.approx(math.log(0.05))
    # Prompt 1 0: p(2|0) = .3 in place of .2
    assert summed([1, 0], [2, 0], pads=2) == pytest.approx(math.log(0.075))


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.5])
def test_log_probs_are_scipys(temperature):
    logits = draws(2, 3, 5, seed=1) * 4
    every = log_softmax(logits.double().numpy() / temperature, axis=-1)
    expected = np.take_along_axis(every, TOKENS.numpy()[..., None], -1)[..., 0]
    np.testing.assert_allclose(token_log_probs(logits, TOKENS, temperature=temperature).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.5])
def test_entropy_is_scipys(temperature):
    logits = draws(2, 3, 5, seed=2) * 4
    p = np.exp(log_softmax(logits.numpy() / temperature, axis=-1))
    np.testing.assert_allclose(entropy(logits, temperature=temperature).numpy(), scipy_entropy(p, axis=-1), rtol=1e-4)


def test_entropy_of_a_uniform_distribution_is_the_log_of_its_size():
    torch.testing.assert_close(entropy(torch.zeros(1, 2, 8), temperature=0.3), torch.full((1, 2), math.log(8)))


def test_a_forbidden_token_adds_no_entropy_and_no_nan():
    logits = torch.tensor([[[0.0, 0.0, -math.inf]]], requires_grad=True)
    found = entropy(logits, temperature=1.0)
    found.sum().backward()
    assert found.item() == pytest.approx(math.log(2))
    assert logits.grad.tolist() == [[[0, 0, 0]]]


@pytest.mark.parametrize("chunk", [1, 10, 30, 1 << 22])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_gradients_are_the_numerical_ones(monkeypatch, chunk, temperature):
    monkeypatch.setattr(logprobs, "_CHUNK", chunk)
    logits = draws(2, 3, 5, seed=3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: token_log_probs(x, TOKENS, temperature=temperature), logits)
    assert torch.autograd.gradcheck(lambda x: entropy(x, temperature=temperature), logits)


@pytest.mark.parametrize("chunk", [2 * 21, 2 * 7, 1])
def test_chunks_change_no_bit(monkeypatch, chunk):
    logits = draws(5, 3, 7, seed=4)
    tokens = torch.arange(15).reshape(5, 3) % 7
    whole = token_log_probs(logits, tokens, temperature=0.9), entropy(logits, temperature=0.9)
    monkeypatch.setattr(logprobs, "_CHUNK", chunk)
    assert torch.equal(token_log_probs(logits, tokens, temperature=0.9), whole[0])
    assert torch.equal(entropy(logits, temperature=0.9), whole[1])


@pytest.mark.parametrize("shape", [(1, 64, 32), (64, 1, 32), (8, 8, 32)])
def test_no_working_copy_is_larger_than_a_chunk(monkeypatch, shape):
    monkeypatch.setattr(logprobs, "_CHUNK", 4 * 32)
    sizes = []
    scaled = logprobs._log_softmax
    monkeypatch.setattr(logprobs, "_log_softmax", lambda x, t: (sizes.append(x.numel()), scaled(x, t))[1])
    logits = draws(*shape, seed=9).requires_grad_()
    tokens = torch.zeros(shape[:2], dtype=torch.long)
    (token_log_probs(logits, tokens, temperature=1.0) + entropy(logits, temperature=1.0)).sum().backward()
    assert max(sizes) <= 4 * 32
    assert sum(sizes) == 4 * logits.numel()


def test_raising_a_token_raises_its_log_prob():
    logits = draws(2, 3, 5, seed=5).requires_grad_()
    token_log_probs(logits, TOKENS, temperature=1.0).sum().backward()
    chosen = torch.nn.functional.one_hot(TOKENS, 5).bool()
    assert (logits.grad[chosen] > 0).all()
    assert (logits.grad[~chosen] < 0).all()


def test_bfloat16_logits_are_summed_in_float32():
    logits = draws(2, 3, 1000, seed=6).bfloat16().requires_grad_()
    found = token_log_probs(logits, TOKENS, temperature=1.0)
    assert found.dtype == torch.float32
    assert entropy(logits, temperature=1.0).dtype == torch.float32
    torch.testing.assert_close(found, token_log_probs(logits.float(), TOKENS, temperature=1.0), atol=0, rtol=0)
    found.sum().backward()
    assert logits.grad.dtype == torch.bfloat16


def test_no_float32_copy_is_kept_for_the_backward_pass():
    logits = draws(2, 3, 50, seed=7).bfloat16().requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x), x)[1], lambda x: x):
        token_log_probs(logits, TOKENS, temperature=1.0)
        entropy(logits, temperature=1.0)
    assert {x.dtype for x in kept if x.numel() == logits.numel()} == {torch.bfloat16}


@garbage
def test_a_token_without_gradient_sends_none_back_whatever_its_logits(garbage):
    logits = draws(2, 3, 5, seed=8)
    logits[0, 1] = garbage
    logits.requires_grad_()
    counts = torch.tensor([[True, False, True], [True, True, True]])
    loss = masked_sum(token_log_probs(logits, TOKENS, temperature=1.0), counts)
    loss = loss + masked_sum(entropy(logits, temperature=1.0), counts)
    loss.backward()
    assert loss.isfinite()
    assert (logits.grad[0, 1] == 0).all()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_that_is_not_positive_is_an_error(temperature):
    with pytest.raises(ValueError, match="temperature"):
        token_log_probs(torch.zeros(2, 3, 5), TOKENS, temperature=temperature)
    with pytest.raises(ValueError, match="temperature"):
        entropy(torch.zeros(2, 3, 5), temperature=temperature)


def test_shapes_that_do_not_fit_are_an_error():
    with pytest.raises(ValueError, match="tokens have shape"):
        token_log_probs(torch.zeros(2, 4, 5), TOKENS, temperature=1.0)


NUCLEUS = [0.15, 0.5, 0.1, 0.25]
"""Probabilities of four tokens; likeliest first 1, 3, 0, 2, adding up to .5, .75, .9, 1."""


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.3, [1]), (0.49, [1]), (0.51, [1, 3]), (0.74, [1, 3]), (0.76, [0, 1, 3]), (1.0, [0, 1, 2, 3])]
)
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(top_p, kept):
    found = nucleus_logits(torch.tensor(NUCLEUS).log(), temperature=1.0, top_p=top_p)
    assert found.isfinite().nonzero().flatten().tolist() == kept
    torch.testing.assert_close(found[kept].exp(), torch.tensor(NUCLEUS)[kept])


def test_what_the_nucleus_leaves_is_renormalised():
    """Of .5 and .25 remain 2/3 and 1/3."""
    found = nucleus_logits(torch.tensor(NUCLEUS).log(), temperature=1.0, top_p=0.7).softmax(-1)
    torch.testing.assert_close(found, torch.tensor([0, 2 / 3, 0, 1 / 3]))


def test_the_temperature_comes_before_the_nucleus():
    """At temperature .5 the probabilities are squared: .5^2 / (.5^2 + .25^2 + .15^2 + .1^2) = .725 alone reaches .7."""
    found = nucleus_logits(torch.tensor(NUCLEUS).log(), temperature=0.5, top_p=0.7)
    assert found.isfinite().tolist() == [False, True, False, False]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.8])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.95])
def test_the_nucleus_is_that_of_transformers(temperature, top_p):
    from transformers import TemperatureLogitsWarper, TopPLogitsWarper

    logits = draws(20, 50, seed=4) * 3
    warped = TopPLogitsWarper(top_p)(None, TemperatureLogitsWarper(temperature)(None, logits))
    found = nucleus_logits(logits, temperature=temperature, top_p=top_p)
    assert torch.equal(found.isfinite(), warped.isfinite())
    torch.testing.assert_close((found / temperature).log_softmax(-1), warped.log_softmax(-1))


def test_of_equally_likely_tokens_the_first_are_kept():
    assert nucleus_logits(torch.zeros(8), temperature=1.0, top_p=0.3).isfinite().tolist() == [True] * 3 + [False] * 5
    forbidden = torch.tensor([-torch.inf, 0.0, 0.0])
    assert nucleus_logits(forbidden, temperature=1.0, top_p=0.999).isfinite().tolist() == [False, True, True]


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 0.0), (1.0, 1.1), (1.0, math.nan), (0.0, 0.5)])
def test_a_nucleus_that_cannot_be_is_an_error(temperature, top_p):
    with pytest.raises(ValueError, match="top_p"):
        nucleus_logits(torch.zeros(3), temperature=temperature, top_p=top_p)
