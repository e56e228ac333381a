"""Log-probabilities and entropies of tokens."""

from __future__ import annotations

import pytest
import torch
from trl.trainer.utils import entropy_from_logits, selective_log_softmax, selective_log_softmax_and_entropy

from parity import tiny
from parity.comparison import TOLERANCE, agree, agree_on, gradient
from parity.trl_1_16.trainer import fused
from tasks.algorithms.logprobs import entropy, token_log_probs
from tasks.language.batches import pad
from tasks.language.scoring import answer_logits_and_log_probs

T = 0.7
precision = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def _logits(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    logits = 4 * torch.randn(3, 7, 100, generator=generator, dtype=torch.float64)
    return logits.to(dtype), torch.randint(100, (3, 7), generator=generator)


@precision
def test_selective_log_softmax(dtype):
    logits, tokens = _logits(dtype)
    agree_on(
        "log-probability of a token",
        lambda z: token_log_probs(z, tokens, temperature=T),
        lambda z: selective_log_softmax(z, tokens, temperature=T),
        [logits],
    )


@precision
def test_entropy(dtype):
    logits, tokens = _logits(dtype)
    agree_on("entropy", lambda z: entropy(z, temperature=1.0), entropy_from_logits, [logits])
    agree_on(
        "entropy",
        lambda z: entropy(z, temperature=T),
        lambda z: selective_log_softmax_and_entropy(z, tokens, temperature=T)[1],
        [logits],
    )


def test_a_model_s_tokens():
    """From ids to numbers: the shift by one, the prompt left out, the padding, the temperature."""
    ours = tiny.policy(1)
    theirs = fused(ours, temperature=T)
    completions = tiny.answers(6, seed=1)
    batch = pad(completions, fill=tiny.PAD, device=tiny.CPU)
    labels = torch.full_like(batch.tokens, -100)
    for row, c in enumerate(completions):
        labels[row, len(c.prompt) : len(c)] = torch.tensor(c.answer)
    attention = (batch.tokens != tiny.PAD).long()
    scored = theirs(input_ids=batch.tokens, attention_mask=attention, labels=labels, fused_lm_head=True)
    logits, log_probs = answer_logits_and_log_probs(ours, batch, temperature=T)
    counted = scored.label_mask
    agree("log-probability of a model's answer tokens", log_probs[batch.mask], scored.log_probs[counted])
    agree("entropy of a model's distributions", entropy(logits, temperature=T).squeeze(0), scored.entropy[counted])
    weights = torch.randn(int(counted.sum()), generator=torch.Generator().manual_seed(2))
    agree(
        "log-probability of a model's answer tokens",
        gradient((log_probs[batch.mask] * weights).sum(), ours),
        gradient((scored.log_probs[counted] * weights).sum(), theirs),
    )


def test_theirs_rounds_where_ours_does_not():
    """bfloat16 logits: TRL returns bfloat16 log-probabilities on the CPU, ours are float32 of the same logits."""
    logits, tokens = _logits(torch.bfloat16)
    exact = logits.double().log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    ours = token_log_probs(logits, tokens, temperature=1.0)
    theirs = selective_log_softmax(logits, tokens)
    assert (ours.double() - exact).abs().max() < TOLERANCE
    assert (theirs.double() - exact).abs().max() > 1e-3


def test_theirs_lets_garbage_in_a_masked_slot_spoil_the_gradient():
    logits, tokens = _logits(torch.float32)
    logits[1, 2] = torch.nan
    mask = torch.ones_like(tokens).bool()
    mask[1, 2] = False
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    torch.where(mask, token_log_probs(ours, tokens, temperature=1.0), 0.0).sum().backward()
    selective_log_softmax(theirs, tokens, row_mask=mask).sum().backward()
    assert theirs.grad[1, 2].isnan().all()
    assert (ours.grad[1, 2] == 0).all()
    agree("log-probability of a token", ours.grad[mask], theirs.grad[mask])


def test_theirs_has_no_entropy_where_a_token_is_forbidden():
    logits = torch.tensor([[[0.0, 0.0, -torch.inf]]])
    assert entropy_from_logits(logits).isnan().all()
    torch.testing.assert_close(entropy(logits, temperature=1.0), torch.tensor([[2.0]]).log())
