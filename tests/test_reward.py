"""The reward stage on a tiny random model: what it learns from, what it reports, what it saves."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pydantic import ValidationError
from scipy.special import log_expit, logsumexp

from flows.workspace import merge
from tasks import reward
from tasks.errors import UserError
from tasks.language import models, pretrained, scoring, text
from tasks.language.batches import Completion
from tasks.runtime import config, record, records

ROOT = Path(__file__).parents[1]
NONE: dict[str, Any] = {"kind": "none"}
LISTWISE = {"kind": "listwise"}


def pairwise(margin=NONE, label_smoothing=0.0) -> dict[str, Any]:
    return {"kind": "pairwise", "margin": margin, "label_smoothing": label_smoothing}


class Listener:
    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log(self, step: int, total: int, values: Any, timing: Any) -> None:
        self.rows.append(dict(values))

    def note(self, text: str) -> None: ...

    def table(self, name: str, rows: Any) -> None: ...


@pytest.fixture(scope="module")
def params() -> config.Params:
    read = [yaml.safe_load((ROOT / name).read_text(encoding="utf-8")) for name in ("params.yaml", "profiles/tiny.yaml")]
    return config.Params.model_validate(merge(*read))


def section(params: config.Params, **changes: Any) -> config.Reward:
    return config.Reward.model_validate(merge(params.reward.model_dump(mode="json"), changes))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """sft (a random model), samples of 24 prompts with 4 answers, all their pairs and rankings, 12 pairs of a file."""
    folder = tmp_path_factory.mktemp("made")
    model, tokenizer = pretrained.random_llama(1)
    models.save(model, tokenizer, folder / "sft")
    generator = torch.Generator().manual_seed(2)
    samples, pairs, ranked = [], [], []
    for n in range(24):
        prompt = [70, 71, 72 + n]
        answers = [torch.randint(5, 200, (2 + k,), generator=generator).tolist() for k in range(4)]
        scores = torch.randn(4, generator=generator).tolist()
        place = {"id": str(n), "prompt_tokens": prompt, "origin": "sampled", "split": "train" if n % 3 else "held_out"}
        samples.append({"id": str(n), "prompt_tokens": prompt, "answers": [{"tokens": a} for a in answers]})
        ranked.append(place | {"answers": [{"tokens": a, "score": s} for a, s in zip(answers, scores, strict=True)]})
        for a, b in itertools.combinations(range(4), 2):
            best, worst = (a, b) if scores[a] > scores[b] else (b, a)
            sides = {"chosen_tokens": answers[best], "rejected_tokens": answers[worst]}
            pairs.append(place | sides | {"margin": scores[best] - scores[worst]})
    for n in range(12):
        sides = {"chosen_tokens": [9, 9, 30 + n], "rejected_tokens": [8, 30 + n]}
        place = {"id": f"f{n}", "prompt_tokens": [60, 61 + n], "origin": "file", "margin": None}
        pairs.append(place | sides | {"split": "held_out" if n < 4 else "train"})
    records.write_jsonl(folder / "samples/samples.jsonl", samples)
    records.write_jsonl(folder / "preferences/pairs.jsonl", pairs)
    records.write_jsonl(folder / "preferences/ranked.jsonl", ranked)
    return folder


def trained(made: Path, params: config.Params, out: Path, cfg: config.Reward | None = None, **inputs: Path):
    """(figures, history) of a run of the stage."""
    listener = Listener()
    given = {name: made / name for name in ("sft", "samples", "preferences")} | inputs
    with record.listening(listener):
        figures = reward.run(params.shared, cfg or params.reward, **given, out=out)
    return figures, listener.rows


@pytest.fixture(scope="module")
def default(made, params, tmp_path_factory):
    out = tmp_path_factory.mktemp("reward") / "reward"
    return trained(made, params, out), out


def held_out(made, origin):
    rows = records.read_jsonl(made / "preferences/pairs.jsonl")
    return [r for r in rows if r["split"] == "held_out" and r["origin"] == origin]


def test_the_saved_model_scores_as_the_trained_one_did(default, made):
    """Every held-out figure of the stage, from the checkpoint alone: one answer at a time, by transformers."""
    (figures, _), out = default
    model = models.load_scalar_model(out)
    assert (model.config.reward_mean, model.config.reward_std) == (figures["reward_mean"], figures["reward_std"])
    for origin, found in figures["held_out"].items():
        margins = []
        for row in held_out(made, origin):
            sides = [torch.tensor([row["prompt_tokens"] + row[f"{side}_tokens"]]) for side in ("chosen", "rejected")]
            with torch.no_grad():
                chosen, rejected = (float(model(ids).logits) for ids in sides)
            margins.append(chosen - rejected)
        assert found["pairs"] == len(margins)
        assert found["accuracy"] == sum(m > 0 for m in margins) / len(margins)
        assert found["log_loss"] == pytest.approx(-log_expit(margins).mean(), abs=1e-5)


def test_the_reference_answers_have_mean_0_and_deviation_1(default, made):
    _, out = default
    model, fill = models.load_scalar_model(out), text.load_tokenizer(out).pad_token_id
    rows = records.read_jsonl(made / "samples/samples.jsonl")
    answers = [Completion(row["prompt_tokens"], a["tokens"]) for row in rows for a in row["answers"]]
    scores = scoring.all_scores(model, answers, fill=fill, size=7)
    assert scores.mean() == pytest.approx(0, abs=1e-5)
    assert scores.std() == pytest.approx(1, abs=1e-5)


def test_all_that_is_reported(default):
    (figures, history), out = default
    assert figures["pairs"] == {"sampled": 96, "file": 8}
    assert figures["prompts"] == 24
    sampled, file = figures["held_out"]["sampled"], figures["held_out"]["file"]
    assert (sampled["pairs"], sampled["prompts"], sampled["seen_in_training"]) == (48, 8, 0)
    assert (file["pairs"], file["prompts"]) == (4, 4)
    for found in (sampled, file):
        assert 0 <= found["accuracy"] + found["ties"] <= 1
        assert 0 <= found["calibration_error"] <= 1
        assert found["temperature"] > 0
        assert -1 <= found["length_correlation"] <= 1
        assert set(found["scaled"]) == {"log_loss", "calibration_error"}
    # The pairs of the file have no gap to be told apart by.
    assert sum(part["pairs"] for part in sampled["by_gap"].values()) == 48
    assert file["by_gap"] == {}
    assert {"train/loss", "train/accuracy", "train/ties", "train/margin", "train/squared_mean"} <= set(history[0])
    for name in ("before", "after"):
        with (out / f"reliability_{name}.csv").open() as lines:
            rows = list(csv.DictReader(lines))
        assert sum(int(row["pairs"]) for row in rows) == 52
        assert all(0.5 <= float(row["confidence"]) <= 1 and 0 <= float(row["accuracy"]) <= 1 for row in rows)


def test_every_answer_is_encoded_once_for_all_its_pairs(made, params, tmp_path, monkeypatch):
    """Training, one epoch: 16 prompts with 6 pairs of 4 answers, 8 with one pair of 2: 80 sequences, not 208."""
    encoded = []
    original = scoring.last_scalars

    def counting(model, batch):
        if torch.is_grad_enabled():
            encoded.append(len(batch.tokens))
        return original(model, batch)

    monkeypatch.setattr(scoring, "last_scalars", counting)
    trained(made, params, tmp_path / "out", section(params, reuse_activations=False))
    assert sum(encoded) == 80
    assert max(encoded) <= params.reward.optimiser.micro_batch


@pytest.mark.parametrize("loss", [pairwise(), LISTWISE], ids=["pairwise", "listwise"])
def test_micro_batches_change_nothing(made, params, tmp_path, loss):
    histories = []
    for size in (4, 32):
        cfg = section(params, loss=loss, centre=0.1, optimiser={"micro_batch": size})
        histories.append(trained(made, params, tmp_path / str(size), cfg)[1])
    for small, large in zip(*histories, strict=True):
        assert small == pytest.approx(large, rel=1e-4, abs=1e-5)


def first_batch(made, params):
    """Scores of the model before any update, and the prompts of the first batch, as the stage draws them."""
    generator = torch.Generator().manual_seed(params.shared.seed)
    model = models.new_scalar_model(made / "sft", generator)
    return model, generator


def raw(model, row, tokens) -> float:
    with torch.no_grad():
        return float(model(torch.tensor([row["prompt_tokens"] + tokens])).logits)


def test_the_first_listwise_loss_by_hand(made, params, tmp_path):
    """All 24 training prompts in one batch: the mean over rankings, from lone forward passes and scipy."""
    cfg = section(params, loss=LISTWISE, centre=0.5, optimiser={"batch": 24})
    _, history = trained(made, params, tmp_path / "out", cfg)
    model, _ = first_batch(made, params)
    losses, squares = [], []
    for row in records.read_jsonl(made / "preferences/ranked.jsonl"):
        if row["split"] == "train":
            best_first = sorted(row["answers"], key=lambda a: -a["score"])
            scores = [raw(model, row, a["tokens"]) for a in best_first]
            losses.append(sum(logsumexp(scores[n:]) - scores[n] for n in range(3)))
            squares.append((sum(scores) / 4) ** 2)
    for row in records.read_jsonl(made / "preferences/pairs.jsonl"):
        if row["split"] == "train" and row["origin"] == "file":
            sides = [raw(model, row, row[f"{side}_tokens"]) for side in ("chosen", "rejected")]
            losses.append(-log_expit(sides[0] - sides[1]))
            squares.append((sum(sides) / 2) ** 2)
    assert len(losses) == 24
    assert history[0]["train/squared_mean"] == pytest.approx(sum(squares) / 24, rel=1e-4)
    assert history[0]["train/loss"] == pytest.approx((sum(losses) + 0.5 * sum(squares)) / 24, rel=1e-4)


@pytest.mark.parametrize(
    ("margin", "of"),
    [
        ({"kind": "scaled", "scale": 0.5}, lambda gap: 0.5 * gap),
        ({"kind": "graded", "thresholds": [0.5, 1.0], "margins": [0.0, 0.3, 1.0]},
         lambda gap: 0.0 if gap < 0.5 else 0.3 if gap < 1.0 else 1.0),
        (NONE, lambda gap: 0.0),
    ],
    ids=["scaled", "graded", "none"],
)  # fmt: skip
def test_the_first_pairwise_loss_by_hand(made, params, tmp_path, margin, of):
    """The 96 pairs of 16 prompts in one batch, each with the margin of its own gap."""
    cfg = section(params, origins=["sampled"], loss=pairwise(margin), optimiser={"batch": 16})
    _, history = trained(made, params, tmp_path / "out", cfg)
    model, _ = first_batch(made, params)
    losses = []
    for row in records.read_jsonl(made / "preferences/pairs.jsonl"):
        if row["split"] == "train" and row["origin"] == "sampled":
            sides = [raw(model, row, row[f"{side}_tokens"]) for side in ("chosen", "rejected")]
            losses.append(-log_expit(sides[0] - sides[1] - of(row["margin"])))
    assert len(losses) == 96
    assert history[0]["train/loss"] == pytest.approx(sum(losses) / 96, rel=1e-4)


def test_rankings_of_two_are_pairs(made, params, tmp_path):
    """The same prompts with their first two answers, as pairs and as rankings: the same model, to the bit."""
    ranked = records.read_jsonl(made / "preferences/ranked.jsonl")
    short = [row | {"answers": sorted(row["answers"][:2], key=lambda a: -a["score"])} for row in ranked]
    pairs = [
        {**row, "chosen_tokens": row["answers"][0]["tokens"], "rejected_tokens": row["answers"][1]["tokens"]}
        | {"margin": None}
        for row in short
    ]
    records.write_jsonl(tmp_path / "preferences/ranked.jsonl", short)
    records.write_jsonl(tmp_path / "preferences/pairs.jsonl", pairs)
    for kind, loss in (("pairwise", pairwise()), ("listwise", LISTWISE)):
        cfg = section(params, origins=["sampled"], loss=loss)
        trained(made, params, tmp_path / kind, cfg, preferences=tmp_path / "preferences")
    states = [models.load_scalar_model(tmp_path / kind).state_dict() for kind in ("pairwise", "listwise")]
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("trainable", [{"kind": "layers", "count": 1}, {"kind": "all"}])
def test_the_model_learns_the_rankings_it_is_given(made, params, tmp_path, trainable):
    optimiser = {"epochs": 20, "learning_rate": 3e-3}
    cfg = section(
        params, loss=LISTWISE, trainable=trainable, reuse_activations=trainable["kind"] == "layers", optimiser=optimiser
    )
    _, history = trained(made, params, tmp_path / "out", cfg)
    assert history[-1]["train/loss"] < 0.7 * history[0]["train/loss"]
    assert history[-1]["train/accuracy"] > 0.75


def test_reused_activations_give_the_same_result(made, params, tmp_path):
    ends = []
    for keep in (True, False):
        cfg = section(params, reuse_activations=keep, optimiser={"epochs": 3})
        ends.append(trained(made, params, tmp_path / str(keep), cfg))
    (found, history), (expected, plain) = ends
    for a, b in zip(history, plain, strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-4)
    for origin in expected["held_out"]:
        for name in ("accuracy", "log_loss", "calibration_error", "length_correlation"):
            assert found["held_out"][origin][name] == pytest.approx(expected["held_out"][origin][name], abs=1e-3)


def test_the_same_run_writes_the_same_bytes(default, made, params, tmp_path):
    (figures, history), out = default
    again = trained(made, params, tmp_path / "again")
    assert again == (figures, history)
    names = sorted(path.name for path in out.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
    assert all((out / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in names)


def test_a_held_out_pair_that_was_trained_on_is_not_measured(made, params, tmp_path):
    """Texts without a prompt, each in two pairs, one of them in training."""
    rows = records.read_jsonl(made / "preferences/pairs.jsonl")
    bare = {"prompt_tokens": [], "origin": "file", "margin": 1.0}
    texts = [[90 + n, 90] for n in range(40)]
    rows = [r for r in rows if r["origin"] == "sampled"] + [
        bare | {"id": f"t{n}", "chosen_tokens": texts[a], "rejected_tokens": texts[b], "split": split}
        for n, (a, b, split) in enumerate(
            [*((i, i + 1, "train") for i in range(0, 30, 2)), (0, 39, "held_out"), (38, 1, "held_out"),
             (38, 39, "held_out"), (36, 37, "held_out")]
        )
    ]  # fmt: skip
    records.write_jsonl(tmp_path / "preferences/pairs.jsonl", rows)
    figures, _ = trained(made, params, tmp_path / "out", preferences=tmp_path / "preferences")
    assert (figures["held_out"]["file"]["pairs"], figures["held_out"]["file"]["seen_in_training"]) == (2, 2)
    rows = [r for r in rows if r["split"] == "train" or r["id"] not in ("t17", "t18")]
    records.write_jsonl(tmp_path / "preferences/pairs.jsonl", rows)
    with pytest.raises(UserError, match="none of the 2 held-out prompts of origin file is new"):
        trained(made, params, tmp_path / "none", preferences=tmp_path / "preferences")


def test_mistakes_end_with_what_to_do(made, params, tmp_path):
    cases = [
        (
            {"optimiser": {"batch": 25}},
            r"104 pairs or rankings of origin sampled, file, of 24 prompts, do not fill",
        ),
        ({"optimiser": {"micro_batch": 3}}, r"a prompt has 4 answers .* is 3, expected at least 4"),
        ({"loss": pairwise({"kind": "scaled", "scale": 1.0})}, r"8 pairs have none \(origin file\)"),
    ]
    for changes, message in cases:
        with pytest.raises(UserError, match=message):
            trained(made, params, tmp_path / "out", section(params, **changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"trainable": {"kind": "all"}, "reuse_activations": True}, "no layer is frozen"),
        ({"loss": LISTWISE, "origins": ["ratings"]}, "only sampled answers are ranked"),
        ({"loss": pairwise({"kind": "scaled", "scale": 1.0}, 0.1)}, "expected only one of them"),
        ({"loss": pairwise(label_smoothing=0.5)}, "less than 0.5"),
        ({"loss": pairwise({"kind": "graded", "thresholds": [1.0, 0.5], "margins": [0, 1, 2]})}, "expected rising"),
        ({"loss": pairwise({"kind": "graded", "thresholds": [1.0], "margins": [0, 1, 2]})}, "expected 2 numbers"),
        ({"loss": pairwise({"kind": "graded", "thresholds": [1.0], "margins": [1, 0]})}, "that do not fall"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(params, changes, reason):
    with pytest.raises(ValidationError, match=reason):
        section(params, **changes)


def test_the_default_is_plain_bradley_terry():
    read = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))["reward"]
    assert (read["loss"], read["centre"], read["reuse_activations"]) == (pairwise(), 0.0, False)
