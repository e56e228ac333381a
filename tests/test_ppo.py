"""The stage `ppo`, each of its kinds and options through `run` itself, on a tiny random model."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError

from flows.workspace import merge
from tasks import ppo
from tasks.algorithms.kl import KLCoefficient, k1
from tasks.algorithms.rewards import place_score, replace_missing_eos
from tasks.errors import UserError
from tasks.language.batches import Completion
from tasks.language.critic import NoCritic
from tasks.language.policy_optimisation import Objective, Trainer, _over
from tasks.language.rollout import Rollout
from tasks.runtime import config, record, records, work
from tests.test_resume import Interrupter, digests

CRITIC = {"learning_rate": 1e-3, "warmup": 1, "clip": 0.5, "coefficient": 0.1}
GAE = {"kind": "gae", "discount": 1.0, "trace": 0.95, "whiten": True}
NAMES = ("sft", "reward", "corpus")


def section(params, **changes) -> config.PPO:
    """The tiny profile's section with `changes` laid on it, checked as params.yaml is."""
    return config.PPO.model_validate(merge(params.ppo.model_dump(), {"updates": 2, **changes}))


def run(runs, shared, cfg, out, listener=None):
    listener = listener or Interrupter()
    with record.listening(listener):
        metrics = ppo.run(shared, cfg, **{name: runs / name for name in NAMES}, out=out)
    return listener, metrics


# Together they use every kind and every option once; none of them is the default.
VARIANTS = {
    "gae, critic from sft": {
        "advantage": {
            **GAE,
            "whiten": False,
            "critic": {**CRITIC, "kind": "sft", "trainable": {"kind": "all"}, "clip": None},
        },
        "missing_eos": {"kind": "subtract", "value": 1.0},
        "whiten_rewards": True,
    },
    "gae, value head": {
        "advantage": {**GAE, "critic": {**CRITIC, "kind": "head", "trains_trunk": True}},
        "entropy": 0.01,
        "score_place": "spread",
    },
    "gae, value head alone": {
        "advantage": {**GAE, "critic": {**CRITIC, "kind": "head", "trains_trunk": False, "warmup": 0}},
        "kl_penalty": {"kind": "reward", "estimator": "k2"},
    },
    "reinforce": {
        "advantage": {"kind": "reinforce", "discount": 0.9, "baseline": "none", "whiten": True},
        "missing_eos": {"kind": "none"},
        "dual_clip": 3.0,
    },
    "reinforce, baseline": {
        "advantage": {"kind": "reinforce", "discount": 1.0, "baseline": "batch", "whiten": False},
        "kl_penalty": {"kind": "reward", "estimator": "k3"},
        "pretraining": {"coefficient": 0.5, "batch": 8},
    },
    "rloo": {"advantage": {"kind": "rloo", "group": 2}, "kl": {"kind": "fixed", "coefficient": 0.05}},
    "grpo": {
        "advantage": {"kind": "grpo", "group": 4, "std": "population"},
        "kl_penalty": {"kind": "loss", "estimator": "k3"},
    },
    "grpo, sample std": {
        "advantage": {"kind": "grpo", "group": 4, "std": "sample"},
        "kl_penalty": {"kind": "loss", "estimator": "k2"},
    },
    "grpo, no std": {"advantage": {"kind": "grpo", "group": 8, "std": "none"}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_starts_at_ratio_1_and_moves_the_policy(runs, params, tmp_path, name):
    cfg = section(params, **VARIANTS[name])
    listener, metrics = run(runs, params.shared, cfg, tmp_path / "out")
    moving = [row for row in listener.rows if "ppo/first_log_ratio" in row]
    warmup = cfg.advantage.critic.warmup if cfg.advantage.kind == "gae" else 0
    assert len(moving) == cfg.updates - warmup
    assert all(row["ppo/first_log_ratio"] < 1e-5 for row in moving)
    assert moving[-1]["ppo/ratio_max"] > 1.0001
    assert all(row["ppo/policy_steps"] == 4 for row in moving)  # 16 episodes in minibatches of 8, twice
    assert metrics["skipped"] == 0
    learned = {"ppo/value_loss", "ppo/explained_variance"} & set().union(*listener.rows)
    assert bool(learned) == (cfg.advantage.kind == "gae")
    wanted = {"entropy": "update_entropy", "pretraining": "pretraining_loss"}
    assert all((f"ppo/{figure}" in moving[-1]) == bool(getattr(cfg, key)) for key, figure in wanted.items())
    assert ("ppo/kl_loss" in moving[-1]) == (cfg.kl_penalty.kind == "loss")


def test_each_update_s_log_is_whole(runs, params, tmp_path):
    listener, _ = run(runs, params.shared, section(params), tmp_path / "out")
    assert set(listener.rows[-1]) == {
        *("step", "reward/total", "reward/score", "kl/sum", "kl/coefficient"),
        *("ppo/entropy", "ppo/length", "ppo/finished", "ppo/explained_variance"),
        *("ppo/value_loss", "ppo/value_clip_fraction", "ppo/value_gradient_norm", "ppo/value_learning_rate"),
        *("ppo/value_skipped", "ppo/loss", "ppo/clip_fraction", "ppo/approx_kl", "ppo/ratio_min", "ppo/ratio_max"),
        *("ppo/gradient_norm", "ppo/learning_rate", "ppo/skipped", "ppo/policy_steps", "ppo/first_log_ratio"),
    }


def hand_made() -> Rollout:
    """Two answers, of two tokens and of one: KL .3 + .5 and -.1; scores 2 and 9, of which the second was cut off."""
    mask = torch.tensor([[True, True], [True, False]])
    return Rollout(
        [Completion([1], [2, 3]), Completion([1], [2])],
        mask,
        log_probs=torch.tensor([[-1.0, -1.0], [-1.0, 0.0]]),
        entropies=torch.tensor([[1.0, 2.0], [6.0, 0.0]]),
        reference=torch.tensor([[-1.3, -1.5], [-0.9, 0.0]]),
        values=torch.zeros(2, 2),
        scores=torch.tensor([2.0, 9.0]),
        finished=torch.tensor([True, False]),
    )


def hand_trainer(policy, epochs: int = 1) -> Trainer:
    """Minibatches of one answer; the policy is a stand-in."""
    objective = Objective(
        score=lambda scores, finished: replace_missing_eos(scores, finished, value=-1.0),
        place=place_score,
        penalty=k1,
        scale=lambda rewards, mask: 2 * rewards,
        advantages=lambda rewards, rollout: (rewards, rewards),
    )
    return Trainer(
        policy,
        NoCritic(),
        objective,
        KLCoefficient(0.5, target=0.5, horizon=8),
        updates=1,
        passes=SimpleNamespace(batch=1, micro_batch=1, epochs=epochs, warmup=0.0),
        generator=torch.Generator().manual_seed(0),
    )


def test_a_policy_that_moved_too_far_is_not_asked_again_in_this_update():
    """Of six minibatches it takes the first, leaves the second out, and rests in the other four."""
    asked: list[str] = []
    taken = iter([True, False, True, True, True, True])

    def step(*_, **__):
        asked.append("step")
        return {"loss": 0.5}, next(taken)

    hand_trainer(SimpleNamespace(step=step, rest=lambda: asked.append("rest")), epochs=3).update(0, hand_made())
    assert asked == ["step", "step", "rest", "rest", "rest", "rest"]


def test_the_figures_of_an_update_by_hand():
    trainer = hand_trainer(SimpleNamespace(rest=lambda: None, step=lambda *_, **__: ({"loss": 0.5}, True)))
    figures = trainer.update(0, hand_made())
    # KL per answer (.8 - .1) / 2; rewards 2 - .5 * .8 and -1 + .5 * .1
    expected = {
        "reward/total": (1.6 - 0.95) / 2,
        "reward/score": 5.5,
        "kl/sum": 0.35,
        "kl/coefficient": 0.5,
        "ppo/entropy": 3.0,
        "ppo/length": 1.5,
        "ppo/finished": 0.5,
        "ppo/loss": 0.5,
    }
    assert figures == pytest.approx(expected)
    # Ziegler: error .35 / .5 - 1 = -.3, held to -.2; two of eight episodes
    assert trainer.kl.value == pytest.approx(0.5 * (1 - 0.2 * 2 / 8))


def test_figures_of_the_steps_become_those_of_the_update():
    steps = [
        {"loss": 1.0, "ratio_min": 0.5, "ratio_max": 1.1, "skipped": 0.0, "policy_steps": 1.0},
        {"loss": math.nan, "ratio_min": 0.25, "ratio_max": 2.0, "skipped": 1.0, "policy_steps": 1.0},
        {"loss": 2.0, "ratio_min": 0.9, "ratio_max": 1.0, "skipped": 1.0},
    ]
    expected = {"loss": 1.5, "ratio_min": 0.25, "ratio_max": 2.0, "skipped": 1.0, "policy_steps": 2.0}
    assert _over(steps) == pytest.approx(
        {f"ppo/{n}": v for n, v in {**expected, "first_log_ratio": math.log(2)}.items()}
    )


def test_beyond_the_update_s_kl_limit_the_policy_waits_for_the_next_rollout(runs, params, tmp_path):
    listener, _ = run(runs, params.shared, section(params, updates=3, update_kl_limit=1e-9), tmp_path / "out")
    assert [row.get("ppo/policy_steps") for row in listener.rows] == [None, 1, 1]
    assert all("ppo/value_gradient_norm" in row for row in listener.rows)


def test_a_rollout_too_far_from_sft_ends_the_stage(runs, params, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(work.INTERVAL, "0")
    cfg = section(params, updates=3, kl_limit=1e-6)
    with (
        work.using("ppo", "print"),
        pytest.raises(UserError, match=r"update 3: the KL to SFT is .* ppo.kl_limit \(1e-06\).*ppo/print/00000002\. "),
    ):
        run(runs, params.shared, cfg, tmp_path / "out")


def test_no_answer_that_ends_is_said(runs, params, tmp_path):
    shared = params.shared.model_copy(update={"answer_tokens": 1})
    listener, _ = run(runs, shared, section(params), tmp_path / "out")
    assert [row["ppo/finished"] for row in listener.rows] == [0, 0]
    assert [note.split(":")[:2] for note in listener.notes] == [
        [f"update {n}", " none of 16 answers ends with an end-of-sequence token"] for n in (1, 2)
    ]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_resuming_with_a_fixed_coefficient_and_everything_else_gives_the_same_bytes(
    runs, params, tmp_path, monkeypatch, precision
):
    """Head on the trunk and demonstrations; tests/test_resume.py has the adaptive coefficient and a critic apart."""
    monkeypatch.chdir(tmp_path)
    changes = VARIANTS["gae, value head"] | {
        "kl": {"kind": "fixed", "coefficient": 0.05},
        "pretraining": {"coefficient": 0.5, "batch": 24},
    }
    cfg = section(params, updates=3, **changes)
    shared = params.shared.model_copy(update={"precision": precision})
    monkeypatch.setenv(work.INTERVAL, "1e9")
    whole, metrics = run(runs, shared, cfg, tmp_path / "whole")
    monkeypatch.setenv(work.INTERVAL, "0")
    resumed = Interrupter()
    with work.using("ppo", "print"):
        with pytest.raises(KeyboardInterrupt):
            run(runs, shared, cfg, tmp_path / "resumed", Interrupter(3))
        assert run(runs, shared, cfg, tmp_path / "resumed", resumed)[1] == metrics
    assert digests(tmp_path / "resumed") == digests(tmp_path / "whole")
    assert resumed.rows == whole.rows


def test_demonstrations_that_are_not_there_are_refused(runs, params, tmp_path):
    cfg = section(params, pretraining={"coefficient": 1.0, "batch": 65})
    with pytest.raises(UserError, match=r"holds 64 demonstrations, expected at least ppo.pretraining.batch \(65\)"):
        run(runs, params.shared, cfg, tmp_path / "out")
    records.write_jsonl(tmp_path / "corpus/prompts.jsonl", records.read_jsonl(runs / "corpus/prompts.jsonl"))
    inputs = {"sft": runs / "sft", "reward": runs / "reward", "corpus": tmp_path / "corpus"}
    with pytest.raises(UserError, match=r"demonstrations\.jsonl holds 0 demonstrations"):
        ppo.run(params.shared, cfg, **inputs, out=tmp_path / "out")


def test_a_group_needs_fewer_prompts(runs, params, tmp_path):
    cfg = section(params, episodes=512, advantage={"kind": "rloo", "group": 4})
    with pytest.raises(UserError, match=r"64 training prompts, .* ppo.episodes \(512\) / ppo.advantage.group \(4\)"):
        run(runs, params.shared, cfg, tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"advantage": {"kind": "rloo", "group": 1}}, "a group of one has nothing to compare"),
        ({"advantage": {"kind": "grpo", "group": 1, "std": "none"}}, "a group of one has nothing to compare"),
        ({"advantage": {"kind": "rloo", "group": 3}}, r"episodes \(16\) must be a multiple of advantage.group \(3\)"),
        ({"advantage": {"kind": "rloo", "group": 2}, "score_place": "spread"}, "spread changes nothing with .* rloo"),
        ({"advantage": {"kind": "rloo", "group": 2}, "whiten_rewards": True}, "pay an answer for its length"),
        ({"kl_penalty": {"kind": "loss", "estimator": "k1"}}, "gradient of k1 as a loss is 0 in the mean"),
        ({"dual_clip": 1.2}, r"dual_clip \(1.2\) must be above 1 \+ clip \(1.2\)"),
        ({"updates": 1}, r"advantage.critic.warmup \(1\) leaves no update to the policy"),
        ({"optimiser": {"batch": 5}}, "must be a multiple of optimiser.batch"),
        ({"kl": {"horizon": 3.0}}, "would turn negative"),
        ({"advantage": {"kind": "rloo", "group": 2, "critic": CRITIC}}, "Extra inputs are not permitted"),
        (
            {
                "episodes": 1,
                "optimiser": {"batch": 1},
                "advantage": {"kind": "reinforce", "discount": 1.0, "baseline": "batch", "whiten": False},
            },
            "compares answers of a rollout, and episodes is 1",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(params, changes, reason):
    with pytest.raises(ValidationError, match=reason):
        section(params, **changes)
