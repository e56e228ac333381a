"""Reference log-probabilities: computed once, kept whole, never taken for another's."""

from __future__ import annotations

import pytest
import torch

from tasks.errors import UserError
from tasks.language import drift, models, pairs, scoring
from tasks.language.batches import Completion
from tasks.language.generation import Sampler
from tasks.language.reference import reference_log_probs
from tests.language.conftest import EOS, PAD

COMPLETIONS = [Completion([5, 9, 12], [4, 4, 8, 7]), Completion([3], [2]), Completion([20, 21], [30, 31, 7])]


@pytest.fixture
def folder(llama, tmp_path):
    llama.save_pretrained(tmp_path / "sft")
    return tmp_path / "sft"


def ask(model, folder, completions=COMPLETIONS, **changes):
    options = {"temperature": 1.0, "fill": PAD, "size": 2} | changes
    return reference_log_probs(model, completions, policy=folder, cache=folder.parent / "cache", **options)


def kept(folder):
    return sorted((folder.parent / "cache").iterdir())


def test_they_are_the_sums_over_answer_tokens(llama, folder):
    found, hit = ask(llama, folder)
    assert not hit
    for total, completion in zip(found, COMPLETIONS, strict=True):
        with torch.no_grad():
            log_p = llama(torch.tensor([completion.prompt + completion.answer])).logits[0].log_softmax(-1)
        at = torch.arange(len(completion.prompt) - 1, len(completion) - 1)
        assert total.item() == pytest.approx(log_p[at, torch.tensor(completion.answer)].sum().item(), abs=1e-4)


def test_the_second_time_they_are_read_and_no_model_runs(llama, folder, monkeypatch):
    first, _ = ask(llama, folder)
    monkeypatch.setattr(scoring, "all_log_probs", None)
    second, hit = ask(llama, folder)
    assert hit
    assert torch.equal(first, second)
    (path,) = kept(folder)
    assert path.suffix == ".safetensors"


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "text", "other length"])
def test_a_damaged_file_is_computed_anew(llama, folder, damage):
    first, _ = ask(llama, folder)
    (path,) = kept(folder)
    whole = path.read_bytes()
    if damage == "other length":
        ask(llama, folder, COMPLETIONS[:2])
        (other,) = [p for p in kept(folder) if p != path]
        other.replace(path)
    else:
        spoiled = {"cut": whole[:-2], "flipped": whole[:-1] + bytes([whole[-1] ^ 1]), "emptied": b"", "text": b"x" * 99}
        path.write_bytes(spoiled[damage])
    second, hit = ask(llama, folder)
    assert not hit
    assert torch.equal(first, second)
    assert path.read_bytes() == whole
    assert ask(llama, folder)[1]


def test_no_partial_file_is_left(llama, folder):
    ask(llama, folder)
    assert [path.name for path in kept(folder) if "partial" in path.name] == []


@pytest.mark.parametrize("change", ["weights", "data", "order", "temperature", "size", "precision", "code"])
def test_whatever_decides_the_bits_makes_another_file(llama, folder, change, monkeypatch):
    ask(llama, folder)
    rows, options = COMPLETIONS, {}
    if change == "weights":
        with torch.no_grad():
            llama.get_input_embeddings().weight[39, 0] += 1e-3
        llama.save_pretrained(folder)
    elif change == "data":
        rows = [*COMPLETIONS[:2], Completion([20, 21], [30, 31, 8])]
    elif change == "order":
        rows = COMPLETIONS[::-1]
    elif change == "precision":
        models.cast_parameters(llama, torch.bfloat16)
    elif change == "code":
        (folder.parent / "other.py").write_text("")
        monkeypatch.setattr(models, "__file__", str(folder.parent / "other.py"))
    else:
        options = {"temperature": {"temperature": 0.7}, "size": {"size": 3}}[change]
    assert not ask(llama, folder, rows, **options)[1]
    assert len(kept(folder)) == 2


def test_mismatched_answers_belong_to_another_prompt():
    def pair(prompt, chosen, rejected):
        return pairs.Pair(Completion([prompt], [chosen]), Completion([prompt], [rejected]), "file")

    found = pairs.mismatched([pair(1, 10, 11), pair(1, 12, 13), pair(2, 20, 21)])
    assert [(c.prompt, c.answer) for c in found] == [
        *(([1], [20]), ([1], [21])),
        *(([1], [20]), ([1], [21])),
        *(([2], [10]), ([2], [11])),
    ]
    with pytest.raises(UserError, match="all pairs have one prompt"):
        pairs.mismatched([pair(1, 10, 11), pair(1, 12, 13)])


class TestDrift:
    def sampler(self, tokens):
        return Sampler(tokens, 0.8, EOS, PAD, 64)

    def test_a_policy_has_not_moved_from_itself(self, llama):
        found = drift.sampled_log_ratios(
            llama, llama, [[3], [4, 5]], self.sampler(6), generator=torch.Generator().manual_seed(0)
        )
        assert found.tolist() == [0, 0]

    def test_the_mean_is_the_kl_without_bias(self, llama):
        """Answers of one token: the KL is the sum over the vocabulary of p (log p - log q), by torch.distributions."""
        other = type(llama)(llama.config).eval()
        other.load_state_dict({k: v + 0.03 * torch.randn_like(v) for k, v in llama.state_dict().items()})
        generator = torch.Generator().manual_seed(0)
        ratios = drift.sampled_log_ratios(llama, other, [[3, 9]] * 3000, self.sampler(1), generator=generator)
        with torch.no_grad():
            p, q = (
                torch.distributions.Categorical(logits=m(torch.tensor([[3, 9]])).logits[0, -1] / 0.8)
                for m in (llama, other)
            )
        expected = torch.distributions.kl_divergence(p, q).item()
        assert expected > 0.05
        assert ratios.mean().item() == pytest.approx(expected, abs=4 * ratios.std().item() / 3000**0.5)
