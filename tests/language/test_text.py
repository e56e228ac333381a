"""One BOS, one EOS, the template where there is one."""

from __future__ import annotations

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from tasks.algorithms.supervised import negative_log_likelihood
from tasks.errors import UserError
from tasks.language import scoring, text
from tasks.language.batches import Completion, pad

BOS, EOS, USER, ASSISTANT = 257, 258, 260, 261
"""Ids of the byte tokenizer; the id of a byte is its value."""


def tokenizer(*, bos=False, eos=False, template=None):
    """The byte tokenizer, which adds nothing, made to add a BOS or an EOS as many public ones do."""
    made = text.byte_tokenizer()
    pieces = " ".join([*(["<bos>"] if bos else []), "$A", *(["<eos>"] if eos else [])])
    made._tokenizer.post_processor = TemplateProcessing(single=pieces, special_tokens=[("<bos>", BOS), ("<eos>", EOS)])
    made.chat_template = template
    return made


def ids(said):
    return list(said.encode())


class TestPrompt:
    def test_a_bos_is_added_where_the_tokenizer_adds_one(self):
        assert text.prompt_tokens(tokenizer(bos=True), "hi", "plain") == [BOS, *ids("hi")]
        assert text.prompt_tokens(tokenizer(), "hi", "plain") == ids("hi")

    def test_a_bos_in_the_text_is_not_doubled(self):
        assert text.prompt_tokens(tokenizer(bos=True), "<bos>hi", "plain") == [BOS, *ids("hi")]

    def test_a_bos_of_the_template_is_not_doubled(self):
        template = "<bos>{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|>"
        found = text.prompt_tokens(tokenizer(bos=True, template=template), "hi", "chat")
        assert found == [BOS, USER, *ids("hi"), ASSISTANT]

    def test_an_eos_that_the_tokenizer_adds_does_not_end_the_prompt(self):
        assert text.prompt_tokens(tokenizer(bos=True, eos=True), "hi", "plain") == [BOS, *ids("hi")]

    def test_auto_takes_the_template_where_there_is_one(self):
        template = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|>"
        assert text.prompt_tokens(tokenizer(template=template), "hi", "auto") == [USER, *ids("hi"), ASSISTANT]
        assert text.prompt_tokens(tokenizer(bos=True), "hi", "auto") == [BOS, *ids("hi")]

    def test_messages_need_a_template(self):
        chat = [{"role": "user", "content": "hi"}]
        for style in ("plain", "auto"):
            with pytest.raises(UserError, match=f"chat template .it is {style}"):
                text.prompt_tokens(tokenizer(), chat, style)
        with pytest.raises(UserError, match="no chat template; use plain"):
            text.prompt_tokens(tokenizer(), chat, "chat")


class TestAnswer:
    @pytest.mark.parametrize("made", [tokenizer(), tokenizer(bos=True, eos=True)], ids=["bare", "adds both"])
    @pytest.mark.parametrize("said", ["good", "good<eos>", "good<eos><eos>", "good<eos> and more"])
    def test_it_ends_with_one_eos(self, made, said):
        assert text.answer_tokens(made, said, 24) == [*ids("good"), EOS]

    @pytest.mark.parametrize(("limit", "expected"), [(5, "good."), (4, "good"), (1, "g"), (0, ""), (-3, "")])
    def test_one_that_is_cut_gets_none(self, limit, expected):
        """good is 4 tokens, its end the fifth."""
        found = text.answer_tokens(tokenizer(), "good", limit)
        assert found == [*ids("good"), EOS][: max(limit, 0)]
        assert (EOS in found) == (expected == "good.")


def supervised(model, completion, fill):
    """How much the loss asks of each token's probability at each place: -d loss / d log p, [answer tokens]."""
    batch = pad([completion, Completion([1, 2, 3], [4, 5, 6, 8, 9])], fill=fill, device=model.device)
    log_probs = scoring.answer_log_probs(model, batch, temperature=1.0)
    log_probs.retain_grad()
    loss = negative_log_likelihood(log_probs, batch.mask, count=8)
    loss.backward()
    return batch, -log_probs.grad[0], loss.item()


def test_eos_is_supervised_once_also_where_pad_is_eos(llama):
    """The answer's own EOS (id 7) counts like any token; the same id behind it, as padding, does not."""
    completion, eos = Completion([9], [4, 3, 7]), 7
    batch, weight, loss = supervised(llama, completion, fill=eos)
    assert batch.tokens[0].tolist() == [9, 4, 3, 7, 7, 7, 7, 7]
    torch.testing.assert_close(weight, torch.tensor([1, 1, 1, 0, 0]) / 8)
    assert int((batch.answers == eos).sum()) == 1
    assert supervised(llama, completion, fill=0)[2] == pytest.approx(loss, rel=1e-6)


def test_only_the_answer_is_supervised(llama):
    """The prompt's own tokens have no loss: the count is the answers' tokens, each of them 1 / 8 of it."""
    _, weight, _ = supervised(llama, Completion([9, 9, 9, 9], [4, 3, 7]), fill=0)
    assert weight.sum().item() == pytest.approx(3 / 8)
