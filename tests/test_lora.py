"""Low-rank adapters in the stages: the reference stays SFT, and what was trained is what is loaded."""

from __future__ import annotations

import math

import pytest
import torch

from flows.workspace import merge
from tasks import dpo, ppo, reward, sft
from tasks.language import models, scoring, text
from tasks.language.batches import Completion
from tasks.runtime import config, record, records

ALL = {"kind": "all"}
LORA = {"kind": "lora", "rank": 4, "alpha": 8.0, "merge": True}


def changed(section, **changes):
    return type(section).model_validate(merge(section.model_dump(mode="json"), changes))


def logged(stage, *arguments, **inputs) -> list[dict[str, float]]:
    history = record.History()
    with record.listening(history):
        stage.run(*arguments, **inputs)
    return history.rows


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("trainable", [ALL, LORA], ids=["a copy is the reference", "without adapters it is SFT"])
def test_dpo_starts_at_ln_2(runs, params, tmp_path, monkeypatch, trainable, precision):
    monkeypatch.chdir(tmp_path)
    shared = params.shared.model_copy(update={"precision": precision})
    cfg = changed(params.dpo, trainable=trainable)
    rows = logged(dpo, shared, cfg, sft=runs / "sft", preferences=runs / "preferences", out=tmp_path / "dpo")
    assert rows[0]["dpo/loss"] == pytest.approx(math.log(2), abs=1e-6 if precision == "float32" else 1e-2)
    assert rows[-1]["dpo/loss"] < rows[0]["dpo/loss"]


@pytest.mark.parametrize("trainable", [ALL, LORA], ids=["a copy is the reference", "without adapters it is SFT"])
def test_ppo_starts_at_sft_and_moves_from_it(runs, params, tmp_path, trainable):
    cfg = changed(params.ppo, trainable=trainable, advantage={"critic": {"trainable": trainable, "warmup": 0}})
    inputs = {"sft": runs / "sft", "reward": runs / "reward", "corpus": runs / "corpus"}
    rows = logged(ppo, params.shared, cfg, **inputs, out=tmp_path / "ppo")
    assert rows[0]["kl/sum"] == pytest.approx(0, abs=1e-5)
    assert rows[0]["ppo/first_log_ratio"] < 1e-5
    assert abs(rows[-1]["kl/sum"]) > 1e-4


def log_probs(folder, tokenizer) -> torch.Tensor:
    completions = [Completion(text.prompt_tokens(tokenizer, f"film {n}", "plain"), [40, 41, 42 + n]) for n in range(4)]
    found = scoring.all_log_probs(
        models.load_policy(folder), completions, temperature=1.0, fill=tokenizer.pad_token_id, size=4
    )
    return torch.cat(found)


def test_merged_or_beside_the_weights_it_is_the_same_policy(runs, params, tmp_path):
    tokenizer = text.load_tokenizer(runs / "base")
    for merged in (True, False):
        cfg = changed(params.sft, trainable=LORA | {"merge": merged})
        out = tmp_path / str(merged)
        rows = logged(sft, params.shared, cfg, base=runs / "base", corpus=runs / "corpus", out=out)
        assert rows[-1]["train/loss"] < rows[0]["train/loss"]
        assert (out / "adapter").exists() is not merged
    together, beside = (log_probs(tmp_path / str(merged), tokenizer) for merged in (True, False))
    torch.testing.assert_close(together, beside, atol=1e-5, rtol=1e-5)
    assert (together - log_probs(runs / "base", tokenizer)).abs().max() > 1e-3
    plain = models.load_policy(runs / "base").state_dict()
    frozen = type(models.load_policy(runs / "base")).from_pretrained(tmp_path / "False").state_dict()
    assert all(torch.equal(plain[name], frozen[name]) for name in plain)


@pytest.mark.parametrize("merged", [True, False])
def test_a_reward_model_with_adapters_scores_the_same_after_loading(runs, params, tmp_path, merged):
    cfg = changed(params.reward, trainable=LORA | {"merge": merged}, reuse_activations=False)
    inputs = {"sft": runs / "sft", "samples": runs / "samples", "preferences": runs / "preferences"}
    logged(reward, params.shared, cfg, **inputs, out=tmp_path / "reward")
    rows = records.read_jsonl(runs / "samples/samples.jsonl", "prompt_tokens", "answers")
    answers = [Completion(row["prompt_tokens"], a["tokens"]) for row in rows for a in row["answers"]]
    model = models.load_scalar_model(tmp_path / "reward")
    fill = text.load_tokenizer(tmp_path / "reward").pad_token_id
    scores = scoring.all_scores(model, answers[:256], fill=fill, size=32)
    # They were normalised before they were saved.
    assert float(scores.mean()) == pytest.approx(0, abs=1e-4)
    assert float(scores.std()) == pytest.approx(1, abs=1e-4)


def test_activations_are_reused_only_below_trained_layers(params):
    with pytest.raises(ValueError, match="reuse_activations is true, but trainable is lora: no layer is frozen"):
        changed(params.reward, trainable=LORA, reuse_activations=True)
    assert isinstance(changed(params.sft, trainable=LORA).trainable, config.LowRank)
