"""corpus: what is split, kept apart, dropped and refused; the embedded parser on an archive of the same layout."""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import base, corpus
from tasks.algorithms.agreement import vote_agreement
from tasks.algorithms.panel import rating_spread, simulated_rating
from tasks.errors import UserError
from tasks.language import embedded, judge, snippets
from tasks.language.dialogue import draw
from tasks.language.examples import Dropped, Example
from tasks.language.overlap import HeldOut
from tasks.runtime import config

REVIEWS = Path("examples/reviews")
DEMONSTRATIONS = {
    "path": "demonstrations.jsonl",
    "hub": False,
    "split": None,
    "columns": {"prompt": "prompt", "answer": "answer"},
}
PROMPTS = DEMONSTRATIONS | {"path": "prompts.jsonl", "columns": {"prompt": "prompt"}}
PREFERENCES = DEMONSTRATIONS | {"path": "preferences.jsonl"}
PREFERENCES["columns"] = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
HELD_OUT = PROMPTS | {"path": "held.jsonl"}
RATED = DEMONSTRATIONS | {"path": "rated.jsonl", "columns": {"text": "text", "rating": "rating"}}
FITTED = {"kind": "fitted", "rated": RATED, "ridge": 1.0}
FUNCTION = {"kind": "callable", "function": "judge.py:length"}


def shared(**changes: Any) -> config.Shared:
    values = {"seed": 5, "precision": "float32", "format": "plain", "prompt_tokens": 64, "answer_tokens": 40}
    return config.Shared.model_validate(values | {"temperature": 1.0} | changes)


def section(data: Path, *, keep: int = 16, overlap: int = 8, judge: Any = FITTED, **source: Any) -> config.Corpus:
    """keep: the number of held-out prompts; `source` takes tables by their names."""
    tables = {"kind": "files", "demonstrations": DEMONSTRATIONS, "prompts": None, "held_out": None, "preferences": None}
    values = {"data": data, "source": tables | source, "judge": judge, "held_out": keep, "overlap": overlap}
    return config.Corpus.model_validate(values)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "base"
    base.run(shared(), config.Base(model="tiny", revision=None, track=Path()), out=out)
    return out


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A data folder with a judge of length; tests put tables into it."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "judge.py").write_text("def length(prompts, answers):\n    return [len(a) for a in answers]\n")
    return data


def put(data: Path, name: str, rows: list[dict[str, Any]]) -> None:
    (data / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def made(out: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]


def test_the_users_tables_become_the_corpus(tiny: Path, tmp_path: Path) -> None:
    cfg = section(REVIEWS, prompts=PROMPTS, preferences=PREFERENCES)
    metrics = corpus.run(shared(), cfg, base=tiny, out=tmp_path / "a")
    assert metrics["rows"] == {"demonstrations": 120, "prompts": 84, "held_out": 16, "pairs": 120, "rated": 150}
    held, asked = made(tmp_path / "a", "held_out"), made(tmp_path / "a", "prompts")
    given = {json.loads(line)["prompt"] for line in (REVIEWS / "prompts.jsonl").read_text().splitlines()}
    assert {r["prompt"] for r in held} | {r["prompt"] for r in asked} == given
    assert {r["prompt"] for r in held}.isdisjoint(r["prompt"] for r in asked)
    assert all(set(r) == {"id", "prompt"} for r in held + asked)
    demonstrations = made(tmp_path / "a", "demonstrations")
    assert all(set(r) == {"id", "prompt", "answer"} and r["answer"].startswith(" ") for r in demonstrations)
    pairs = made(tmp_path / "a", "pairs")
    assert all(set(r) == {"id", "prompt", "chosen", "rejected", "margin", "votes", "origin"} for r in pairs)
    assert {(r["origin"], r["margin"], r["votes"]) for r in pairs} == {("file", None, None)}
    assert not (tmp_path / "a" / "raters.json").exists()
    for rows in (held + asked, demonstrations, pairs):
        assert len({r["id"] for r in rows}) == len(rows)
    assert metrics["judge"]["pearson"] > 0.5
    good, bad = judge.load(tmp_path / "a" / "judge").score(["The pie"] * 2, [" was wonderful.", " was cold and stale."])
    assert good > bad

    corpus.run(shared(), cfg, base=tiny, out=tmp_path / "b")
    for path in (p for p in (tmp_path / "a").rglob("*") if p.is_file()):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes(), path
    corpus.run(shared(seed=6), cfg, base=tiny, out=tmp_path / "c")
    assert {r["id"] for r in made(tmp_path / "c", "held_out")} != {r["id"] for r in held}


def test_a_new_row_leaves_the_other_held_out_prompts_in_place(tiny: Path, mine: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"Question {n}?", "answer": f" Answer {n}."} for n in range(40)]
    put(mine, "demonstrations.jsonl", rows)
    cfg = section(mine, keep=10, judge=FUNCTION)
    corpus.run(shared(), cfg, base=tiny, out=tmp_path / "a")
    put(mine, "demonstrations.jsonl", [{"prompt": "Question 99?", "answer": " One more."}, *reversed(rows)])
    corpus.run(shared(), cfg, base=tiny, out=tmp_path / "b")
    before, after = ({r["prompt"] for r in made(tmp_path / run, "held_out")} for run in "ab")
    assert len(before & after) >= 9


def test_without_a_table_the_demonstrations_give_the_prompts(tiny: Path, mine: Path, tmp_path: Path) -> None:
    put(mine, "demonstrations.jsonl", [{"prompt": f"Q{n // 2}", "answer": f" A{n}"} for n in range(20)])
    metrics = corpus.run(shared(), section(mine, keep=3, judge=FUNCTION), base=tiny, out=tmp_path / "out")
    assert metrics["rows"] == {"demonstrations": 14, "prompts": 7, "held_out": 3, "pairs": 0, "rated": 0}
    assert metrics["dropped"] == {"demonstrations: prompt is held out": 6}
    held = {r["prompt"] for r in made(tmp_path / "out", "held_out")}
    assert held.isdisjoint(r["prompt"] for r in made(tmp_path / "out", "demonstrations"))
    assert (tmp_path / "out" / "pairs.jsonl").read_text() == ""


def test_what_comes_near_a_held_out_prompt_is_dropped(tiny: Path, mine: Path, tmp_path: Path) -> None:
    put(mine, "held.jsonl", [{"prompt": "one two three four five six seven"}])
    put(
        mine,
        "demonstrations.jsonl",
        [
            {"prompt": "zero", "answer": " Two, three; four FIVE!"},  # four words in a row, as the limit
            {"prompt": "zero", "answer": " two three four"},
            {"prompt": "zero two three", "answer": " five six seven"},
            {"prompt": "so: four", "answer": " five six seven"},  # across the seam of prompt and answer
        ],
    )
    put(mine, "preferences.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "x three four five six"}])
    put(
        mine,
        "rated.jsonl",
        [{"text": f"text {n}", "rating": n} for n in range(30)] + [{"text": "Four five six seven.", "rating": 0}],
    )
    cfg = section(mine, overlap=4, held_out=HELD_OUT, preferences=PREFERENCES)
    metrics = corpus.run(shared(), cfg, base=tiny, out=tmp_path / "out")
    assert metrics["dropped"] == {
        "demonstrations: overlaps a held-out text": 2,
        "preferences: overlaps a held-out text": 1,
        "rated: overlaps a held-out text": 1,
    }
    assert {r["answer"] for r in made(tmp_path / "out", "demonstrations")} == {" two three four", " five six seven"}


def test_a_frame_around_every_prompt_is_no_leak() -> None:
    frame = "please write one short review of this place in plain words:"
    held = HeldOut([Example("", f"{frame} place {n} by the river") for n in range(60)], 8)
    kept = held.apart([Example("", f"{frame} town {n} in the hills") for n in range(5)], "prompts", Dropped())
    assert len(kept) == 5
    assert held.apart([Example("", f"{frame} place 7 by the river")], "prompts", Dropped()) == []
    assert held.shares("review of this place in plain words: place 7 by")
    # With few held-out prompts a run shared by two of them is still one that must not be trained on.
    assert HeldOut([Example("", f"{frame} {n}") for n in range(2)], 8).shares(frame)


def test_a_text_shorter_than_the_run_leaks_as_a_whole() -> None:
    held = HeldOut([Example("", "A good film")], 8)
    assert held.shares("a good film!")
    assert not held.shares("a good film indeed")


def test_system_messages_are_no_leak(tiny: Path, mine: Path, tmp_path: Path) -> None:
    rule = {"role": "system", "content": "You are an assistant who always answers in one short sentence."}
    chats = [[rule, {"role": "user", "content": f"Q{n}?"}, {"role": "assistant", "content": f"A{n}"}] for n in range(8)]
    put(mine, "demonstrations.jsonl", [{"messages": chat} for chat in chats])
    chat_table = DEMONSTRATIONS | {"columns": {"messages": "messages"}}
    cfg = section(mine, keep=2, judge=FUNCTION, demonstrations=chat_table)
    metrics = corpus.run(shared(format="chat", prompt_tokens=128), cfg, base=tiny, out=tmp_path / "out")
    assert (metrics["rows"]["demonstrations"], metrics["rows"]["held_out"]) == (6, 2)
    assert made(tmp_path / "out", "held_out")[0]["prompt"][0] == rule
    with pytest.raises(UserError, match=r"demonstrations.jsonl:\d: .*shared.format"):
        corpus.run(shared(), cfg, base=tiny, out=tmp_path / "plain")


def plain(n: int) -> list[dict[str, Any]]:
    return [{"prompt": f"Question {n}", "answer": f" answer {n}"} for n in range(n)]


REFUSED: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "no rows": ([], {}, r"no usable row for demonstrations \(the source is empty"),
    "only blank rows": (
        [{"prompt": "a", "answer": " "}],
        {},
        r"demonstrations \(dropped 1, demonstrations: no answer \(first: .*:1: answer is ' ', expected text that",
    ),
    "nothing left to train on": (plain(8), {"keep": 8}, "corpus.held_out: is 8, but there are 8 prompts in all"),
    "a prompt too long": (
        [*plain(8), {"prompt": "x" * 65, "answer": " y"}, {"prompt": "x" * 70, "answer": " y"}],
        {},
        r"demonstrations.jsonl:\d+: the prompt has (65|70) tokens, .* allows 64 "
        r"\(too long: 2 prompts, the longest with 70",
    ),
    "all near the held-out": (
        [{"prompt": f"a b c d {n}", "answer": " e"} for n in range(2)],
        {"keep": 1, "overlap": 2},
        "no usable row",
    ),
    "no judge file": (plain(8), {"judge": FUNCTION | {"function": "none.py:f"}}, "none.py not found"),
    "judge of other arguments": (plain(8), {"judge": FUNCTION | {"function": "math:sqrt"}}, "judge math:sqrt failed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_corpus_that_cannot_serve(name: str, tiny: Path, mine: Path, tmp_path: Path) -> None:
    rows, options, message = REFUSED[name]
    put(mine, "demonstrations.jsonl", rows)
    cfg = section(mine, **({"keep": 2, "judge": FUNCTION} | options))
    with pytest.raises(UserError, match=message):
        corpus.run(shared(), cfg, base=tiny, out=tmp_path / "out")


@pytest.mark.parametrize("leaking", ["demonstrations", "preferences"])
def test_a_held_out_prompt_in_training_is_refused(leaking: str, tiny: Path, mine: Path, tmp_path: Path) -> None:
    leak = {"prompt": "question  THREE?"}
    put(mine, "held.jsonl", [{"prompt": "Question one?"}, {"prompt": "Question three."}])
    more = [leak | {"answer": " b"}] if leaking == "demonstrations" else []
    put(mine, "demonstrations.jsonl", [{"prompt": "Question two?", "answer": " a"}, *more])
    put(mine, "preferences.jsonl", [leak | {"chosen": "a", "rejected": "b"}] if leaking == "preferences" else [])
    cfg = section(mine, held_out=HELD_OUT, judge=FUNCTION, preferences=PREFERENCES)
    where = "demonstrations.jsonl:2" if leaking == "demonstrations" else "preferences.jsonl:1"
    with pytest.raises(UserError, match=rf"held.jsonl:2: the held-out prompt .* \(\S*{where}\); 1 of 2"):
        corpus.run(shared(), cfg, base=tiny, out=tmp_path / "out")


# The embedded source, on an archive of the same layout with made-up snippets.


def archive(path: Path, sets: dict[str, list[tuple[str, list[int]]]]) -> Path:
    """Tables inside a tar.gz inside a tar.gz, with a byte order mark and Windows line ends as in the real one."""
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as tar:
        for name, rows in sets.items():
            texts = "".join(f"{n}\t{np.mean(r)}\t{t}\r\n" for n, (t, r) in enumerate(rows, 1))
            ratings = "\ufeff" + "".join(f"{n}\t{np.mean(r)}\t{np.std(r)}\t{r}\r\n" for n, (_, r) in enumerate(rows, 1))
            for kind, content in (("GroundTruth", texts), ("anonDataRatings", ratings)):
                add(tar, f"hutto_ICWSM_2014/{name}_{kind}.txt", content.encode())
    with tarfile.open(path, "w:gz") as tar:
        add(tar, "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz", inner.getvalue())
    return path


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(0)
    words = [f"{a}{b}" for a in "bcdfghklmn" for b in ("ale", "ine", "ost", "urk")]
    good, bad = words[:20], words[20:]

    def snippet() -> tuple[str, list[int]]:
        mean = rng.choice([-2, 2])
        middle = rng.choices(good if mean > 0 else bad, k=rng.randint(2, 6))
        return " ".join(["The", rng.choice(words), *middle, rng.choice(words)]) + ".", [
            mean + rng.choice([-1, 0, 1]) for _ in range(15)
        ]

    sets = {name: [snippet() for _ in range(60)] for name in snippets.OTHERS}
    sets[snippets.MOVIES] = [snippet() for _ in range(600)]
    return archive(tmp_path_factory.mktemp("sdist") / "vader.tar.gz", sets)


def snippet_section(**changes: Any) -> config.Corpus:
    source = {"kind": "embedded", "prompt_words": 3, "judge_share": 0.5, "demonstrations": 60, "prompts": 50}
    source |= {"pairs": 80, "pair_gap": 1.0} | changes
    judged = {"kind": "fitted", "rated": None, "ridge": 1.0}
    values = {"data": "data/embedded", "source": source, "judge": judged, "held_out": 30, "overlap": 4}
    return config.Corpus.model_validate(values)


def runs(text: str, n: int) -> set[str]:
    words = text.lower().replace(".", "").split()
    return {" ".join(words[i : i + n]) for i in range(len(words) - n + 1)}


def test_the_embedded_corpus(tiny: Path, sdist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "fetch", lambda name: sdist if name == "snippets" else None)
    metrics = corpus.run(shared(answer_tokens=30), snippet_section(), base=tiny, out=tmp_path)
    assert metrics["rows"] | {"rated": 0} == {
        "demonstrations": 60,
        "prompts": 50,
        "held_out": 30,
        "pairs": 80,
        "rated": 0,
    }
    rated = {s.text: s for s in snippets.read(sdist, snippets.MOVIES)}
    every = {text: s.mean for text, s in rated.items()}
    demonstrations, prompts, held, pairs = (
        made(tmp_path, n) for n in ("demonstrations", "prompts", "held_out", "pairs")
    )
    whole = [r["prompt"] + r["answer"] for r in demonstrations]
    assert set(whole) <= set(every)
    assert all(len(r["prompt"].split()) == 3 and r["answer"][0] == " " for r in demonstrations)
    assert all(len(r["answer"].encode()) < 30 for r in demonstrations)  # with its end within 30 tokens of a byte
    assert all(r["prompt"] == "" and r["origin"] == "ratings" for r in pairs)
    for r in pairs:
        assert r["margin"] == pytest.approx(every[r["chosen"]] - every[r["rejected"]])
        assert r["margin"] >= 1.0
        # The k-th person of the one text against the k-th of the other.
        both = zip(rated[r["chosen"]].ratings, rated[r["rejected"]].ratings, strict=True)
        assert r["votes"] == [int(np.sign(a - b)) for a, b in both]
    uses = Counter(text for r in pairs for text in (r["chosen"], r["rejected"]))
    assert max(uses.values()) <= 2
    # A held-out prompt opens exactly the texts that no training stage has, not even four words of.
    hidden = {t for t in every if any(t.startswith(r["prompt"] + " ") for r in held)}
    trained = [*whole, *uses, *(r["prompt"] for r in prompts)]
    assert hidden.isdisjoint(trained)
    assert {r["prompt"] for r in held}.isdisjoint(r["prompt"] for r in prompts)
    assert len({r["prompt"] for r in held}) == 30
    assert metrics["dropped"].get("snippets: prompt is held out", 0) <= len(hidden) - 30
    near = set().union(*(runs(t, 4) for t in hidden))
    assert all(near.isdisjoint(runs(t, 4)) for t in trained)
    # The judge learns the made-up words, and people agree at a gap of 1 because the two means are 4 apart.
    assert metrics["judge"]["pairs_ordered_as_people"] > 0.9
    assert metrics["judge"]["one_person_ordered_as_the_others"] > 0.9


def test_the_judge_half_never_meets_the_policy(tiny: Path, sdist: Path, tmp_path: Path, monkeypatch) -> None:
    learnt: list[str] = []
    fit = corpus.ratings.fit

    def spy(rated, *rest, **options):
        learnt.extend(r.text for r in rated if r.importance == 1)
        return fit(rated, *rest, **options)

    monkeypatch.setattr(embedded, "fetch", lambda _: sdist)
    monkeypatch.setattr(corpus.ratings, "fit", spy)
    cfg = snippet_section().model_copy(update={"overlap": 3})
    metrics = corpus.run(shared(), cfg, base=tiny, out=tmp_path)
    policy = {r["prompt"] + r["answer"] for r in made(tmp_path, "demonstrations")}
    policy |= {r[side] for r in made(tmp_path, "pairs") for side in ("chosen", "rejected")}
    assert len(learnt) > 200
    assert policy.isdisjoint(learnt)
    # Nor does the judge learn three words in a row of a held-out text.
    assert metrics["dropped"]["rated: overlaps a held-out text"] > 0


def test_an_archive_of_another_layout_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.tar.gz"
    with tarfile.open(other, "w:gz") as tar:
        add(tar, "vaderSentiment-9/setup.py", b"")
    (tmp_path / "broken.tar.gz").write_bytes(b"not an archive")
    for path in (other, tmp_path / "broken.tar.gz"):
        with pytest.raises(UserError, match="does not hold movieReviewSnippets in the expected layout"):
            snippets.read(path, snippets.MOVIES)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("  A ''quiet''   film  ", 'A "quiet" film'),
        ("Lovely &amp; Amazing", "Lovely & Amazing"),
        ("dull , long ; bad !", "dull, long; bad!"),
        ("the end .", "the end."),
        ("funny ... and sad", "funny ... and sad"),
        ("cue    things", "cue things"),
    ],
)
def test_clean(raw: str, expected: str) -> None:
    assert snippets.clean(raw) == expected


def test_rated_pairs_are_wide_enough_and_few_per_text() -> None:
    texts, means = [f"t{n}" for n in range(100)], [n / 25 for n in range(100)]
    found = snippets.rated_pairs(texts, means, gap=1.0, count=60, rng=np.random.default_rng(0))
    assert len(found) == len(set(found)) == 60
    assert all(means[a] - means[b] >= 1.0 for a, b in found)
    assert found == snippets.rated_pairs(texts, means, gap=1.0, count=60, rng=np.random.default_rng(0))
    assert snippets.rated_pairs(["a", "b"], [0.0, 3.0], gap=3.0, count=5, rng=np.random.default_rng(0)) == [(1, 0)]
    assert snippets.rated_pairs(["a", "b"], [0.0, 3.0], gap=3.1, count=5, rng=np.random.default_rng(0)) == []


def test_the_spread_of_ratings_is_that_of_the_judge_half(tiny: Path, sdist: Path, tmp_path: Path, monkeypatch) -> None:
    """The made-up ratings are the mean -2 or 2, give or take 1, each alike: the shares of both must come back."""
    monkeypatch.setattr(embedded, "fetch", lambda _: sdist)
    corpus.run(shared(), snippet_section(), base=tiny, out=tmp_path)
    spread = json.loads((tmp_path / "raters.json").read_text())
    assert spread["levels"] == [-3, -2, -1, 1, 2, 3]
    assert len(spread["means"]) == len(spread["shares"]) == 40
    low, high = ([s for s in spread["shares"] if s[place]] for place in (0, -1))
    assert np.mean(low, axis=0) == pytest.approx([1 / 3] * 3 + [0] * 3, abs=0.05)
    assert np.mean(high, axis=0) == pytest.approx([0] * 3 + [1 / 3] * 3, abs=0.05)
    policy = {r["prompt"] + r["answer"] for r in made(tmp_path, "demonstrations")}
    movies = sorted(snippets.read(sdist, snippets.MOVIES), key=lambda s: draw(5, "order", s.text))
    theirs = [s for s in movies if draw(5, "half", s.text) < 0.5]
    assert policy.isdisjoint(s.text for s in theirs)
    assert (spread["levels"], spread["means"], spread["shares"]) == rating_spread(
        [s.ratings for s in theirs], groups=40
    )


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        (["chosen", "rejected", "tie"], [1, -1, 0]),
        (["chosen", None, "chosen"], [1, 1]),
        ([None], None),
        ([], None),
        (None, None),
    ],
    ids=str,
)
def test_votes_of_a_file(votes: Any, expected: Any, tiny: Path, mine: Path, tmp_path: Path) -> None:
    put(mine, "demonstrations.jsonl", plain(8))
    put(mine, "preferences.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c", "labels": votes}])
    table = PREFERENCES | {"columns": PREFERENCES["columns"] | {"votes": "labels"}}
    corpus.run(shared(), section(mine, keep=2, judge=FUNCTION, preferences=table), base=tiny, out=tmp_path / "out")
    assert [r["votes"] for r in made(tmp_path / "out", "pairs")] == [expected]


@pytest.mark.parametrize("votes", ["chosen", [1, 0], ["left"], {"chosen": 3}], ids=str)
def test_votes_that_are_none_are_refused(votes: Any, tiny: Path, mine: Path, tmp_path: Path) -> None:
    put(mine, "demonstrations.jsonl", plain(8))
    put(mine, "preferences.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c", "votes": votes}])
    table = PREFERENCES | {"columns": PREFERENCES["columns"] | {"votes": "votes"}}
    cfg = section(mine, keep=2, judge=FUNCTION, preferences=table)
    with pytest.raises(UserError, match=r"preferences.jsonl:1: votes .*expected .*chosen, rejected, tie or null"):
        corpus.run(shared(), cfg, base=tiny, out=tmp_path / "out")


@pytest.mark.network
@pytest.mark.slow
def test_a_simulated_panel_agrees_as_people_do() -> None:
    """On real pairs: people's votes against those of a panel that knows the two means and the other half's spread."""
    found = snippets.read(embedded.fetch("snippets"), snippets.MOVIES)
    levels, means, shares = rating_spread([s.ratings for s in found[::2]], groups=40)
    ours = found[1::2]
    rng = np.random.default_rng(0)
    for gap in (0.05, 0.5, 1.0):
        pairs = snippets.rated_pairs([s.text for s in ours], [s.mean for s in ours], gap=gap, count=1000, rng=rng)
        rate = partial(simulated_rating, levels=levels, means=means, shares=shares)
        panel = [[[rate(ours[i].mean, rng.random()) for _ in range(15)] for i in pair] for pair in pairs]
        simulated = vote_agreement([np.sign(np.subtract(*ratings)).tolist() for ratings in panel])
        people = vote_agreement([snippets.votes(ours[a], ours[b]) for a, b in pairs])
        assert simulated["raw"] == pytest.approx(people["raw"], abs=0.03)
        assert simulated["krippendorff"] == pytest.approx(people["krippendorff"], abs=0.05)


@pytest.mark.network
@pytest.mark.slow
def test_the_embedded_snippets() -> None:
    found = snippets.read(embedded.fetch("snippets"), snippets.MOVIES)
    assert 10_600 <= len(found) <= 10_605
    assert min(len(s.ratings) for s in found) == 15
    assert max(len(s.ratings) for s in found) == 29
    assert found[2].text == "Effective but too tepid biopic"
    assert found[2].mean == pytest.approx(-0.6)
