"""Tables to rows, and rows to examples: what is accepted, what is dropped and counted, what is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from tasks.errors import UserError
from tasks.language import dialogue, examples, readers
from tasks.language.examples import Dropped
from tasks.runtime import config, records

ASKED = {"role": "user", "content": "Is it good?"}
SAID = {"role": "assistant", "content": "Very."}
RULE = {"role": "system", "content": "Be short."}


def table(path: str, **columns: str) -> config.Table:
    return config.Table(path=path, hub=False, split=None, columns=columns)


def rows(folder: Path, lines: list[Any], **columns: str) -> list[readers.Row]:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (folder / "rows.jsonl").write_text(text, encoding="utf-8")
    return readers.read(folder, table("rows.jsonl", **columns))


def test_columns_are_renamed_and_rows_know_their_line(tmp_path: Path) -> None:
    found = rows(tmp_path, [{"q": "a", "x": 1}, "", {"q": "b", "r": "c"}], prompt="q", answer="r")
    assert [r.values for r in found] == [{"prompt": "a", "answer": None}, {"prompt": "b", "answer": "c"}]
    assert [r.where for r in found] == [f"{tmp_path}/rows.jsonl:1", f"{tmp_path}/rows.jsonl:3"]


def test_byte_order_mark_windows_lines_and_line_separators_in_text(tmp_path: Path) -> None:
    words = "one\u2028two"  # a line separator that splitlines() would cut at
    (tmp_path / "rows.jsonl").write_bytes(b"\xef\xbb\xbf" + f'{{"q": "{words}"}}\r\n{{"q": "b"}}'.encode())
    found = readers.read(tmp_path, table("rows.jsonl", prompt="q"))
    assert [r.values["prompt"] for r in found] == [words, "b"]


def test_a_glob_reads_its_files_in_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"part-{name}.jsonl").write_text(json.dumps({"q": name}) + "\n")
    found = readers.read(tmp_path, table("part-*.jsonl", prompt="q"))
    assert [r.values["prompt"] for r in found] == ["a", "b"]


def test_parquet_with_chat_messages(tmp_path: Path) -> None:
    chats = [[RULE, ASKED, SAID], [ASKED, SAID, ASKED]]
    pyarrow.parquet.write_table(pyarrow.table({"chat": chats}), tmp_path / "rows.parquet")
    found = examples.demonstrations(readers.read(tmp_path, table("rows.parquet", messages="chat")), Dropped())
    assert [(e.prompt, e.answer) for e in found] == [([RULE, ASKED], "Very."), ([ASKED], "Very.")]
    assert found[1].where.endswith("rows.parquet row 1")


def test_a_hub_data_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = {}

    def load(name: str, **options: Any) -> datasets.Dataset:
        asked.update(options, name=name)
        return datasets.Dataset.from_dict({"q": ["a", "b"]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    hub = config.Table(path="someone/reviews@abc", hub=True, split="train", columns={"prompt": "q"})
    assert [r.values["prompt"] for r in readers.read(tmp_path, hub)] == ["a", "b"]
    assert asked == {"name": "someone/reviews", "split": "train", "revision": "abc"}


def test_a_hub_data_set_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    hub = {"path": "someone/reviews", "hub": True, "columns": {"prompt": "q"}}
    with pytest.raises(UserError, match="someone/reviews: cannot be read from the hub"):
        readers.read(tmp_path, config.Table(split="train", **hub))
    with pytest.raises(UserError, match="needs its split"):
        readers.read(tmp_path, config.Table.model_construct(split=None, **hub))


BAD_FILES = {
    "not JSON": (b'{"q": "a"}\n{"q": \n', r"rows.jsonl:2: not JSON"),
    "not an object": (b'["a"]\n', r"rows.jsonl:1: is \['a'\], expected an object"),
    "a pretty-printed list": (b'[\n  {"q": "a"}\n]\n', r"rows.jsonl:1: not JSON .* one object per line"),
    "nested too deeply": (b"[" * 100_000 + b"]" * 100_000, r"rows.jsonl:1: not JSON"),
    "Latin-1": ('{"q": "café"}\n'.encode("latin-1"), r"rows.jsonl:1: not UTF-8 \(byte 10 is b'\\xe9'\)"),
    "column missing": (b'{"question": "a", "n": 1}\n', r"no column 'q' \(for prompt\); it has: question, n"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    data, message = BAD_FILES[name]
    (tmp_path / "rows.jsonl").write_bytes(data)
    with pytest.raises(UserError, match=message):
        readers.read(tmp_path, table("rows.jsonl", prompt="q"))


def test_paths_stay_below_the_data_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "rows.jsonl").write_text('{"q": "a"}\n')
    (data / "notes.csv").write_text("q\na\n")
    (data / "link.jsonl").symlink_to(tmp_path / "rows.jsonl")
    (data / "bad.parquet").write_bytes(b"PAR1 not really")
    for path, message in (
        ("link.jsonl", "link out of corpus.data"),
        ("missing.jsonl", "not found; .* holds: bad.parquet, link.jsonl, notes.csv"),
        ("notes.csv", "expected .jsonl or .parquet"),
        ("bad.parquet", "cannot be read as parquet"),
    ):
        with pytest.raises(UserError, match=message):
            readers.read(data, table(path, prompt="q"))
    # The params refuse such a path already; the reader does not rely on it.
    for path in ("../rows.jsonl", str(tmp_path / "rows.jsonl")):
        with pytest.raises(UserError, match=r"expected a path below corpus\.data"):
            readers.read(data, config.Table.model_construct(path=path, hub=False, split=None, columns={"prompt": "q"}))
    with pytest.raises(UserError, match=r"is not a folder"):
        readers.read(tmp_path / "nowhere", table("rows.jsonl", prompt="q"))


def test_demonstrations_are_kept_dropped_and_counted(tmp_path: Path) -> None:
    lines = [
        {"q": "The film is", "r": " a delight"},
        {"q": "The film is", "r": " a delight"},
        {"q": "  \t ", "r": " a bore"},
        {"q": "The film is", "r": ""},
        {"q": None, "r": " a bore"},
        {"q": "Das Ende", "r": " überrascht 😀 "},
    ]
    dropped = Dropped()
    found = examples.demonstrations(rows(tmp_path, lines, prompt="q", answer="r"), dropped)
    assert [(e.prompt, e.answer) for e in found] == [("The film is", " a delight"), ("Das Ende", " überrascht 😀 ")]
    assert dropped.counts == {
        "demonstrations: duplicate": 1,
        "demonstrations: no prompt": 2,
        "demonstrations: no answer": 1,
    }


def test_prompts_leave_out_a_final_answer(tmp_path: Path) -> None:
    lines = [{"m": [RULE, ASKED, SAID]}, {"m": [ASKED]}, {"m": []}, {"m": [RULE]}]
    dropped = Dropped()
    found = examples.prompts(rows(tmp_path, lines, messages="m"), "prompts", dropped)
    assert [e.prompt for e in found] == [[RULE, ASKED], [ASKED]]
    assert dropped.counts == {"prompts: no prompt": 2}


def test_preferences_as_texts_and_as_chats(tmp_path: Path) -> None:
    other = {"role": "assistant", "content": "No."}
    lines = [
        {"q": "Good?", "c": "yes", "r": "no"},
        {"q": "Good?", "c": "yes", "r": "yes"},
        {"q": "Good?", "c": "yes", "r": " "},
    ]
    dropped = Dropped()
    found = examples.preferences(rows(tmp_path, lines, prompt="q", chosen="c", rejected="r"), dropped)
    assert [(e.prompt, e.chosen, e.rejected) for e in found] == [("Good?", "yes", "no")]
    chats = [
        {"c": [RULE, ASKED, SAID], "r": [RULE, ASKED, other]},
        {"c": [RULE, ASKED, SAID], "r": [ASKED, other]},
    ]
    found = examples.preferences(rows(tmp_path, chats, chosen="c", rejected="r"), dropped)
    assert [(e.prompt, e.chosen, e.rejected) for e in found] == [([RULE, ASKED], "Very.", "No.")]
    assert dropped.counts == {
        "preferences: chosen equals rejected": 1,
        "preferences: no chosen or rejected": 1,
        "preferences: chosen and rejected answer different prompts": 1,
    }


def test_rated_texts(tmp_path: Path) -> None:
    lines = [{"t": "a", "s": 1}, {"t": "a", "s": 2}, {"t": "b", "s": -0.5}, {"t": "", "s": 1}, {"t": "c", "s": None}]
    dropped = Dropped()
    found = examples.rated(rows(tmp_path, lines, text="t", rating="s"), dropped)
    assert [(r.text, r.rating) for r in found] == [("a", 1.0), ("b", -0.5)]
    assert dropped.counts == {"rated: duplicate": 1, "rated: no text": 1, "rated: no rating": 1}


BAD_ROWS = {
    "a number as prompt": ("demonstrations", {"prompt": 7, "answer": "b"}, r":1: prompt is 7, expected text"),
    "a list as answer": ("demonstrations", {"prompt": "a", "answer": ["b"]}, r":1: answer is \['b'\], expected text"),
    "half a surrogate": (
        "demonstrations",
        '{"prompt": "a\\ud800", "answer": "b"}',
        "half a surrogate pair at character 1",
    ),
    "chat as text": ("chats", {"messages": "hello"}, r":1: messages: is 'hello', expected a list of chat messages"),
    "chat of texts": ("chats", {"messages": ["hello"]}, r"messages\[0\]: is 'hello', expected an object"),
    "other keys": (
        "chats",
        {"messages": [{"from": "human", "value": "a"}]},
        r"expected an object with role and content",
    ),
    "other role": ("chats", {"messages": [{"role": "human", "content": "a"}]}, r"messages\[0\].role: is 'human'"),
    "no content": ("chats", {"messages": [{"role": "user", "content": None}]}, r"content: is None, expected text"),
    "rating as text": ("rated", {"text": "a", "rating": "4"}, r":1: rating is '4', expected a number"),
    "rating as truth": ("rated", {"text": "a", "rating": True}, r":1: rating is True, expected a number"),
    "rating NaN": ("rated", '{"text": "a", "rating": NaN}', r":1: not JSON \(NaN is no JSON number: write null\)"),
    "rating infinite": ("rated", '{"text": "a", "rating": 1e400}', r":1: rating is inf, expected a finite number"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_row_of_the_wrong_type(name: str, tmp_path: Path) -> None:
    kind, line, message = BAD_ROWS[name]
    read = {"demonstrations": examples.demonstrations, "chats": examples.demonstrations, "rated": examples.rated}[kind]
    names = {"demonstrations": ("prompt", "answer"), "chats": ("messages",), "rated": ("text", "rating")}[kind]
    with pytest.raises(UserError, match=message):
        read(rows(tmp_path, [line], **{n: n for n in names}), Dropped())


def test_a_draw_is_uniform_and_depends_on_each_part() -> None:
    drawn = [dialogue.draw(1, "order", n) for n in range(4000)]
    assert abs(sum(drawn) / 4000 - 0.5) < 0.02  # standard error .0046
    assert 0 <= min(drawn) < 0.01 < 0.99 < max(drawn) < 1
    assert len({dialogue.draw(1, "order", 1), dialogue.draw(2, "order", 1), dialogue.draw(1, "half", 1)}) == 3


def test_words_in_scripts_with_and_without_spaces() -> None:
    assert dialogue.words("It's GOOD,\n good-ish: 2x!") == ("it", "s", "good", "good", "ish", "2x")
    assert dialogue.words("映画は good") == ("映", "画", "は", "good")


def test_records_are_whole_and_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    assert records.write_jsonl(path, [{"b": "é\u2028", "a": 1}, {"b": "", "a": None}]) == 2
    assert path.read_bytes() == '{"b": "é\u2028", "a": 1}\n{"b": "", "a": null}\n'.encode()
    assert records.read_jsonl(path, "a", "b") == [{"b": "é\u2028", "a": 1}, {"b": "", "a": None}]
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.write_jsonl(path, [{"a": float("nan")}])
    assert [p.name for p in path.parent.iterdir()] == ["rows.jsonl"]
    assert len(records.read_jsonl(path)) == 2  # the failed write left the old file as it was
    with pytest.raises(UserError, match=r"rows.jsonl:1: lacks c"):
        records.read_jsonl(path, "a", "c")
    with pytest.raises(UserError, match="not found"):
        records.read_jsonl(tmp_path / "missing.jsonl")
    records.write_json(tmp_path / "one.json", {"b": 1, "a": [1.5]})
    assert (tmp_path / "one.json").read_text() == '{\n  "a": [\n    1.5\n  ],\n  "b": 1\n}\n'
