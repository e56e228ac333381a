"""preferences: which answers meet, who labels the pair, what is dropped, and what the run says of its annotators."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from flows.workspace import merge
from tasks import preferences
from tasks.errors import UserError
from tasks.language import models, pretrained
from tasks.runtime import config, record, records

ROOT = Path(__file__).parents[1]
PARAMS: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
TINY: dict[str, Any] = yaml.safe_load((ROOT / "profiles/tiny.yaml").read_text(encoding="utf-8"))
JUDGE = "def score(prompts, answers):\n    return [float(a.split()[-1]) for a in answers]\n"
"""An answer ends with its score."""
ANSWERS = [" b 2", " d 9", " a -4", " c 5"]
"""By hand: best to worst d c b a."""
CERTAIN = {"levels": list(range(-9, 10)), "means": [], "shares": []}
CERTAIN["means"] = [float(level) for level in CERTAIN["levels"]]
CERTAIN["shares"] = [[float(a == b) for b in CERTAIN["levels"]] for a in CERTAIN["levels"]]
"""Raters who all say the mean."""
NOISE = {"levels": list(range(-9, 10)), "means": [0.0], "shares": [[1 / 19] * 19]}
"""Raters who say anything, whatever the text."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    models.save(*pretrained.random_llama(1), folder)
    return folder


class Stage:
    """The stage with its inputs, written by the test."""

    def __init__(self, folder: Path, base: Path) -> None:
        self.folder, self.base = folder, base
        self.notes: list[str] = []
        self.prompts([ANSWERS] * 20)
        self.off_policy([])
        records.write_text(folder / "corpus/judge/judge.py", JUDGE)
        records.write_json(folder / "corpus/judge/judge.json", {"kind": "callable", "function": "judge.py:score"})

    def prompts(self, answers: list[list[str]]) -> None:
        self.rows = [
            {
                "id": f"id{n}",
                "prompt": f"film {n}",
                "prompt_tokens": [n],
                "answers": [{"text": a, "tokens": list(a.encode()), "finished": True} for a in each],
            }
            for n, each in enumerate(answers)
        ]

    def off_policy(self, rows: list[dict[str, Any]]) -> None:
        filled = [
            {"id": f"p{n}", "prompt": f"song {n}", "origin": "file", "margin": None, "votes": None} | row
            for n, row in enumerate(rows)
        ]
        records.write_jsonl(self.folder / "corpus/pairs.jsonl", filled)

    def run(self, *, seed: int = 17, **changes: Any) -> dict[str, Any]:
        records.write_jsonl(self.folder / "samples/samples.jsonl", self.rows)
        shared = config.Shared.model_validate(PARAMS["shared"] | {"seed": seed})
        cfg = config.Preferences.model_validate(merge(PARAMS["preferences"], {"held_out": 0.5, **changes}))
        inputs = {name: self.folder / name for name in ("samples", "corpus")}
        with record.listening(self):
            return preferences.run(shared, cfg, **inputs, base=self.base, out=self.folder / "out")

    @property
    def pairs(self) -> list[dict[str, Any]]:
        return records.read_jsonl(self.folder / "out/pairs.jsonl")

    def sides(self, n: int) -> list[str]:
        """The pairs of prompt n: "db" is answer d against answer b."""
        return [p["chosen"][1] + p["rejected"][1] for p in self.pairs if p["id"] == f"id{n}"]

    def log(self, *_: Any) -> None: ...

    def table(self, *_: Any) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def stage(tmp_path: Path, base: Path) -> Stage:
    return Stage(tmp_path, base)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ({"kind": "best_worst"}, ["da"]),
        ({"kind": "top_bottom", "k": 1}, ["da"]),
        ({"kind": "top_bottom", "k": 2}, ["da", "db", "ca", "cb"]),
        ({"kind": "all"}, ["dc", "db", "da", "cb", "ca", "ba"]),
        ({"kind": "adjacent"}, ["dc", "cb", "ba"]),
    ],
    ids=str,
)
def test_each_strategy_by_hand(stage: Stage, pairs: dict[str, Any], expected: list[str]) -> None:
    metrics = stage.run(pairs=pairs)
    assert [stage.sides(n) for n in range(20)] == [expected] * 20
    assert sum(metrics["pairs"].values()) == 20 * len(expected)
    assert (metrics["dropped"], metrics["agreement"]) == ({}, {})
    score = {"a": -4.0, "b": 2.0, "c": 5.0, "d": 9.0}
    assert all(p["margin"] == score[p["chosen"][1]] - score[p["rejected"][1]] for p in stage.pairs)


def test_every_kind_of_the_config_has_its_strategy() -> None:
    rows = get_args(config.Preferences.model_fields["pairs"].annotation)
    assert {get_args(row.model_fields["kind"].annotation)[0] for row in rows} == set(preferences._STRATEGIES)


def test_the_best_meets_a_random_other(stage: Stage) -> None:
    stage.prompts([ANSWERS] * 300)
    stage.run(pairs={"kind": "best_random"})
    found = [pair for n in range(300) for pair in stage.sides(n)]
    assert len(found) == 300
    # 100 each are expected; the standard deviation is sqrt(300 * 1/3 * 2/3) = 8.2.
    assert all(abs(found.count(pair) - 100) < 4 * 8.2 for pair in ("da", "db", "dc"))


@pytest.mark.parametrize(
    "changes",
    [
        {"pairs": {"kind": "best_random"}},
        {"pairs": {"kind": "all"}, "per_prompt": 2},
        {"pairs": {"kind": "all"}, "annotators": {"kind": "panel", "size": 3}},
    ],
    ids=["random opponent", "cap", "panel"],
)
def test_no_draw_depends_on_the_order_of_the_prompts(stage: Stage, changes: dict[str, Any]) -> None:
    records.write_json(stage.folder / "corpus/raters.json", NOISE)

    def made() -> list[str]:
        return sorted(json.dumps(pair, sort_keys=True) for pair in stage.pairs)

    stage.run(**changes)
    before = made()
    random.Random(0).shuffle(stage.rows)
    stage.run(**changes)
    assert made() == before
    stage.rows.pop()
    stage.run(**changes)
    assert set(made()) < set(before)


def test_a_prompt_gives_at_most_so_many_pairs(stage: Stage) -> None:
    metrics = stage.run(pairs={"kind": "all"}, per_prompt=4)
    found = [stage.sides(n) for n in range(20)]
    assert {len(pairs) for pairs in found} == {4}
    assert len({tuple(pairs) for pairs in found}) > 1, "the same ones of every prompt: nothing was drawn"
    assert metrics["dropped"] == {"sampled pairs: beyond preferences.per_prompt": 40}


def test_ties_and_narrow_gaps_are_counted_apart(stage: Stage) -> None:
    stage.prompts([[" a 1", " b 1", " c 1.5"], *[ANSWERS] * 20])
    metrics = stage.run(pairs={"kind": "all"}, margin=0.5)
    assert stage.sides(0) == ["ca", "cb"]
    assert metrics["dropped"] == {"sampled pairs: a tie": 1}
    metrics = stage.run(pairs={"kind": "all"}, margin=0.51)
    assert stage.sides(0) == []
    assert metrics["dropped"] == {"sampled pairs: a tie": 1, "sampled pairs: below the margin": 2}
    assert "dropped 2 sampled pairs: below the margin" in stage.notes


def test_the_same_answer_again_counts_once(stage: Stage) -> None:
    stage.prompts([[" b 2", " b 2", " d 9", " b 2"], [" a 1"] * 4, *[ANSWERS] * 20])
    metrics = stage.run(pairs={"kind": "top_bottom", "k": 2})
    assert stage.sides(0) == ["db"]
    assert metrics["dropped"] == {"sampled answers: exact duplicate": 5, "sampled prompts: all answers are the same": 1}


def test_near_duplicates_are_dropped_from_every_origin(stage: Stage) -> None:
    """Word pairs: five of each answer, four in common of six, so 2/3. Case and punctuation make no difference."""
    same = " one two three four five "
    stage.prompts([[same + "6", same.upper() + ", 7"], *[ANSWERS] * 20])
    stage.off_policy(
        [{"chosen": "It is good!", "rejected": "it is GOOD"}] + [{"chosen": "good", "rejected": "bad"}] * 19
    )
    metrics = stage.run(near_duplicate=0.66)
    assert metrics["dropped"] == {"file pairs: near duplicates": 1, "sampled pairs: near duplicates": 1}
    metrics = stage.run(near_duplicate=0.67)
    assert metrics["dropped"] == {"file pairs: near duplicates": 1}
    assert metrics["pairs"]["sampled_train"] + metrics["pairs"]["sampled_held_out"] == 21


def test_a_panel_that_is_sure_says_what_the_judge_says(stage: Stage) -> None:
    records.write_json(stage.folder / "corpus/raters.json", CERTAIN)
    metrics = stage.run(pairs={"kind": "all"}, annotators={"kind": "panel", "size": 3})
    assert [stage.sides(n) for n in range(20)] == [["dc", "db", "da", "cb", "ca", "ba"]] * 20
    assert all(p["votes"] == [1, 1, 1] for p in stage.pairs)
    assert metrics["agreement"]["sampled"] == {
        "pairs": 120, "votes_fewest": 3, "votes_most": 3, "raw": 1, "krippendorff": 1, "fleiss": 1, "turned": 0,
    }  # fmt: skip
    assert stage.notes == []


def test_a_panel_that_guesses_agrees_by_chance_and_is_warned_of(stage: Stage) -> None:
    """19 levels alike: two ratings tie once in 19, so two people agree with probability 2 (9/19)^2 + (1/19)^2 = .4515;
    on 400 pairs of 3 people the standard deviation of the share is at most sqrt(.4515 * .5485 / 400) = .025.
    """
    records.write_json(stage.folder / "corpus/raters.json", NOISE)
    stage.prompts([ANSWERS] * 400)
    metrics = stage.run(annotators={"kind": "panel", "size": 3})
    figures = metrics["agreement"]["sampled"]
    assert figures["pairs"] == 400
    assert figures["raw"] == pytest.approx(0.4515, abs=4 * 0.025)
    assert figures["krippendorff"] == pytest.approx(0, abs=0.15)
    assert figures["turned"] + metrics["dropped"]["sampled pairs: the votes tie"] > 150
    ties = metrics["dropped"]["sampled pairs: the votes tie"]
    assert len(stage.pairs) == 400 - ties
    for pair in stage.pairs:
        assert sum(pair["votes"]) > 0
        assert pair["margin"] == (13.0 if pair["chosen"] == " d 9" else 0.0)
        assert pair["chosen_tokens"] == list(pair["chosen"].encode())
    assert sum(p["chosen"] == " a -4" for p in stage.pairs) == figures["turned"]
    (warning,) = [note for note in stage.notes if "agree little" in note]
    assert f"Krippendorff's alpha is {figures['krippendorff']:.2f}, below preferences.least_agreement (0.4)" in warning


def test_a_person_rates_an_answer_once(stage: Stage) -> None:
    """So that the votes of one person on all pairs of a prompt never run in a circle: a over b, b over c, c over a."""
    records.write_json(stage.folder / "corpus/raters.json", NOISE)
    stage.prompts([[" a 1", " b 2", " c 3"]] * 200)
    stage.run(pairs={"kind": "all"}, annotators={"kind": "panel", "size": 3})
    circles = 0
    for n in range(200):
        found = {(p["chosen"][1], p["rejected"][1]): p["votes"] for p in stage.pairs if p["id"] == f"id{n}"}
        said = found | {(b, a): [-v for v in votes] for (a, b), votes in found.items()}
        if len(found) == 3:
            for votes in zip(said["a", "b"], said["b", "c"], said["c", "a"], strict=True):
                circles += abs(sum(votes)) == 3
    assert circles == 0


def test_two_people_have_cohens_kappa(stage: Stage) -> None:
    records.write_json(stage.folder / "corpus/raters.json", CERTAIN)
    assert stage.run(annotators={"kind": "panel", "size": 2})["agreement"]["sampled"]["cohen"] == 1


def test_the_panel_hangs_on_the_seed_alone(stage: Stage) -> None:
    records.write_json(stage.folder / "corpus/raters.json", NOISE)
    made = []
    for seed in (17, 17, 18):
        stage.run(seed=seed, annotators={"kind": "panel", "size": 3})
        made.append((stage.folder / "out/pairs.jsonl").read_bytes())
    assert made[0] == made[1]
    assert [p["votes"] for p in map(json.loads, made[0].splitlines())] != [
        p["votes"] for p in map(json.loads, made[2].splitlines())
    ]


def test_the_votes_of_a_file_decide(stage: Stage) -> None:
    plain = {"chosen": "good", "rejected": "bad"}
    stage.off_policy(
        [
            plain | {"votes": [1, 1, -1]},
            plain | {"votes": [-1, -1, 0], "margin": 2.0},
            plain | {"votes": [1, -1, 0]},
            *[plain] * 20,
        ]
    )
    metrics = stage.run()
    found = {p["id"]: p for p in stage.pairs if p["origin"] == "file"}
    assert (found["p0"]["chosen"], found["p0"]["votes"]) == ("good", [1, 1, -1])
    assert (found["p1"]["chosen"], found["p1"]["rejected"]) == ("bad", "good")
    assert (found["p1"]["votes"], found["p1"]["margin"]) == ([1, 1, 0], 0.0)
    assert found["p1"]["chosen_tokens"] == found["p0"]["rejected_tokens"]
    assert "p2" not in found
    assert metrics["dropped"] == {"file pairs: the votes tie": 1}
    # Of three pairs of people one agrees in the first two rows, none in the third: raw (1/3 + 1/3 + 0) / 3. Both ways
    # round each side has 7 of 18 votes and neither 4: P_e = 2 (7/18)^2 + (4/18)^2.
    figures, chance = metrics["agreement"]["file"], 2 * (7 / 18) ** 2 + (4 / 18) ** 2
    assert figures["raw"] == pytest.approx(2 / 9)
    assert figures["fleiss"] == pytest.approx((2 / 9 - chance) / (1 - chance))
    assert (figures["pairs"], figures["turned"]) == (3, 1)
    assert any("annotators of the file pairs agree little" in note for note in stage.notes)


def test_all_origins_have_one_format_and_a_prompt_one_split(stage: Stage) -> None:
    stage.off_policy(
        [{"prompt": f"film {n}", "chosen": "good", "rejected": "bad"} for n in range(20)]
        + [
            {
                "prompt": "",
                "chosen": f"good {n}",
                "rejected": f"bad {n}",
                "origin": "ratings",
                "margin": 1.0,
                "votes": [1],
            }
            for n in range(20)
        ]
    )
    stage.run(pairs={"kind": "all"})
    keys = "id prompt prompt_tokens chosen chosen_tokens rejected rejected_tokens margin origin votes split"
    assert {" ".join(pair) for pair in stage.pairs} == {keys}
    splits: dict[str, set[str]] = {}
    for pair in stage.pairs:
        if pair["prompt"]:
            splits.setdefault(pair["prompt"], set()).add(pair["split"])
    assert len(splits) == 20
    assert all(len(found) == 1 for found in splits.values())
    assert {p["origin"] for p in stage.pairs} == {"sampled", "file", "ratings"}


def test_nothing_left_is_an_error(stage: Stage) -> None:
    stage.prompts([[" a 1", " b 1"]] * 5)
    with pytest.raises(UserError, match=r"no pair is left; dropped: \{'sampled pairs: a tie': 5\}"):
        stage.run()


@pytest.mark.parametrize(
    ("overlay", "message"),
    [
        ({"preferences": {"pairs": {"kind": "top_bottom", "k": 3}}}, r"k \(3\) exceeds half of samples.answers \(4\)"),
        ({"preferences": {"pairs": {"kind": "top_bottom"}}}, "preferences.pairs.k: missing"),
        ({"preferences": {"pairs": {"kind": "best"}}}, "preferences.pairs.kind: .*best_worst"),
        (merge(TINY, {"preferences": {"annotators": {"kind": "panel", "size": 3}}}), "annotators is a panel"),
        (
            {
                "preferences": {"annotators": {"kind": "panel", "size": 3}},
                "corpus": {"judge": {"kind": "callable", "function": "judge.py:score"}},
            },
            "preferences.annotators is a panel",
        ),
        (
            {"preferences": {"annotators": {"kind": "panel", "size": 3}}, "corpus": {"judge": TINY["corpus"]["judge"]}},
            "preferences.annotators is a panel, which scatters",
        ),
        (
            {"preferences": {"annotators": {"kind": "panel", "size": 3}}, "reward": {"loss": {"kind": "listwise"}}},
            "annotators is a panel, which labels pairs, but reward.loss is listwise",
        ),
        ({"preferences": {"annotators": {"kind": "panel", "size": 1}}}, "annotators.size: .* 2"),
        ({"samples": {"answers": 1}}, "samples.answers: .* 2"),
        ({"samples": {"answers": 17}}, "samples.answers: .* 16"),
        ({"samples": {"top_p": 0.0}}, "samples.top_p: .* 0"),
        ({"shared": {"top_p": 0.9}}, "shared.top_p: unknown key: only samples has it"),
        ({"ppo": {"top_p": 0.9}}, "ppo.top_p: unknown key: only samples has it"),
        ({"evaluation": {"top_p": 0.9}}, "evaluation.top_p: unknown key: only samples has it"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(tmp_path: Path, overlay: dict[str, Any], message: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(merge(PARAMS, overlay)), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        config.load(path)


def test_a_panel_on_the_embedded_ratings_is_accepted() -> None:
    config.Params.model_validate(merge(PARAMS, {"preferences": {"annotators": {"kind": "panel", "size": 5}}}))
