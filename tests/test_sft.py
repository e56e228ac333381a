"""Supervised fine-tuning through `run`, on a tiny random model: what is learned from; packing changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, MambaConfig

from flows.workspace import merge
from tasks import sft
from tasks.errors import UserError
from tasks.language import models, pretrained, text
from tasks.runtime import config, record, records

ROOT = Path(__file__).parents[1]


class Listener:
    """Keeps what a stage logs and notes."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.notes: list[str] = []

    def log(self, step: int, total: int, values: Any, timing: Any) -> None:
        self.rows.append(dict(values))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def table(self, name: str, rows: Any) -> None: ...


@pytest.fixture(scope="module")
def params() -> config.Params:
    read = [yaml.safe_load((ROOT / name).read_text(encoding="utf-8")) for name in ("params.yaml", "profiles/tiny.yaml")]
    return config.Params.model_validate(merge(*read))


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    model, tokenizer = pretrained.random_llama(1)
    models.save(model, tokenizer, folder)
    return folder


def corpus(folder: Path, rows: list[tuple[str, str]]) -> Path:
    found = [{"prompt": prompt, "answer": answer} for prompt, answer in rows]
    records.write_jsonl(folder / "demonstrations.jsonl", found)
    return folder


ROWS = [(f"film {n}", " it is " + "good " * (n % 3) + str(n)) for n in range(16)]


def train(params, base, folder, rows=ROWS, shared=None, **changes):
    """Metrics, logged rows, notes and weights of a run in batches of four."""
    listener = Listener()
    optimiser = params.sft.optimiser.model_copy(
        update={"batch": 4, "micro_batch": 4, "epochs": 1, **changes.pop("optimiser", {})}
    )
    section = params.sft.model_copy(update={"optimiser": optimiser, **changes})
    made = corpus(folder / "corpus", rows)
    with record.listening(listener):
        metrics = sft.run(shared or params.shared, section, base=base, corpus=made, out=folder / "sft")
    return metrics, listener, models.load_policy(folder / "sft").state_dict()


@pytest.mark.parametrize("other", [{"packing": True}, {"optimiser": {"micro_batch": 1}}], ids=["packed", "split"])
def test_neither_packing_nor_micro_batches_change_what_is_learned(params, base, tmp_path, other):
    _, plain, weights = train(params, base, tmp_path / "a", packing=False)
    _, changed, other_weights = train(params, base, tmp_path / "b", **({"packing": False} | other))
    for row, other_row in zip(plain.rows, changed.rows, strict=True):
        assert other_row["train/loss"] == pytest.approx(row["train/loss"], rel=1e-5)
        assert other_row["train/gradient_norm"] == pytest.approx(row["train/gradient_norm"], rel=1e-4)
    for name, weight in weights.items():
        torch.testing.assert_close(other_weights[name], weight, rtol=0, atol=1e-5)


def test_packing_makes_fewer_rows(params, base, tmp_path, monkeypatch):
    rows = []
    monkeypatch.setattr(
        sft, "pack", lambda found, real=sft.pack, **options: rows.append(len(found)) or real(found, **options)
    )
    train(params, base, tmp_path, rows=[("film", " good " * (1 + 2 * (n % 4 == 0))) for n in range(16)], packing=True)
    # Tokens: prompt 4, answers 7 or (cut) 16, so 20 or 11 a demonstration: no two short ones fit into 20.
    assert sum(rows) == 16
    rows.clear()
    train(params, base, tmp_path, rows=[("film", "g" * (1 + 14 * (n % 4 == 0))) for n in range(16)], packing=True)
    # 20 or 6: with 20 to a row, three short ones share one, and most batches hold a long one.
    assert 4 <= sum(rows) < 16


def test_a_model_that_mixes_rows_is_refused_before_training(params, tmp_path):
    torch.manual_seed(0)
    tokenizer = text.byte_tokenizer()
    settings = MambaConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, state_size=4)
    models.save(AutoModelForCausalLM.from_config(settings), tokenizer, tmp_path / "base")
    with pytest.raises(UserError, match=r"sft\.packing: is true, expected false for MambaForCausalLM"):
        train(params, tmp_path / "base", tmp_path, packing=True)


def test_the_loss_is_a_token_mean_over_the_whole_batch(params, base, tmp_path):
    """By transformers' own forward pass: the sum over all answer tokens of the batch, over their number."""
    rows = ROWS[:4]
    _, listener, _ = train(params, base, tmp_path, rows=rows, optimiser={"micro_batch": 2})
    model, tokenizer = models.load_policy(base), text.load_tokenizer(base)
    total, tokens = 0.0, 0
    for prompt, answer in rows:
        ids = tokenizer(prompt + answer[:16])["input_ids"] + ([tokenizer.eos_token_id] if len(answer) < 16 else [])
        with torch.no_grad():
            log_p = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        for at in range(len(prompt), len(ids)):
            total -= float(log_p[at - 1, ids[at]])
            tokens += 1
    assert listener.rows[0]["train/loss"] == pytest.approx(total / tokens, rel=1e-5)


def test_what_has_nothing_to_learn_from_is_dropped_and_counted(params, base, tmp_path):
    """prompt_tokens 8 and answer_tokens 4 make rows of 12 byte tokens."""
    shared = params.shared.model_copy(update={"prompt_tokens": 8, "answer_tokens": 4, "format": "plain"})
    lost = [("p" * 12, "good"), ("p" * 13, "good"), ("film", "<eos>"), ("film", "<eos>"), ("film", "<eos>")]
    cut = [("film", "good"), ("p" * 9, "god")]  # five tokens into four, four into three
    whole = [("film", "god"), ("p" * 8, "god")]
    metrics, listener, _ = train(params, base, tmp_path, rows=[*lost, *cut, *whole], shared=shared)
    assert metrics["dropped"] == {"the answer has no token": 3, "the prompt leaves no room for the answer": 2}
    assert metrics["demonstrations"] == 4
    assert metrics["cut_answers"] == 2
    assert metrics["supervised_tokens"] == 4 + 3 + 4 + 4
    assert listener.notes == [
        "dropped 3: the answer has no token",
        "dropped 2: the prompt leaves no room for the answer",
    ]


def test_a_prompt_without_a_token_is_dropped(params, base, tmp_path):
    shared = params.shared.model_copy(update={"format": "plain"})
    metrics, _, _ = train(params, base, tmp_path, rows=[("", "good"), *ROWS], shared=shared)
    assert list(metrics["dropped"].values()) == [1]
    assert metrics["demonstrations"] == 16


def test_when_too_few_are_left_the_message_says_what_was_dropped(params, base, tmp_path):
    with pytest.raises(UserError, match=r"3 demonstrations do not fill one batch .*; 13 dropped, the answer has no"):
        train(params, base, tmp_path, rows=[*ROWS[:3], *[("film", "<eos>")] * 13])
