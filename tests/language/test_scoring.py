"""Log-probabilities, values and scores of completions against transformers' own outputs, one sequence at a time."""

from __future__ import annotations

import pytest
import torch

from tasks.language import models, scoring
from tasks.language.batches import Completion, by_length, epoch_order, pad
from tests.language.conftest import PAD

COMPLETIONS = [
    Completion([5, 9, 12], [4, 4, 8, 7]),
    Completion([3], [2]),
    Completion([20, 21, 22, 23, 24], [30, 31, 7]),
]


def by_hand(model, completion, temperature=1.0):
    """log p of the answer's tokens from a lone, unpadded forward pass: logits of position t-1 score token t."""
    ids = torch.tensor([completion.prompt + completion.answer])
    with torch.no_grad():
        log_p = (model(ids).logits / temperature).log_softmax(-1)[0]
    start = len(completion.prompt)
    return torch.stack([log_p[start + t - 1, token] for t, token in enumerate(completion.answer)])


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_of_the_answer_given_its_prompt(model, temperature):
    found = scoring.all_log_probs(model, COMPLETIONS, temperature=temperature, fill=PAD, size=3)
    for completion, log_probs in zip(COMPLETIONS, found, strict=True):
        torch.testing.assert_close(log_probs, by_hand(model, completion, temperature), atol=1e-5, rtol=1e-5)


def test_padding_and_company_change_nothing(model):
    for fill, size in [(PAD, 1), (39, 3), (7, 2)]:
        found = scoring.all_log_probs(model, COMPLETIONS, temperature=1.0, fill=fill, size=size)
        for completion, log_probs in zip(COMPLETIONS, found, strict=True):
            torch.testing.assert_close(log_probs, by_hand(model, completion), atol=1e-5, rtol=1e-5)


def test_the_prompt_conditions_the_answer(model):
    other = [Completion([8, 2, 1], COMPLETIONS[0].answer)]
    same = scoring.all_log_probs(model, COMPLETIONS[:1], temperature=1.0, fill=PAD, size=1)[0]
    assert not torch.allclose(
        same, scoring.all_log_probs(model, other, temperature=1.0, fill=PAD, size=1)[0], atol=1e-3
    )


def test_entropies_are_those_of_the_distributions_that_scored(model):
    found = scoring.all_log_probs_and_entropies(model, COMPLETIONS, temperature=0.6, fill=PAD, size=3)
    for completion, (_, entropies) in zip(COMPLETIONS, found, strict=True):
        ids = torch.tensor([completion.prompt + completion.answer])
        with torch.no_grad():
            logits = model(ids).logits[0, len(completion.prompt) - 1 : -1] / 0.6
        torch.testing.assert_close(entropies, torch.distributions.Categorical(logits=logits).entropy())


def test_gradients_of_padded_rows_equal_those_of_single_rows(llama):
    def gradient(groups):
        llama.zero_grad()
        for group in groups:
            batch = pad([COMPLETIONS[i] for i in group], fill=PAD, device=llama.device)
            scoring.answer_log_probs(llama, batch, temperature=1.0).sum().backward()
        return llama.get_input_embeddings().weight.grad.clone()

    torch.testing.assert_close(gradient([[0, 1, 2]]), gradient([[2], [0], [1]]), atol=1e-4, rtol=1e-4)


def test_an_empty_prompt_has_no_log_prob_but_a_score(tmp_path, llama):
    bare = pad([Completion([], [4, 5])], fill=PAD, device=llama.device)
    with pytest.raises(ValueError, match="empty prompt"):
        scoring.answer_log_probs(llama, bare, temperature=1.0)
    llama.save_pretrained(tmp_path)
    reward = models.new_scalar_model(tmp_path, torch.Generator().manual_seed(1))
    assert scoring.last_scalars(reward, bare).shape == (1,)


def test_an_empty_answer_is_refused():
    with pytest.raises(ValueError, match=r"completion 1 .* empty answer"):
        pad([Completion([1], [2]), Completion([1], [])], fill=PAD, device=torch.device("cpu"))


class TestScalarModel:
    @pytest.fixture
    def reward(self, llama, tmp_path):
        llama.save_pretrained(tmp_path)
        return models.new_scalar_model(tmp_path, torch.Generator().manual_seed(1))

    def test_the_score_is_the_scalar_of_the_last_real_token(self, reward):
        scores = scoring.all_scores(reward, COMPLETIONS, fill=PAD, size=3)
        for completion, score in zip(COMPLETIONS, scores, strict=True):
            with torch.no_grad():
                hidden = reward.model(torch.tensor([completion.prompt + completion.answer])).last_hidden_state
            torch.testing.assert_close(score, hidden[0, -1] @ reward.score.weight[0], atol=1e-5, rtol=1e-5)

    def test_the_value_of_step_t_is_read_before_token_t(self, reward):
        completion = COMPLETIONS[0]
        (values,) = scoring.all_values(reward, [completion], fill=PAD, size=1)
        with torch.no_grad():
            hidden = reward.model(torch.tensor([completion.prompt + completion.answer])).last_hidden_state[0]
        start = len(completion.prompt)
        expected = hidden[start - 1 : start - 1 + len(completion.answer)] @ reward.score.weight[0]
        torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-5)

    def test_normalisation_is_part_of_the_saved_model(self, reward, tmp_path):
        from tasks.language.text import byte_tokenizer

        raw = scoring.all_scores(reward, COMPLETIONS, fill=PAD, size=3)
        reward.config.reward_mean, reward.config.reward_std = 0.25, 2.0
        models.save(reward, byte_tokenizer(), tmp_path / "reward")
        loaded = models.load_scalar_model(tmp_path / "reward")
        found = scoring.all_scores(loaded, COMPLETIONS, fill=PAD, size=3)
        torch.testing.assert_close(found, (raw - 0.25) / 2, atol=1e-6, rtol=1e-6)

    def test_the_head_starts_with_the_spread_of_ziegler(self, reward):
        """std 1/sqrt(d+1), d = 32 hidden units: of 32 draws the sample deviation lies within a third of .174."""
        assert reward.score.weight.std().item() == pytest.approx(1 / 33**0.5, rel=0.34)

    def test_a_bias_of_the_head_starts_at_0(self):
        head = torch.nn.Linear(32, 1)
        models.start_head(head, torch.Generator().manual_seed(1))
        assert head.bias.tolist() == [0]
        # 10,000 hidden units: the sample deviation lies within 3 % of 1/sqrt(10,001).
        wide = torch.nn.Linear(10_000, 1)
        models.start_head(wide, torch.Generator().manual_seed(1))
        assert wide.weight.std().item() == pytest.approx(10_001**-0.5, rel=0.03)

    @pytest.mark.parametrize(("fill", "size"), [(PAD, 1), (39, 3), (7, 2)])
    def test_padding_and_company_change_no_score(self, reward, fill, size):
        alone = torch.cat([scoring.scorer(reward, fill=PAD)([completion]) for completion in COMPLETIONS]).detach()
        found = scoring.all_raw_scores(scoring.scorer(reward, fill=fill), COMPLETIONS, size=size)
        torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-5)
        order = [2, 0, 1]
        shuffled = scoring.all_raw_scores(scoring.scorer(reward, fill=fill), [COMPLETIONS[i] for i in order], size=size)
        torch.testing.assert_close(shuffled, alone[order], atol=1e-5, rtol=1e-5)

    def test_learned_positions_are_frozen_with_the_layers(self, tmp_path):
        from transformers import AutoModelForCausalLM, GPT2Config

        config = GPT2Config(vocab_size=40, n_embd=32, n_layer=3, n_head=4, n_positions=64, pad_token_id=PAD)
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
        model = models.new_scalar_model(tmp_path, torch.Generator().manual_seed(1))
        models.freeze_below(model, 1)
        trained = {n for n, p in model.named_parameters() if p.requires_grad and not n.startswith("transformer.h.2.")}
        assert trained == {"transformer.ln_f.weight", "transformer.ln_f.bias", "score.weight"}

    def test_only_the_last_layers_train(self, reward):
        models.freeze_below(reward, 1)
        names = {n for n, p in reward.named_parameters() if p.requires_grad}
        assert {n for n in names if not n.startswith("model.layers.2.")} == {"model.norm.weight", "score.weight"}


def test_logits_of_the_short_way_are_the_model_s_own(model):
    """The vocabulary matrix sees answer positions only; a scaled head must take the long way and give the same."""
    batch = pad(COMPLETIONS, fill=PAD, device=model.device)
    with torch.no_grad():
        expected = model(batch.tokens).logits[batch.before]
        torch.testing.assert_close(models.answer_logits(model, batch)[0], expected)
        assert models._plain_head(model)


def test_an_architecture_that_changes_its_logits_takes_the_long_way():
    from transformers import AutoModelForCausalLM, CohereConfig

    torch.manual_seed(0)
    config = CohereConfig(
        vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4, logit_scale=0.5, pad_token_id=0, bos_token_id=1, eos_token_id=7,
    )  # fmt: skip
    scaled = AutoModelForCausalLM.from_config(config).eval()
    batch = pad(COMPLETIONS, fill=PAD, device=scaled.device)
    with torch.no_grad():
        torch.testing.assert_close(models.answer_logits(scaled, batch)[0], scaled(batch.tokens).logits[batch.before])


def test_groups_hold_every_row_once_longest_first():
    groups = list(by_length(COMPLETIONS, 2))
    assert groups == [[2, 0], [1]]


def test_an_epoch_visits_every_row_once_and_drops_the_rest_of_a_batch():
    batches = epoch_order(10, 3, torch.Generator().manual_seed(0))
    assert [len(b) for b in batches] == [3, 3, 3]
    assert len({i for b in batches for i in b}) == 9
    with pytest.raises(ValueError, match="2 rows do not fill one batch of 3"):
        epoch_order(2, 3, torch.Generator())
