"""What the stages promise beyond their losses, on a tiny random model: the invariants of RLHF, through `run` itself."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tasks import dpo, ppo, sft
from tasks.errors import UserError
from tasks.language import models, text
from tasks.runtime import config, record, records


class Listener:
    """Keeps what a stage logs."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log(self, step: int, total: int, values: Any, timing: Any) -> None:
        self.rows.append(dict(values))

    def note(self, text: str) -> None: ...

    def table(self, name: str, rows: Any) -> None: ...


def logged(stage, *arguments, **inputs) -> list[dict[str, float]]:
    listener = Listener()
    with record.listening(listener):
        stage.run(*arguments, **inputs)
    return listener.rows


def test_sft_learns(runs, params, tmp_path):
    rows = logged(sft, params.shared, params.sft, base=runs / "base", corpus=runs / "corpus", out=tmp_path / "sft")
    assert rows[0]["train/loss"] == pytest.approx(math.log(262), rel=0.05)  # 262 tokens, a random model knows nothing
    assert rows[-1]["train/loss"] < 0.9 * rows[0]["train/loss"]


def test_too_few_demonstrations_fail(runs, params, tmp_path):
    few = params.sft.model_copy(update={"demonstrations": 3})
    with pytest.raises(UserError, match=r"3 demonstrations do not fill one batch \(sft.optimiser.batch: 16\)"):
        sft.run(params.shared, few, base=runs / "base", corpus=runs / "corpus", out=tmp_path / "sft")


def test_sampled_ids_reach_the_trainer_as_ids(runs):
    """A pair's tokens are those that were sampled, not an encoding of their text."""
    sampled = {
        (row["id"], tuple(a["tokens"]))
        for row in records.read_jsonl(runs / "samples/samples.jsonl")
        for a in row["answers"]
    }
    pairs = [p for p in records.read_jsonl(runs / "preferences/pairs.jsonl") if p["origin"] == "sampled"]
    assert pairs
    for pair in pairs:
        assert {(pair["id"], tuple(pair[f"{side}_tokens"])) for side in ("chosen", "rejected")} <= sampled


def test_the_best_by_the_judge_is_chosen(runs):
    """The judge counts characters: the chosen answer is the longest of the prompt, the rejected the shortest."""
    texts = {
        row["id"]: [a["text"] for a in row["answers"]] for row in records.read_jsonl(runs / "samples/samples.jsonl")
    }
    for pair in records.read_jsonl(runs / "preferences/pairs.jsonl"):
        if pair["origin"] == "sampled":
            lengths = [len(t) for t in texts[pair["id"]]]
            assert (len(pair["chosen"]), len(pair["rejected"])) == (max(lengths), min(lengths))


def test_both_origins_stand_in_both_splits_and_no_prompt_in_two(runs):
    pairs = records.read_jsonl(runs / "preferences/pairs.jsonl")
    assert {(p["origin"], p["split"]) for p in pairs} == {
        (o, s) for o in ("sampled", "file") for s in ("train", "held_out")
    }
    splits: dict[str, set[str]] = {}
    for pair in pairs:
        splits.setdefault(pair["prompt"], set()).add(pair["split"])
    assert all(len(found) == 1 for found in splits.values())


def test_every_sampled_prompt_is_ranked_by_the_judge_in_the_split_of_its_pairs(runs):
    """The judge counts characters; a pair's sides stand among the answers of its prompt's ranking."""
    ranked = {row["id"]: row for row in records.read_jsonl(runs / "preferences/ranked.jsonl")}
    for row in records.read_jsonl(runs / "samples/samples.jsonl"):
        found = [(a["tokens"], a["score"]) for a in ranked[row["id"]]["answers"]]
        assert found == [(a["tokens"], float(len(a["text"]))) for a in row["answers"]]
    for pair in records.read_jsonl(runs / "preferences/pairs.jsonl"):
        if pair["origin"] == "sampled":
            assert ranked[pair["id"]]["split"] == pair["split"]


def test_scores_are_normalised_on_answers_of_sft(runs):
    """Mean 0 and deviation 1 over the reference answers, by the saved model alone."""
    from tasks.language import scoring
    from tasks.reward import _reference_answers

    model, tokenizer = models.load_scalar_model(runs / "reward"), text.load_tokenizer(runs / "reward")
    scores = scoring.all_scores(model, _reference_answers(runs / "samples"), fill=tokenizer.pad_token_id, size=16)
    assert scores.mean() == pytest.approx(0, abs=1e-4)
    assert scores.std() == pytest.approx(1, abs=1e-4)


def test_dpo_starts_at_ln_2_and_widens_the_margin(runs, params, tmp_path):
    rows = logged(
        dpo, params.shared, params.dpo, sft=runs / "sft", preferences=runs / "preferences", out=tmp_path / "dpo"
    )
    assert rows[0]["dpo/loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert rows[0]["dpo/gradient_norm"] > 0
    assert rows[0]["dpo/chosen_drift"] == pytest.approx(0, abs=1e-4)
    assert rows[-1]["dpo/margin"] > rows[0]["dpo/margin"]


def test_dpo_refuses_pairs_without_a_prompt(runs, params, tmp_path):
    rows = [row | {"prompt_tokens": []} for row in records.read_jsonl(runs / "preferences/pairs.jsonl")]
    records.write_jsonl(tmp_path / "preferences/pairs.jsonl", rows)
    with pytest.raises(UserError, match="pairs without a prompt"):
        dpo.run(params.shared, params.dpo, sft=runs / "sft", preferences=tmp_path / "preferences", out=tmp_path / "dpo")


def run_ppo(runs, params, out, **changes) -> list[dict[str, float]]:
    section = params.ppo.model_copy(update=changes)
    inputs = {"sft": runs / "sft", "reward": runs / "reward", "corpus": runs / "corpus"}
    return logged(ppo, params.shared, section, **inputs, out=out)


def still(params, rate=1e-30):
    return params.ppo.optimiser.model_copy(update={"learning_rate": rate})


def test_the_ratio_is_one_before_the_first_update(runs, params, tmp_path):
    rows = run_ppo(runs, params, tmp_path / "ppo")
    moving = [row for row in rows if "ppo/first_log_ratio" in row]
    assert len(moving) == params.ppo.updates - params.ppo.advantage.critic.warmup
    assert all(row["ppo/first_log_ratio"] < 1e-5 for row in moving)
    assert moving[-1]["ppo/ratio_max"] > 1.001


def test_without_a_learning_rate_ratio_and_kl_stay(runs, params, tmp_path):
    rows = run_ppo(runs, params, tmp_path / "ppo", optimiser=still(params))
    for row in rows[params.ppo.advantage.critic.warmup :]:
        assert row["ppo/ratio_max"] == pytest.approx(1, abs=1e-5)
        assert row["ppo/ratio_min"] == pytest.approx(1, abs=1e-5)
        assert row["kl/sum"] == pytest.approx(0, abs=1e-4)
    saved, start = (models.load_policy(folder).state_dict() for folder in (tmp_path / "ppo", runs / "sft"))
    assert all(torch.equal(saved[name], start[name]) for name in start)


def test_the_kl_coefficient_steps_as_ziegler_says(runs, params, tmp_path):
    """KL 0 against target 6: error -.2, so each rollout of 16 episodes multiplies by 1 - .2 * 16 / 1000."""
    adaptive = config.AdaptiveKL(kind="adaptive", coefficient=0.02, target=6.0, horizon=1000.0)
    rows = run_ppo(runs, params, tmp_path / "ppo", optimiser=still(params), kl=adaptive)
    expected = [0.02 * (1 - 0.2 * 16 / 1000) ** n for n in range(params.ppo.updates)]
    assert [row["kl/coefficient"] for row in rows] == pytest.approx(expected)


def test_the_critic_learns_first(runs, params, tmp_path):
    critic = params.ppo.advantage.critic.model_copy(update={"warmup": 2})
    advantage = params.ppo.advantage.model_copy(update={"critic": critic})
    rows = run_ppo(runs, params, tmp_path / "ppo", advantage=advantage)
    assert ["ppo/loss" in row for row in rows] == [False, False, True]
    assert rows[1]["kl/sum"] == pytest.approx(0, abs=1e-4)


def test_too_few_prompts_fail(runs, params, tmp_path):
    with pytest.raises(UserError, match=r"64 training prompts, expected at least ppo.episodes \(128\)"):
        run_ppo(runs, params, tmp_path / "ppo", episodes=128)
