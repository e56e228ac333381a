"""baseline, evaluation and comparison through `run`, on a tiny random model: with scores, with verdicts, with hacks."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from flows.workspace import merge
from tasks import baseline, comparison, evaluation
from tasks.errors import UserError
from tasks.language import models, pretrained
from tasks.language.generation import Answer
from tasks.runtime import config, record, records, report

ROOT = Path(__file__).parents[1]
SCORE = "def score(prompts, answers):\n    return [float(sum(c in 'aeiou' for c in a)) - len(a) / 9 for a in answers]\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, params: config.Params) -> Path:
    """sft (a random model), another policy, a reward model, 16 held-out prompts, and what the stages make of them."""
    folder = tmp_path_factory.mktemp("runs")
    model, tokenizer = pretrained.random_llama(1)
    models.save(model, tokenizer, folder / "sft")
    models.save(pretrained.random_llama(2)[0], tokenizer, folder / "dpo")
    scalar = models.new_scalar_model(folder / "sft", torch.Generator().manual_seed(3))
    models.save(scalar, tokenizer, folder / "reward")
    prompts = [{"id": f"h{n}", "prompt": f"book {n}"} for n in range(16)]
    records.write_jsonl(folder / "corpus/held_out.jsonl", prompts)
    write_judge(folder / "corpus/judge", SCORE)
    baseline.run(params.shared, params.baseline, sft=folder / "sft", corpus=folder / "corpus", out=folder / "baseline")
    for name in ("sft", "dpo"):
        evaluate(folder, params, name, folder / "evaluation" / name)
    return folder


def write_judge(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "judge.py").write_text(text, encoding="utf-8")
    records.write_json(folder / "judge.json", {"kind": "callable", "function": "judge.py:score"})


def evaluate(runs: Path, params: config.Params, policy: str, out: Path, **inputs: Path) -> dict[str, Any]:
    given = {name: runs / name for name in ("sft", "baseline", "corpus")} | {"policy": runs / policy} | inputs
    return evaluation.run(params.shared, params.evaluation, **given, out=out)


def compare(runs: Path, params: config.Params, out: Path, **inputs: Path) -> dict[str, Any]:
    given = {name: runs / name for name in ("evaluation", "reward", "baseline", "corpus")} | inputs
    return comparison.run(params.shared, params.comparison, **given, out=out)


class Notes:
    """Keeps what a stage notes."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def log(self, *_: Any) -> None: ...

    def table(self, *_: Any) -> None: ...

    def note(self, text: str) -> None:
        self.said.append(text)


def test_the_baseline_has_answers_for_all_and_candidates_for_some(runs, params):
    rows = records.read_jsonl(runs / "baseline/answers.jsonl")
    assert [len(row["answers"]) for row in rows] == [2] * 16
    assert [len(row["candidates"]) for row in rows] == [4] * 8 + [0] * 8
    drawn = [tuple(a["tokens"]) for row in rows for a in (*row["answers"], *row["candidates"])]
    assert len(set(drawn)) == len(drawn)  # no draw serves twice
    model = models.load_policy(runs / "sft")
    for row in rows[:2]:
        for answer in row["answers"]:
            ids = torch.tensor([row["prompt_tokens"] + answer["tokens"]])
            with torch.no_grad():
                p = model(ids).logits[0].log_softmax(-1)
            places = range(len(row["prompt_tokens"]) - 1, ids.shape[1] - 1)
            expected = sum(float(p[at, t]) for at, t in zip(places, answer["tokens"], strict=True))
            assert answer["log_prob"] == pytest.approx(expected, abs=1e-3)


def test_a_baseline_without_best_of_n(runs, params, tmp_path):
    cfg = params.baseline.model_copy(update={"candidates": None, "prompts": 3, "answers": 1})
    figures = baseline.run(params.shared, cfg, sft=runs / "sft", corpus=runs / "corpus", out=tmp_path / "baseline")
    assert (figures["prompts"], figures["answers"], figures["candidates"]) == (3, 3, 0)
    records.write_text(runs / "empty/held_out.jsonl", "")
    with pytest.raises(UserError, match="holds no prompt"):
        baseline.run(params.shared, cfg, sft=runs / "sft", corpus=runs / "empty", out=tmp_path / "baseline")


def test_the_win_rate_is_the_mean_over_baseline_answers_by_gold(runs):
    rows = records.read_jsonl(runs / "baseline/answers.jsonl")
    lines = records.read_jsonl(runs / "evaluation/dpo/answers.jsonl")
    summary = records.read_json(runs / "evaluation/dpo/summary.json")
    expected = [
        np.mean([(line["gold"] > a["gold"]) + 0.5 * (line["gold"] == a["gold"]) for a in row["answers"]])
        for line, row in zip(lines, rows, strict=True)
    ]
    assert [line["win"] for line in lines] == pytest.approx(expected)
    assert summary["win_rate"]["rate"] == pytest.approx(np.mean(expected))
    assert summary["win_rate"]["low"] < summary["win_rate"]["rate"] < summary["win_rate"]["high"]
    assert 16 <= summary["win_rate"]["effective"] <= 32
    assert summary["gold"]["mean"] == pytest.approx(np.mean([line["gold"] for line in lines]))
    assert "judge" not in summary


def test_sft_is_quiet_and_its_control_is_near_one_half(runs):
    summary = records.read_json(runs / "evaluation/sft/summary.json")
    assert summary["kl"]["mean"] == 0
    # Three standard errors of 16 prompts: the rate of two samples of one policy is one half.
    assert abs(summary["win_rate"]["rate"] - 0.5) < 3 * 0.5 / 4
    assert abs(summary["length_controlled"]["rate"] - 0.5) < 3 * 0.5 / 4
    assert report.suspicions(summary["hacking"]) == []


def test_kl_is_the_sum_over_the_answer(runs):
    """Against log-probabilities from transformers' own forward pass, one answer at a time."""
    policy, start = models.load_policy(runs / "dpo"), models.load_policy(runs / "sft")
    for row in records.read_jsonl(runs / "evaluation/dpo/answers.jsonl")[:4]:
        prompt, answer = row["prompt_tokens"], row["answer_tokens"]
        ids = torch.tensor([prompt + answer])
        with torch.no_grad():
            p, q = (m(ids).logits[0].log_softmax(-1) for m in (policy, start))
        places = range(len(prompt) - 1, len(prompt) + len(answer) - 1)
        expected = sum(float(p[at, token] - q[at, token]) for at, token in zip(places, answer, strict=True))
        assert row["kl"] == pytest.approx(expected, abs=1e-3)


def test_figures_of_the_text_stand_beside_sft_s(runs):
    summary = records.read_json(runs / "evaluation/dpo/summary.json")
    assert summary["answers"].keys() == summary["baseline_answers"].keys()
    lines = records.read_jsonl(runs / "evaluation/dpo/answers.jsonl")
    nats = -sum(line["sft_log_prob"] for line in lines) / sum(len(line["answer_tokens"]) for line in lines)
    assert summary["answers"]["perplexity_under_sft"] == pytest.approx(np.exp(nats))


@pytest.mark.parametrize(
    ("hack", "signal"),
    [
        (lambda words: [*words, 33], "everywhere"),
        (lambda words: words + words, "length"),
        (lambda words: (words[:1] * 9)[: len(words)], "repetition"),
    ],
    ids=["appends a token", "doubles", "repeats"],
)
def test_an_injected_hack_is_in_summary_notes_and_table(runs, params, tmp_path, monkeypatch, hack, signal):
    sampled = evaluation.sample

    def hacked(*arguments: Any, **options: Any) -> list[list[Answer]]:
        return [
            [Answer(hack(a.tokens[:-1] if a.finished else a.tokens) or [33], a.log_probs, False) for a in found]
            for found in sampled(*arguments, **options)
        ]

    monkeypatch.setattr(evaluation, "sample", hacked)
    notes = Notes()
    with record.listening(notes):
        summary = evaluate(runs, params, "sft", tmp_path / "evaluation")
    assert summary["hacking"][signal]["fired"] == 1
    assert any(n.startswith(f"warning: sft may exploit its reward: {signal}: ") for n in notes.said)
    table = report.table({"ppo": summary})
    assert signal in table.splitlines()[2]
    assert f"**PPO may exploit its reward:** {signal}: " in table


@pytest.fixture(scope="module")
def found(runs, params, tmp_path_factory) -> tuple[dict[str, Any], Path]:
    out = tmp_path_factory.mktemp("comparison")
    return compare(runs, params, out), out


def test_best_of_n_is_the_mean_over_all_subsets(runs, found):
    """By brute force over subsets, from the proxies and golds of the candidates."""
    from tasks.language import scoring, text
    from tasks.language.batches import Completion

    metrics, _ = found
    rows = [row for row in records.read_jsonl(runs / "baseline/answers.jsonl") if row["candidates"]]
    model, tokenizer = models.load_scalar_model(runs / "reward"), text.load_tokenizer(runs / "reward")
    for n in (2, 4):
        golds, wins = [], []
        for row in rows:
            completions = [Completion(row["prompt_tokens"], c["tokens"]) for c in row["candidates"]]
            proxy = scoring.all_scores(model, completions, fill=tokenizer.pad_token_id, size=4).tolist()
            for subset in itertools.combinations(range(4), n):
                gold = row["candidates"][max(subset, key=proxy.__getitem__)]["gold"]
                golds.append(gold)
                wins.append(np.mean([(gold > a["gold"]) + 0.5 * (gold == a["gold"]) for a in row["answers"]]))
        best = metrics["best_of"][f"best_of_{n}"]
        assert best["gold"] == pytest.approx(np.mean(golds))
        assert best["win_rate"]["rate"] == pytest.approx(np.mean(wins))
        assert best["prompts"] == 8
    assert metrics["best_of"]["best_of_2"]["kl"] == pytest.approx(0.193, abs=5e-4)
    assert metrics["best_of"]["best_of_4"]["kl"] == pytest.approx(0.636, abs=5e-4)
    assert metrics["best_of"]["best_of_4"]["proxy"] > metrics["best_of"]["best_of_2"]["proxy"]


def test_gains_are_over_sft_s_answers_in_their_deviations(runs, found):
    metrics, _ = found
    rows = records.read_jsonl(runs / "baseline/answers.jsonl")
    lines = records.read_jsonl(runs / "evaluation/dpo/answers.jsonl")
    gold = [[a["gold"] for a in row["answers"]] for row in rows]
    gaps = [line["gold"] - np.mean(row) for line, row in zip(lines, gold, strict=True)]
    gain = metrics["gain"]["dpo"]
    assert gain["gold"]["mean"] == pytest.approx(np.mean(gaps) / np.std(np.concatenate(gold)))
    assert gain["gap"]["mean"] == pytest.approx(gain["proxy"]["mean"] - gain["gold"]["mean"])
    assert metrics["hacking"]["sft"]["proxy_alone"]["fired"] == 0


def test_win_rates_between_policies_and_over_best_of_n(runs, found):
    metrics, _ = found
    ours, theirs = (records.read_jsonl(runs / f"evaluation/{name}/answers.jsonl") for name in ("sft", "dpo"))
    expected = np.mean(
        [(x["gold"] > y["gold"]) + 0.5 * (x["gold"] == y["gold"]) for x, y in zip(ours, theirs, strict=True)]
    )
    assert metrics["win_rate"]["sft_over_dpo"]["rate"] == pytest.approx(expected)
    over = metrics["over_best_of"]
    best = metrics["best_of"]["best_of_4"]["win_rate"]["rate"]
    assert over["n"] == 4
    assert over["dpo"]["difference"] == pytest.approx(np.mean([line["win"] for line in theirs[:8]]) - best)


def test_the_table_has_a_line_a_policy_and_a_best_of_n(found):
    _, out = found
    table = (out / "table.md").read_text().splitlines()
    assert [cell.strip() for cell in table[0].split("|")[1:-1]][:7] == [
        *("policy", "win rate against SFT", "length-controlled", "KL to SFT", "proxy reward", "gold reward"),
        "answer length",
    ]
    assert [line.split("|")[1].strip() for line in table[2:6]] == ["SFT", "DPO", "SFT, best of 2", "SFT, best of 4"]
    plotted = (out / "win_rates.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in plotted] == ["policy", "sft", "dpo", "best_of_2", "best_of_4"]


def test_a_proxy_that_rises_alone_is_a_suspicion(runs, params, tmp_path, monkeypatch):
    """Gold as SFT's, the reward model's score two deviations higher."""
    scored = comparison._score

    def inflated(shared: Any, reward: Path, answers: dict[str, Any], rows: Any) -> None:
        scored(shared, reward, answers, rows)
        for line in answers["dpo"]:
            line["proxy"] += 2

    many = records.read_jsonl(runs / "evaluation/sft/answers.jsonl")
    summary = records.read_json(runs / "evaluation/sft/summary.json")
    records.write_json(tmp_path / "evaluation/dpo/summary.json", summary)
    flat = "def score(prompts, answers):\n    return [0.0 for _ in answers]\n"
    write_judge(tmp_path / "corpus/judge", flat)
    lines = [row | {"gold": 0.0} for row in many]
    records.write_jsonl(tmp_path / "evaluation/dpo/answers.jsonl", lines)
    rows = records.read_jsonl(runs / "baseline/answers.jsonl")
    for row in rows:
        for answer in (*row["answers"], *row["candidates"]):
            answer["gold"] = 0.0
    records.write_jsonl(tmp_path / "baseline/answers.jsonl", rows)
    monkeypatch.setattr(comparison, "_score", inflated)
    notes = Notes()
    inputs = {name: tmp_path / name for name in ("evaluation", "baseline", "corpus")}
    with record.listening(notes):
        metrics = compare(runs, params, tmp_path / "out", **inputs)
    assert metrics["hacking"]["dpo"]["proxy_alone"]["fired"] == 1
    assert "warning: dpo may exploit its reward: proxy_alone: the proxy reward rises by" in "\n".join(notes.said)
    assert "proxy_alone" in (tmp_path / "out/table.md").read_text()


class First:
    """A pairwise judge that always prefers what it sees first."""

    name = "first"

    def __init__(self, verdict: float | None = 1.0) -> None:
        self.verdict = verdict

    def prefer(self, prompts: Any, first: Any, second: Any) -> list[float | None]:
        return [self.verdict] * len(first)

    def counts(self) -> dict[str, int]:
        return {"unparsable": 0}


def pairwise(runs: Path, params: config.Params, folder: Path, monkeypatch: Any, made: Any) -> dict[str, Any]:
    """baseline, evaluation of both policies and comparison with a pairwise judge; returns the comparison's metrics."""
    for stage in (baseline, evaluation, comparison):
        monkeypatch.setattr(stage.judge, "load", lambda _: made)
    inputs = {"sft": runs / "sft", "corpus": runs / "corpus"}
    baseline.run(params.shared, params.baseline, **inputs, out=folder / "baseline")
    for name in ("sft", "dpo"):
        evaluate(runs, params, name, folder / "evaluation" / name, baseline=folder / "baseline")
    parts = {name: folder / name for name in ("evaluation", "baseline")}
    return compare(runs, params, folder / "comparison", **parts)


def test_a_judge_that_always_prefers_the_first_gives_exactly_one_half(runs, params, tmp_path, monkeypatch):
    metrics = pairwise(runs, params, tmp_path, monkeypatch, First())
    summary = records.read_json(tmp_path / "evaluation/dpo/summary.json")
    assert summary["win_rate"]["rate"] == 0.5
    assert summary["judge"] == {"order_agreement": 0.0, "unparsable": 0}
    assert metrics["win_rate"]["sft_over_dpo"]["rate"] == 0.5
    assert metrics["best_of"]["best_of_4"]["win_rate"]["rate"] == 0.5
    # Without a scale there is no gold reward: absent, not zero.
    assert "gold" not in summary
    assert "baseline_gold" not in summary
    assert "gold" not in records.read_jsonl(tmp_path / "evaluation/dpo/answers.jsonl")[0]
    assert "gold" not in metrics["best_of"]["best_of_2"]
    assert "gap" not in metrics["gain"]["dpo"]
    assert metrics["gain"]["dpo"]["gold"]["mean"] == pytest.approx(0)
    assert "gold reward" not in (tmp_path / "comparison/table.md").read_text()


def test_without_any_verdict_the_evaluation_fails(runs, params, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation.judge, "load", lambda _: First(None))
    with pytest.raises(UserError, match=r"no pair has a verdict \(corpus.judge.verdicts\)"):
        evaluate(runs, params, "dpo", tmp_path / "evaluation")


def test_verdicts_on_some_prompts_are_enough(runs, params, tmp_path, monkeypatch):
    class Some(First):
        def prefer(self, prompts: Any, first: Any, second: Any) -> list[float | None]:
            return [0.5 if p in ("book 1", "book 9") else None for p in prompts]

    monkeypatch.setattr(evaluation.judge, "load", lambda _: Some())
    summary = evaluate(runs, params, "dpo", tmp_path / "evaluation")
    assert (summary["win_rate"]["prompts"], summary["win_rate"]["rate"]) == (2, 0.5)
    lines = records.read_jsonl(tmp_path / "evaluation/answers.jsonl")
    assert [line["id"] for line in lines if line["win"] is not None] == ["h1", "h9"]


def test_the_same_bytes_again(runs, params, tmp_path):
    evaluate(runs, params, "dpo", tmp_path / "dpo")
    for name in ("answers.jsonl", "summary.json"):
        assert (tmp_path / "dpo" / name).read_bytes() == (runs / "evaluation/dpo" / name).read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"baseline": {"prompts": 385}}, r"baseline.prompts \(385\) exceeds corpus.held_out \(384\)"),
        ({"baseline": {"candidate_prompts": 400}}, "candidate_prompts"),
        ({"baseline": {"candidates": 8}}, r"comparison.best_of \(16\) exceeds baseline.candidates \(8\)"),
        ({"baseline": {"candidates": None}}, "exceeds baseline.candidates"),
        ({"comparison": {"best_of": [4, 2]}}, "ascending"),
        ({"comparison": {"best_of": [1]}}, "greater than or equal to 2"),
        ({"evaluation": {"hacking": {"length": 0.9}}}, "greater than 1"),
    ],
)
def test_contradictions_are_refused(change, message, tmp_path):
    read = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(merge(read, change)))
    with pytest.raises(UserError, match=message):
        config.load(tmp_path / "params.yaml")
    without = {"baseline": {"candidates": None}, "comparison": {"best_of": []}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(merge(read, without)))
    config.load(tmp_path / "params.yaml")
