"""The sampling engine against transformers' `generate` and against the distribution itself."""

from __future__ import annotations

import pytest
import torch

from tasks.language.batches import Completion
from tasks.language.generation import Sampler, _draw, sample
from tasks.language.scoring import all_log_probs
from tests.language.conftest import EOS, PAD

PROMPTS = [[5, 9, 12], [3], [20, 21, 22, 23, 24, 25, 26], [11, 4], [30, 31, 32, 33]]


def sampler(temperature=1.0, tokens=12, batch=64, top_p=1.0):
    return Sampler(tokens, temperature, EOS, PAD, batch, top_p)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def reference(model, prompt, tokens=12):
    found = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=tokens, do_sample=False, eos_token_id=EOS, pad_token_id=PAD,
    )  # fmt: skip
    return found[0, len(prompt) :].tolist()


def test_greedy_equals_generate_token_for_token(model):
    found = sample(model, PROMPTS, sampler(temperature=0))
    assert [answers[0].tokens for answers in found] == [reference(model, prompt) for prompt in PROMPTS]


def test_an_answer_does_not_depend_on_what_it_is_padded_or_batched_with(model):
    together = sample(model, PROMPTS, sampler(), answers=2, generator=seeded())
    apart = sample(model, PROMPTS, sampler(batch=2), answers=2, generator=seeded())
    assert [[a.tokens for a in answers] for answers in together] == [[a.tokens for a in answers] for answers in apart]


def test_log_probs_are_those_of_the_distribution_sampled(model):
    found = sample(model, PROMPTS, sampler(temperature=0.7), answers=3, generator=seeded())
    completions = [Completion(p, a.tokens) for p, answers in zip(PROMPTS, found, strict=True) for a in answers]
    scored = all_log_probs(model, completions, temperature=0.7, fill=PAD, size=4)
    for answer, log_probs in zip([a for answers in found for a in answers], scored, strict=True):
        torch.testing.assert_close(torch.tensor(answer.log_probs), log_probs, atol=2e-5, rtol=1e-5)


def test_answers_end_with_end_of_sequence_or_at_the_limit(model):
    for answers in sample(model, PROMPTS * 8, sampler(), answers=4, generator=seeded()):
        for answer in answers:
            assert EOS not in answer.tokens[:-1]
            assert answer.finished == (answer.tokens[-1] == EOS)
            assert answer.finished or len(answer.tokens) == 12


def test_rows_that_end_early_change_nothing_for_the_rest(model):
    """With many rows some end at once and leave the batch; the survivors' cache must follow them."""
    found = sample(model, PROMPTS * 8, sampler(), generator=seeded())
    lengths = {len(answers[0].tokens) for answers in found}
    assert len(lengths) > 3
    completions = [Completion(p, a[0].tokens) for p, a in zip(PROMPTS * 8, found, strict=True)]
    scored = all_log_probs(model, completions, temperature=1.0, fill=PAD, size=1)
    for answers, log_probs in zip(found, scored, strict=True):
        torch.testing.assert_close(torch.tensor(answers[0].log_probs), log_probs, atol=2e-5, rtol=1e-5)


def test_same_seed_same_answers_other_seed_others(model):
    runs = [sample(model, PROMPTS, sampler(), answers=4, generator=seeded(s)) for s in (1, 1, 2)]
    tokens = [[a.tokens for answers in run for a in answers] for run in runs]
    assert tokens[0] == tokens[1] != tokens[2]


def test_the_draw_inverts_the_cumulative_distribution():
    """p = (.5, .25, .25, 0): u below .5 is token 0, up to .75 token 1, then token 2; token 3 never."""
    logits = torch.tensor([0.5, 0.25, 0.25, 0.0]).log().expand(6, 4)
    uniform = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.76, 1 - 1e-12], dtype=torch.float64)
    chosen, log_probs = _draw(logits, sampler(), uniform)
    assert chosen.tolist() == [0, 0, 1, 1, 2, 2]
    torch.testing.assert_close(log_probs, torch.tensor([0.5, 0.5, 0.25, 0.25, 0.25, 0.25]).log())


def test_a_first_token_of_probability_zero_is_never_drawn():
    logits = torch.tensor([[-torch.inf, 0.0, 0.0]])
    assert _draw(logits, sampler(), torch.zeros(1, dtype=torch.float64))[0].item() == 1


def test_temperature_sharpens_as_the_formula_says(llama):
    """Frequencies of the first token over 4000 draws against softmax(logits / T), chi-square below its 99.9 % point."""
    from scipy.stats import chi2

    prompt, draws = [5, 9, 12], 4000
    found = sample(llama, [prompt], sampler(temperature=0.5, tokens=1, batch=draws), answers=draws, generator=seeded(5))
    counts = torch.bincount(torch.tensor([a.tokens[0] for a in found[0]]), minlength=40).double()
    with torch.no_grad():
        expected = (llama(torch.tensor([prompt])).logits[0, -1].double() / 0.5).softmax(-1) * draws
    common = expected >= 5
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    wanted = torch.cat([expected[common], expected[~common].sum()[None]])
    assert ((observed - wanted) ** 2 / wanted).sum() < chi2.ppf(0.999, len(wanted) - 1)


def test_with_top_p_the_truncated_distribution_is_sampled_and_scored(model):
    """Every token lies in the nucleus and is scored within it: the nucleus from transformers' warpers."""
    from transformers import TemperatureLogitsWarper, TopPLogitsWarper

    found = sample(model, PROMPTS, sampler(temperature=0.8, top_p=0.6), answers=3, generator=seeded())
    for prompt, answers in zip(PROMPTS, found, strict=True):
        for answer in answers:
            with torch.no_grad():
                logits = model(torch.tensor([prompt + answer.tokens])).logits[0, len(prompt) - 1 : -1]
            warped = TopPLogitsWarper(0.6)(None, TemperatureLogitsWarper(0.8)(None, logits))
            expected = warped.log_softmax(-1).gather(1, torch.tensor(answer.tokens)[:, None]).squeeze(1)
            torch.testing.assert_close(torch.tensor(answer.log_probs), expected, atol=2e-5, rtol=1e-5)
    whole = sample(model, PROMPTS, sampler(temperature=0.8), answers=3, generator=seeded())
    assert [[a.tokens for a in answers] for answers in whole] != [[a.tokens for a in answers] for answers in found]


def test_a_narrow_nucleus_is_greedy(model):
    narrow = sample(model, PROMPTS, sampler(top_p=1e-6), generator=seeded())
    greedy = sample(model, PROMPTS, sampler(temperature=0))
    assert [a[0].tokens for a in narrow] == [a[0].tokens for a in greedy]


def test_an_empty_prompt_is_refused(llama):
    with pytest.raises(ValueError, match="prompt 1 has no token"):
        sample(llama, [[3], []], sampler(), generator=seeded())
