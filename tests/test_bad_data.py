"""Malformed inputs of every format, through the corpus stage: one error that names the place, or one counted drop."""

from __future__ import annotations

import datetime
import decimal
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from tasks import corpus
from tasks.errors import UserError
from tasks.language import readers, text
from tasks.runtime import config, record, records
from tests.test_corpus import shared

ROOT = Path(__file__).parents[1]
GOOD = [{"prompt": f"Question {n}?", "answer": f" answer {n}"} for n in range(6)]
PAIRS = [{"prompt": f"Query {n}?", "chosen": " yes", "rejected": " no"} for n in range(3)]
RATED = [{"text": f"text {n}", "rating": n} for n in range(30)]
ASKED, SAID = {"role": "user", "content": "Is it good?"}, {"role": "assistant", "content": "Very."}
RULE, NOT = {"role": "system", "content": "Be short."}, {"role": "assistant", "content": "No."}
COLUMNS = {
    "demonstrations": ("prompt", "answer"),
    "chats": ("messages",),
    "prompts": ("prompt",),
    "held_out": ("prompt",),
    "preferences": ("prompt", "chosen", "rejected"),
    "pairs of chats": ("chosen", "rejected"),
    "rated": ("text", "rating"),
}
BEFORE: dict[str, list[Any]] = {
    "demonstrations": GOOD,
    "chats": [{"messages": [{"role": "user", "content": f"Question {n}?"}, SAID]} for n in range(6)],
    "prompts": [{"prompt": f"Question {n}?"} for n in range(6)],
    "held_out": [{"prompt": "Another thing?"}],
    "preferences": PAIRS,
    "pairs of chats": [{"chosen": [ASKED, SAID], "rejected": [ASKED, NOT]}],
    "rated": RATED,
}
"""Sound rows that stand in front of the one in question."""


def table(kind: str, path: str) -> dict[str, Any]:
    return {"path": path, "hub": False, "split": None, "columns": {name: name for name in COLUMNS[kind]}}


def jsonl(*rows: Any) -> bytes:
    """Objects as JSON, texts as they stand (lone surrogates as escapes), bytes untouched; a line each."""
    return b"".join(
        (row if isinstance(row, bytes) else (row if isinstance(row, str) else json.dumps(row)).encode()) + b"\n"
        for row in rows
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that the stage reads of a model: its tokenizer."""
    folder = tmp_path_factory.mktemp("runs") / "base"
    text.byte_tokenizer().save_pretrained(folder)
    return folder


class Notes:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)

    def log(self, *_: Any) -> None: ...

    def table(self, *_: Any) -> None: ...


def run(
    data: Path, base: Path, kind: str, path: str, judge: Any = None, keep: int = 2
) -> tuple[dict[str, Any], list[str]]:
    """The stage on one table of `kind`, the others sound. Returns its metrics and what it said."""
    (data / "judge.py").write_text("def f(prompts, answers):\n    return [len(a) for a in answers]\n")
    (data / "sound.jsonl").write_bytes(jsonl(*GOOD))
    source: dict[str, Any] = {"kind": "files", "prompts": None, "held_out": None, "preferences": None}
    source["demonstrations"] = table("demonstrations", "sound.jsonl")
    judge = judge or {"kind": "callable", "function": "judge.py:f"}
    if kind == "rated":
        judge = {"kind": "fitted", "rated": table(kind, path), "ridge": 1.0}
    else:
        word = {"chats": "demonstrations", "pairs of chats": "preferences"}.get(kind, kind)
        source[word] = table(kind, path)
    cfg = config.Corpus.model_validate({"data": data, "source": source, "judge": judge, "held_out": keep, "overlap": 8})
    notes, out = Notes(), data.parent / "out"
    style = "chat" if "chats" in kind else "plain"
    with record.listening(notes):
        metrics = corpus.run(shared(format=style, prompt_tokens=128), cfg, base=base, out=out)
    for made in out.glob("*.jsonl"):  # what was let in can be written and read again
        records.read_jsonl(made, "id", "prompt")
    return metrics, notes.lines


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def refused(data: Path, base: Path, expected: str, *args: Any, **options: Any) -> None:
    """One message of one line that begins with `expected` (DATA is the folder), or is it where it ends with a stop."""
    with pytest.raises(UserError) as raised:
        run(data, base, *args, **options)
    message, expected = str(raised.value), expected.replace("DATA", str(data))
    assert message.startswith(expected)
    assert "\n" not in message
    assert message.isprintable()
    assert len(message.replace(str(data), "")) < 400
    if "rated" not in args:  # those are read, but fitted last
        assert not (data.parent / "out").exists()


# Lines that no reader can make sense of, as the last of a file.

D, C, P, R = "demonstrations", "chats", "preferences", "rated"
SYNTAX = "; expected one object per line, found "
LINES: dict[str, tuple[str, Any, str]] = {
    "cut off": (
        D,
        '{"prompt": "a", "answ',
        ":7: not JSON (Unterminated string starting at: line 1 column 17 (char 16))",
    ),
    "words": (D, "hello", f":7: not JSON (Expecting value: line 1 column 1 (char 0)){SYNTAX}'hello'"),
    "comma-separated": (D, "a,b", ":7: not JSON (Expecting value: "),
    "a Python dict": (D, "{'prompt': 'a'}", ":7: not JSON (Expecting property name enclosed in double quotes: "),
    "a comma at the end": (D, '{"prompt": "a",}', ":7: not JSON ("),
    "two on a line": (D, '{"prompt": "a"} {"prompt": "b"}', ":7: not JSON (Extra data: "),
    "a pretty-printed one": (D, '{\n  "prompt": "a"\n}', ":7: not JSON (Expecting property name "),
    "a list": (D, ["a", "b"], ":7: is ['a', 'b'], expected an object with the columns as keys"),
    "a number": (D, "7", ":7: is 7, expected an object with the columns as keys"),
    "a text": (D, '"a"', ":7: is 'a', expected an object with the columns as keys"),
    "null": (D, "null", ":7: is None, expected an object with the columns as keys"),
    "a key twice": (D, '{"prompt": "a", "prompt": "b"}', f":7: not JSON (key 'prompt' stands twice){SYNTAX}"),
    "a key twice, deep in another column": (
        D,
        '{"x": [{"y": {"z": 1, "z": 1}}]}',
        ":7: not JSON (key 'z' stands twice)",
    ),
    "NaN": (D, '{"prompt": "a", "x": NaN}', ":7: not JSON (NaN is no JSON number: write null)"),
    "Infinity": (D, '{"prompt": "a", "x": Infinity}', ":7: not JSON (Infinity is no JSON number: write null)"),
    "minus Infinity": (
        R,
        '{"text": "a", "rating": -Infinity}',
        ":31: not JSON (-Infinity is no JSON number: write null)",
    ),
    "a number of 5000 digits": (R, '{"text": "a", "rating": ' + "9" * 5000 + "}", ":31: not JSON (Exceeds the limit "),
    "nested without end": (D, "[" * 100_000, ":7: not JSON (maximum recursion depth exceeded"),
    "nested without end and closed": (D, '{"a":' * 50_000 + "1" + "}" * 50_000, ":7: not JSON (maximum recursion "),
    "bytes of another encoding": (
        D,
        '{"prompt": "é"}'.encode("latin-1"),
        ":7: not UTF-8 (byte 12 is b'\\xe9'): save it as",
    ),
    "UTF-16 in the middle": (
        D,
        '{"prompt": "a"}'.encode("utf-16"),
        ":7: not UTF-8 (byte 0 is b'\\xff'): save it as UTF-8",
    ),
    "NUL between the letters": (D, '{"prompt": "a"}'.encode("utf-16-le"), ":7: not JSON ("),
    "a raw control character": (
        D,
        b'{"prompt": "a\x01", "answer": "b"}',
        ":7: not JSON (Invalid control character at: ",
    ),
    "9 MB": (
        D,
        b'{"prompt": "' + b"a" * 9_000_000 + b'"}',
        ':7: begins with b\'{"prompt": "aaaaaaaaaaaaaaaaaaaaaaa... and is ',
    ),
    # Sound JSON, but another type than the column's.
    "a number for a prompt": (D, {"prompt": 7, "answer": "b"}, ":7: prompt is 7, expected text"),
    "truth for a prompt": (D, {"prompt": True, "answer": "b"}, ":7: prompt is True, expected text"),
    "an object for a prompt": (
        D,
        {"prompt": {"text": "a"}, "answer": "b"},
        ":7: prompt is {'text': 'a'}, expected text",
    ),
    "a list for an answer": (D, {"prompt": "a", "answer": ["b"]}, ":7: answer is ['b'], expected text"),
    "a number beside a blank": (D, {"prompt": "", "answer": 7}, ":7: answer is 7, expected text"),
    "half a surrogate pair": (
        D,
        {"prompt": "a\ud83d", "answer": "b"},
        ":7: prompt has half a surrogate pair at character 1 ('a\\ud83d'), expected whole characters",
    ),
    "the other half, in an answer": (
        D,
        {"prompt": "a", "answer": "b\ude00c"},
        ":7: answer has half a surrogate pair at ",
    ),
    "half a pair in a chat": (
        C,
        {"messages": [ASKED, SAID | {"content": "\udfff"}]},
        ":7: messages has half a surrogate ",
    ),
    "a text for a chat": (C, {"messages": "hello"}, ":7: messages: is 'hello', expected a list of chat messages"),
    "an object for a chat": (
        C,
        {"messages": {"role": "user"}},
        ":7: messages: is {'role': 'user'}, expected a list of chat ",
    ),
    "a chat of texts": (C, {"messages": ["a"]}, ":7: messages[0]: is 'a', expected an object with role and content"),
    "a chat of chats": (
        C,
        {"messages": [[ASKED, SAID]]},
        ":7: messages[0]: is [{'role': 'user', 'content': 'Is it good?'}, ",
    ),
    "a chat with null": (
        C,
        {"messages": [None, SAID]},
        ":7: messages[0]: is None, expected an object with role and content",
    ),
    "a chat of other keys": (
        C,
        {"messages": [{"from": "human", "value": "a"}]},
        ":7: messages[0]: is {'from': 'human', ",
    ),
    "an unknown role": (
        C,
        {"messages": [ASKED, {"role": "bot", "content": "a"}]},
        ":7: messages[1].role: is 'bot', expected one of system, user, assistant, tool",
    ),
    "no role": (
        C,
        {"messages": [{"role": None, "content": "a"}]},
        ":7: messages[0].role: is None, expected one of system, ",
    ),
    "a role of another type": (
        C,
        {"messages": [{"role": ["user"], "content": "a"}]},
        ":7: messages[0].role: is ['user'], ",
    ),
    "no content": (
        C,
        {"messages": [{"role": "user", "content": None}]},
        ":7: messages[0].content: is None, expected text",
    ),
    "content in parts": (
        C,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
        ":7: messages[0].content: is [{'type': 'text', 'text': 'a'}], expected text",
    ),
    "a prompt that is a list of texts": (
        "prompts",
        {"prompt": ["a"]},
        ":7: prompt[0]: is 'a', expected an object with ",
    ),
    "a held-out prompt that is a number": ("held_out", {"prompt": 1.5}, ":2: prompt is 1.5, expected text"),
    "a number for a side": (P, {"prompt": "a", "chosen": 1, "rejected": "b"}, ":4: chosen is 1, expected text"),
    "a chat of a wrong role as side": (
        "pairs of chats",
        {"chosen": [ASKED, SAID], "rejected": [ASKED, {"role": "gpt", "content": "a"}]},
        ":2: rejected[1].role: is 'gpt', expected one of ",
    ),
    "a rating as text": (R, {"text": "a", "rating": "4"}, ":31: rating is '4', expected a number"),
    "a rating as truth": (R, {"text": "a", "rating": True}, ":31: rating is True, expected a number"),
    "a rating as list": (R, {"text": "a", "rating": [1, 2]}, ":31: rating is [1, 2], expected a number"),
    "a rating beyond floats": (R, '{"text": "a", "rating": 1e400}', ":31: rating is inf, expected a finite number"),
    "a rating of 400 digits": (
        R,
        '{"text": "a", "rating": 1' + "0" * 400 + "}",
        ":31: rating is 1000000000000000000000000",
    ),
    "a rating of a blank text": (R, {"text": " ", "rating": "x"}, ":31: rating is 'x', expected a number"),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_that_is_wrong_is_an_error(name: str, data: Path, base: Path) -> None:
    kind, line, message = LINES[name]
    (data / "rows.jsonl").write_bytes(jsonl(*BEFORE[kind], line))
    refused(data, base, f"DATA/rows.jsonl{message}", kind, "rows.jsonl")


# Rows that say too little: left out and counted, the first of each reason by its place.

DROPS: dict[str, tuple[str, Any, str, str]] = {
    "a blank prompt": (
        D,
        {"prompt": " \t\n", "answer": "b"},
        "no prompt",
        "prompt is ' \\t\\n', expected text that is not blank",
    ),
    "an empty prompt": (D, {"prompt": "", "answer": "b"}, "no prompt", "prompt is '', expected text that is not blank"),
    "a null prompt": (
        D,
        {"prompt": None, "answer": "b"},
        "no prompt",
        "prompt is None, expected text that is not blank",
    ),
    "no prompt": (D, {"answer": "b"}, "no prompt", "prompt is None, expected text that is not blank"),
    "nothing to see": (
        D,
        {"prompt": "\u200b\ufeff\x01", "answer": "b"},
        "no prompt",
        "prompt is '\\u200b\\ufeff\\x01', ",
    ),
    "an empty object": (D, {}, "no prompt", "prompt is None, expected text that is not blank"),
    "a missing answer": (
        D,
        {"prompt": "a", "answers": "b"},
        "no answer",
        "answer is None, expected text that is not blank",
    ),
    "a blank answer": (
        D,
        {"prompt": "a", "answer": " "},
        "no answer",
        "answer is ' ', expected text that is not blank",
    ),
    "NUL in a prompt": (
        D,
        {"prompt": "a\0b", "answer": "c"},
        "NUL character",
        "prompt is 'a\\x00b', expected text without NUL",
    ),
    "NUL in an answer": (
        D,
        {"prompt": "a", "answer": "b\0"},
        "NUL character",
        "answer is 'b\\x00', expected text without ",
    ),
    "a row twice": (D, GOOD[2], "duplicate", "is DATA/rows.jsonl:3 once more"),
    "an empty chat": (C, {"messages": []}, "no prompt", "messages is [], expected text that is not blank"),
    "a null chat": (C, {"messages": None}, "no prompt", "messages is None, expected text that is not blank"),
    "only rules": (C, {"messages": [RULE, SAID]}, "no prompt", "messages is [{'role': 'system', "),
    "only an answer": (C, {"messages": [SAID]}, "no prompt", "messages is [{'role': 'assistant', "),
    "no answer in a chat": (C, {"messages": [ASKED]}, "no answer", "messages is [{'role': 'user', "),
    "a blank answer in a chat": (
        C,
        {"messages": [ASKED, SAID | {"content": " "}]},
        "no answer",
        "messages is [{'role': 'user', ",
    ),
    "a blank turn": (
        C,
        {"messages": [ASKED, SAID | {"content": ""}, ASKED, SAID]},
        "blank message",
        "messages is [{'role': 'user', ",
    ),
    "NUL in a chat": (
        C,
        {"messages": [{"role": "user", "content": "a\0"}, SAID]},
        "NUL character",
        "messages is 'a\\x00', ",
    ),
    "a question of nothing": ("prompts", {"prompt": ""}, "no prompt", "prompt is '', expected text that is not blank"),
    "a question twice": ("prompts", {"prompt": "Question 1?"}, "duplicate", "is DATA/rows.jsonl:2 once more"),
    "a held-out blank": ("held_out", {"prompt": "\n"}, "no prompt", "prompt is '\\n', expected text that is not blank"),
    "two equal sides": (
        P,
        PAIRS[0] | {"rejected": " yes"},
        "chosen equals rejected",
        "rejected is ' yes', expected another ",
    ),
    "equal but for spaces": (
        P,
        PAIRS[0] | {"rejected": "yes\n"},
        "chosen equals rejected",
        "rejected is 'yes\\n', expected ",
    ),
    "one side": (
        P,
        {"prompt": "a", "chosen": "b"},
        "no chosen or rejected",
        "rejected is None, expected text that is not ",
    ),
    "a blank side": (
        P,
        PAIRS[0] | {"chosen": " "},
        "no chosen or rejected",
        "chosen is ' ', expected text that is not blank",
    ),
    "sides without prompt": (
        P,
        PAIRS[0] | {"prompt": None},
        "no prompt",
        "prompt is None, expected text that is not blank",
    ),
    "NUL in a side": (
        P,
        PAIRS[0] | {"rejected": "\0no"},
        "NUL character",
        "rejected is '\\x00no', expected text without NUL",
    ),
    "a pair twice": (P, PAIRS[1], "duplicate", "is DATA/rows.jsonl:2 once more"),
    "a text against a chat": (
        P,
        {"prompt": "a", "chosen": [ASKED, SAID], "rejected": "no"},
        "chosen and rejected answer different prompts",
        "rejected is 'no', expected the turns before the answer to be those of chosen",
    ),
    "chats of another prompt": (
        P,
        {"prompt": "a", "chosen": [ASKED, SAID], "rejected": [ASKED, NOT]},
        "the chats begin with another prompt",
        "prompt is 'a', expected what stands before the answers, 'Is it good?'",
    ),
    "chats of two prompts": (
        "pairs of chats",
        {"chosen": [RULE, ASKED, SAID], "rejected": [ASKED, NOT]},
        "chosen and rejected answer different prompts",
        "rejected is [{'role': 'user', ",
    ),
    "chats without an answer": (
        "pairs of chats",
        {"chosen": [ASKED], "rejected": [ASKED, NOT]},
        "no chosen or rejected",
        "chosen is [{'role': 'user', ",
    ),
    "no text": (R, {"rating": 1}, "no text", "text is None, expected text that is not blank"),
    "no rating": (R, {"text": "a"}, "no rating", "rating is None, expected a number"),
    "a null rating": (R, {"text": "a", "rating": None}, "no rating", "rating is None, expected a number"),
    "a text rated twice": (
        R,
        {"text": "text 3", "rating": -1},
        "duplicate",
        "text is 'text 3', which an earlier row has",
    ),
}


@pytest.mark.parametrize("name", DROPS)
def test_a_row_that_says_too_little_is_counted(name: str, data: Path, base: Path) -> None:
    kind, row, reason, first = DROPS[name]
    (data / "rows.jsonl").write_bytes(jsonl(*BEFORE[kind], row))
    metrics, notes = run(data, base, kind, "rows.jsonl")
    counted = {"chats": D, "pairs of chats": P}.get(kind, kind)
    assert metrics["dropped"][f"{counted}: {reason}"] == 1
    where = f"{data}/rows.jsonl:{len(BEFORE[kind]) + 1}: {first.replace('DATA', str(data))}"
    assert any(line.startswith(f"dropped 1, {counted}: {reason} (first: {where}") for line in notes), notes
    assert all(line.isprintable() for line in notes)


def test_a_training_row_with_a_held_out_prompt_is_counted_by_its_place(data: Path, base: Path) -> None:
    pair = {"prompt": "", "chosen": " yes", "rejected": " no"}
    (data / "rows.jsonl").write_bytes(jsonl(*[pair | {"prompt": f"Question {n}?"} for n in range(6)]))
    metrics, notes = run(data, base, P, "rows.jsonl", keep=2)
    assert metrics["dropped"][f"{P}: prompt is held out"] == 2
    assert any(f"dropped 2, {P}: prompt is held out (first: {data}/rows.jsonl:" in line for line in notes)


# Files as a whole.


def _parquet(path: Path, columns: dict[str, Any], **options: Any) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns, **options), path)


def _cut(path: Path, keep: Callable[[bytes], bytes]) -> None:
    _parquet(path, {"prompt": [f"q {n}" for n in range(500)], "answer": ["a"] * 500})
    path.write_bytes(keep(path.read_bytes()))


def _not_utf8(path: Path) -> None:
    raw = pyarrow.array([b"\xff\xfe", b"ok"], pyarrow.binary()).view(pyarrow.string())
    _parquet(path, {"prompt": raw, "answer": ["a", "b"]})


def _twice(path: Path) -> None:
    two = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["prompt", "prompt"])
    pyarrow.parquet.write_table(two.append_column("answer", pyarrow.array(["c"])), path)


def _link(path: Path, target: str) -> None:
    path.symlink_to(target)


def _outside(path: Path) -> None:
    (path.parent.parent / "secret").mkdir()
    (path.parent.parent / "secret/rows.jsonl").write_bytes(jsonl(*GOOD))


def _link_out(path: Path) -> None:
    _outside(path)
    path.symlink_to("../secret/rows.jsonl")


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rows.jsonl", jsonl(*GOOD))


CHOSEN = datetime.datetime(2026, 1, 1)
OUT = "is a link out of corpus.data (DATA), where no change of it would be noticed"
FILES: dict[str, tuple[str, str, Callable[[Path], Any], str]] = {
    "nothing there": (D, "rows.jsonl", lambda p: None, "DATA/rows.jsonl not found; DATA holds: judge.py, sound.jsonl"),
    "a folder": (D, "rows", Path.mkdir, "DATA/rows is a folder, expected a file (or a glob, such as rows/*.jsonl)"),
    "a folder named as a file": (D, "rows.jsonl", Path.mkdir, "DATA/rows.jsonl is a folder, expected a file"),
    "a pipe": (
        D,
        "rows.jsonl",
        os.mkfifo,
        "DATA/rows.jsonl is no regular file (a pipe, a socket or a device), expected one",
    ),
    "a link to nothing": (
        D,
        "rows.jsonl",
        lambda p: _link(p, "gone"),
        "DATA/rows.jsonl is a link that leads nowhere, ",
    ),
    "a link to itself": (
        D,
        "rows.jsonl",
        lambda p: _link(p, "rows.jsonl"),
        "DATA/rows.jsonl is a link that leads nowhere",
    ),
    "a link out": (D, "rows.jsonl", _link_out, f"DATA/rows.jsonl {OUT}"),
    "a device": (D, "rows.jsonl", lambda p: _link(p, "/dev/zero"), f"DATA/rows.jsonl {OUT}"),
    "another ending": (
        D,
        "rows.csv",
        lambda p: p.write_bytes(jsonl(*GOOD)),
        "DATA/rows.csv: expected .jsonl or .parquet",
    ),
    "packed by its name": (D, "rows.jsonl.gz", lambda p: p.write_bytes(b""), "DATA/rows.jsonl.gz: expected .jsonl or "),
    "packed by gzip": (
        D,
        "rows.jsonl",
        lambda p: p.write_bytes(gzip.compress(jsonl(*GOOD))),
        "DATA/rows.jsonl: is compressed by gzip: unpack it; expected text with one JSON object per line",
    ),
    "packed by zip": (
        D,
        "rows.jsonl",
        _zip,
        "DATA/rows.jsonl: is a zip archive: unpack it; expected text with one JSON ",
    ),
    "UTF-16": (
        D,
        "rows.jsonl",
        lambda p: p.write_bytes(jsonl(*GOOD).decode().encode("utf-16")),
        "DATA/rows.jsonl: is UTF-16: save it as UTF-8; expected text with one JSON object per line",
    ),
    "parquet by another name": (
        D,
        "rows.jsonl",
        lambda p: _cut(p, bytes),
        "DATA/rows.jsonl: is parquet: name it .parquet; ",
    ),
    "line ends of an old Mac": (
        D,
        "rows.jsonl",
        lambda p: p.write_bytes(jsonl(*GOOD).replace(b"\n", b"\r")),
        "DATA/rows.jsonl:1: not JSON (Extra data: ",
    ),
    "another column": (
        D,
        "rows.jsonl",
        lambda p: p.write_bytes(jsonl({"Prompt": "a", "answer": "b", "\x1b[31m": 1})),
        "DATA/rows.jsonl: no column 'prompt' (for prompt); it has: Prompt, answer, '\\\\x1b[31m'",
    ),
    "an empty file": (
        D,
        "rows.jsonl",
        lambda p: p.write_bytes(b""),
        "corpus: no usable row for demonstrations (the source is ",
    ),
    "blank lines": (
        D,
        "rows.jsonl",
        lambda p: p.write_bytes(b"\n \r\n"),
        "corpus: no usable row for demonstrations (the ",
    ),
    "a byte order mark alone": (
        D,
        "rows.jsonl",
        lambda p: p.write_bytes(b"\xef\xbb\xbf"),
        "corpus: no usable row for ",
    ),
    "one row": (
        D,
        "rows.jsonl",
        lambda p: p.write_bytes(jsonl(GOOD[0])),
        "corpus.held_out: is 2, but there are 1 prompts in all",
    ),
    "one rating": (
        R,
        "rows.jsonl",
        lambda p: p.write_bytes(jsonl(RATED[0])),
        "corpus.judge: 1 rated texts with 1 different ratings, expected at least 20 texts and two ratings",
    ),
    "one rating for all": (
        R,
        "rows.jsonl",
        lambda p: p.write_bytes(jsonl(*[r | {"rating": 3} for r in RATED])),
        "corpus.judge: 30 rated texts with 1 different ratings, expected at least 20 texts and two ratings",
    ),
    "a held-out prompt in training": (
        "held_out",
        "rows.jsonl",
        lambda p: p.write_bytes(jsonl({"prompt": "question 3"})),
        "DATA/rows.jsonl:1: the held-out prompt 'question 3' occurs in training (DATA/sound.jsonl:4); 1 of 1 do: ",
    ),
    "a prompt too long": (
        "prompts",
        "rows.jsonl",
        lambda p: p.write_bytes(jsonl(*BEFORE["prompts"], {"prompt": "x" * 129})),
        "DATA/rows.jsonl:7: the prompt has 129 tokens, shared.prompt_tokens allows 128 (too long: 1 prompts, ",
    ),
    "a glob of nothing": (D, "part-*.jsonl", lambda p: None, "DATA/part-*.jsonl not found; DATA holds: "),
    "a glob that is none": (
        D,
        "a**.jsonl",
        lambda p: None,
        "'a**.jsonl': is no path or glob below corpus.data (DATA): ",
    ),
    "a name too long": (D, "x" * 300, lambda p: None, "'xxx"),
    "no parquet": (
        D,
        "rows.parquet",
        lambda p: p.write_bytes(b"not parquet"),
        "DATA/rows.parquet: cannot be read as parquet: Parquet magic bytes not found",
    ),
    "an empty parquet file": (
        D,
        "rows.parquet",
        lambda p: p.write_bytes(b""),
        "DATA/rows.parquet: cannot be read as parquet",
    ),
    "a parquet file without its end": (
        D,
        "rows.parquet",
        lambda p: _cut(p, lambda b: b[:-20]),
        "DATA/rows.parquet: cannot be read as parquet: ",
    ),
    "a parquet file without its middle": (
        D,
        "rows.parquet",
        lambda p: _cut(p, lambda b: b[:40] + b[400:]),
        "DATA/rows.parquet: cannot be read as parquet: ",
    ),
    "parquet without the column": (
        D,
        "rows.parquet",
        lambda p: _parquet(p, {"question": ["a"], "answer": ["b"]}),
        "DATA/rows.parquet: no column 'prompt' (for prompt); it has: question, answer",
    ),
    "a parquet column twice": (
        D,
        "rows.parquet",
        _twice,
        "DATA/rows.parquet: has column 'prompt' 2 times, expected once",
    ),
    "a parquet column of numbers": (
        D,
        "rows.parquet",
        lambda p: _parquet(p, {"prompt": ["a", "b"], "answer": [1, 2]}),
        "DATA/rows.parquet row 0: answer is 1, expected text",
    ),
    "a parquet column of bytes": (
        D,
        "rows.parquet",
        lambda p: _parquet(p, {"prompt": [b"a"], "answer": ["b"]}),
        "DATA/rows.parquet row 0: prompt is b'a', expected text",
    ),
    "a parquet column of times": (
        D,
        "rows.parquet",
        lambda p: _parquet(p, {"prompt": ["a"], "answer": [CHOSEN]}),
        "DATA/rows.parquet row 0: answer is datetime.datetime(2026, 1, 1, 0, 0), expected text",
    ),
    "parquet texts that are no UTF-8": (
        D,
        "rows.parquet",
        _not_utf8,
        "DATA/rows.parquet: cannot be read as parquet: 'utf-8'",
    ),
    "a parquet chat of texts": (
        C,
        "rows.parquet",
        lambda p: _parquet(p, {"messages": [["hello"]]}),
        "DATA/rows.parquet row 0: messages[0]: is 'hello', expected an object with role and content",
    ),
    "a parquet chat of maps": (
        C,
        "rows.parquet",
        lambda p: _parquet(
            p, {"messages": pyarrow.array([[("role", "user")]], pyarrow.map_(pyarrow.string(), pyarrow.string()))}
        ),
        "DATA/rows.parquet row 0: messages[0]: is ('role', 'user'), expected an object with role and content",
    ),
    "parquet ratings as texts": (
        R,
        "rows.parquet",
        lambda p: _parquet(p, {"text": ["a"], "rating": ["4"]}),
        "DATA/rows.parquet row 0: rating is '4', expected a number",
    ),
    "a parquet rating that is NaN": (
        R,
        "rows.parquet",
        lambda p: _parquet(p, {"text": ["a", "b"], "rating": [1.0, float("nan")]}),
        "DATA/rows.parquet row 1: rating is nan, expected a finite number",
    ),
    "parquet ratings as decimals": (
        R,
        "rows.parquet",
        lambda p: _parquet(p, {"text": ["a"], "rating": [decimal.Decimal("4.5")]}),
        "DATA/rows.parquet row 0: rating is Decimal('4.5'), expected a number",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_wrong_is_an_error(name: str, data: Path, base: Path) -> None:
    kind, path, make, message = FILES[name]
    make(data / path)
    refused(data, base, message, kind, path)


def test_links_out_of_the_data_are_found_wherever_they_stand(data: Path, base: Path) -> None:
    _outside(data / "rows.jsonl")
    (data / "sub").symlink_to("../secret")
    refused(data, base, f"DATA/sub/rows.jsonl {OUT}", D, "sub/rows.jsonl")
    refused(data, base, f"DATA/sub/rows.jsonl {OUT}", D, "sub/*.jsonl")
    refused(data, base, f"DATA/sub/rows.jsonl {OUT}", D, "s*/rows.jsonl")


def test_a_file_name_that_is_no_text(data: Path, base: Path) -> None:
    """Found by a glob: bytes that are no UTF-8, and an escape sequence."""
    for raw in (b"part-\xff\x1b[2J.jsonl", b"part-\xff\x1b[2J.parquet"):
        (data / os.fsdecode(raw)).write_bytes(b"no")
        refused(data, base, "DATA/part-\ufffd\ufffd[2J.", D, "part-*")
        (data / os.fsdecode(raw)).unlink()
    refused(data, base, "DATA/part-* not found; DATA holds: judge.py, sound.jsonl", D, "part-*")


def test_each_file_of_a_glob_must_have_the_columns(data: Path, base: Path) -> None:
    (data / "part-1.jsonl").write_bytes(jsonl(*GOOD))
    (data / "part-2.jsonl").write_bytes(jsonl({"question": "a", "answer": "b"}))
    refused(
        data, base, "DATA/part-2.jsonl: no column 'prompt' (for prompt); it has: question, answer", D, "part-*.jsonl"
    )
    (data / "part-2.jsonl").unlink()
    (data / "part-2.jsonl").mkdir()
    refused(data, base, "DATA/part-2.jsonl is a folder, expected a file", D, "part-*.jsonl")


def test_a_file_that_may_not_be_read() -> None:
    # As root nothing is forbidden: the test becomes nobody for the reading. Not below pytest's folder, root's own.
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for file in ("rows.jsonl", "rows.parquet"):
            (folder / file).write_bytes(jsonl(*GOOD))
            (folder / file).chmod(0)
        if root:
            os.seteuid(65534)
        try:
            for file, said in (
                ("rows.jsonl", "cannot be read: Permission denied"),
                ("rows.parquet", "cannot be read as "),
            ):
                with pytest.raises(UserError) as raised:
                    readers.read(folder, config.Table.model_validate(table(D, file)))
                assert str(raised.value).startswith(f"{folder}/{file}: {said}")
        finally:
            if root:
                os.seteuid(0)


SOUND: dict[str, bytes] = {
    "a byte order mark": b"\xef\xbb\xbf" + jsonl(*GOOD),
    "line ends of Windows": jsonl(*GOOD).replace(b"\n", b"\r\n"),
    "no line end at the end": jsonl(*GOOD).rstrip(),
    "blank lines between": b"\n \n" + jsonl(*GOOD).replace(b"\n", b"\n\n"),
    "other columns": jsonl(*[row | {"id": 1, "x": {"y": [None, "\ud800"]}} for row in GOOD]),
    "a line separator in a text": jsonl(*[row | {"answer": " a\u2028b\u0085c"} for row in GOOD]),
    "emoji of several characters": jsonl(*[row | {"answer": " 👩‍👩‍👧 ok"} for row in GOOD]),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_only_looks_odd_is_read(name: str, data: Path, base: Path) -> None:
    (data / "rows.jsonl").write_bytes(SOUND[name])
    metrics, _ = run(data, base, D, "rows.jsonl")
    assert metrics["rows"]["demonstrations"] == 4
    assert metrics["dropped"] == {"demonstrations: prompt is held out": 2}


def test_a_line_of_megabytes_takes_bounded_memory(tmp_path: Path) -> None:
    """A file of 300 MB in one line, refused by a process that may not hold it."""
    with (tmp_path / "rows.jsonl").open("wb") as file:
        file.write(b'{"prompt": "')
        file.truncate(300_000_000)  # the rest is NUL, and takes no room on the disk
    program = f"""
import resource, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tasks.language import jsonl
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    list(jsonl.rows(Path({str(tmp_path / "rows.jsonl")!r}), "rows.jsonl"))
except Exception as error:
    print(error, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    message, _, kilobytes = done.stdout.rpartition(" ")
    assert message.startswith('rows.jsonl:1: begins with b\'{"prompt": "\\x00'), done.stdout + done.stderr
    assert int(kilobytes) < 60_000


JUDGES: dict[str, tuple[str, str, str]] = {
    "no file": ("none.py:f", "", "corpus.judge.function: DATA/none.py not found"),
    "a folder": ("folder.py:f", "", "corpus.judge.function: DATA/folder.py not found"),
    "a file outside": ("../mine.py:f", "", "corpus.judge.function: ../mine.py leads out of corpus.data (DATA)"),
    "an absolute file": ("/etc/mine.py:f", "", "corpus.judge.function: /etc/mine.py leads out of corpus.data (DATA)"),
    "a link out": ("link.py:f", "", "corpus.judge.function: link.py leads out of corpus.data (DATA)"),
    "no module": (
        "no.such.module:f",
        "",
        "corpus.judge.function: no.such.module:f cannot be imported: ModuleNotFoundError: ",
    ),
    "a module above": ("..mine:f", "", "corpus.judge.function: ..mine:f cannot be imported: TypeError: "),
    "no such function": ("mine.py:g", "f = 1", "cannot be imported: AttributeError: "),
    "not a function": ("mine.py:f", "f = 1", "is not a function"),
    "no Python": ("mine.py:f", "def f(:", "cannot be imported: SyntaxError: "),
    "it ends the process": ("mine.py:f", "import sys\nsys.exit(0)", "cannot be imported: SystemExit: 0"),
    "it ends the process later": (
        "mine.py:f",
        "def f(p, a):\n    raise SystemExit(0)",
        "judge mine.py:f failed: SystemExit: 0",
    ),
    "it fails": (
        "mine.py:f",
        "def f(p, a):\n    return 1 / 0",
        "judge mine.py:f failed: ZeroDivisionError: division by zero",
    ),
    "it returns nothing": (
        "mine.py:f",
        "def f(p, a): pass",
        "judge mine.py:f failed: TypeError: 'NoneType' object is not ",
    ),
    "it returns texts": (
        "mine.py:f",
        "def f(p, a):\n    return ['4'] * len(a)",
        "judge mine.py:f failed: TypeError: a score is '4'",
    ),
    "it returns truth": (
        "mine.py:f",
        "def f(p, a):\n    return [True] * len(a)",
        "judge mine.py:f failed: TypeError: a score is Tr",
    ),
    "it returns None for one": (
        "mine.py:f",
        "def f(p, a):\n    return [None for _ in a]",
        "judge mine.py:f failed: TypeError: ",
    ),
    "too few": ("mine.py:f", "def f(p, a):\n    return []", "judge mine.py:f returned 0 scores for 1 answers"),
    "too many": ("mine.py:f", "def f(p, a):\n    return [1, 2, 3]", "judge mine.py:f returned 3 scores for 1 answers"),
    "no end": (
        "mine.py:f",
        "import itertools\ndef f(p, a):\n    return itertools.count()",
        "judge mine.py:f returned 2 or more scores for 1 answers",
    ),
    "NaN": (
        "mine.py:f",
        "def f(p, a):\n    return [float('nan') for _ in a]",
        "judge mine.py:f returned nan for answer ' answer ",
    ),
    "too large": (
        "mine.py:f",
        "def f(p, a):\n    return [10 ** 400 for _ in a]",
        "judge mine.py:f failed: OverflowError: ",
    ),
}


@pytest.mark.parametrize("name", JUDGES)
def test_a_function_that_is_no_judge(name: str, data: Path, base: Path) -> None:
    function, body, message = JUDGES[name]
    (data.parent / "mine.py").write_text("def f(prompts, answers):\n    return [0 for _ in answers]\n")
    (data / "link.py").symlink_to("../mine.py")
    (data / "folder.py").mkdir()
    (data / "mine.py").write_text(body)
    with pytest.raises(UserError) as raised:
        run(data, base, D, "sound.jsonl", judge={"kind": "callable", "function": function})
    assert message.replace("DATA", str(data)) in str(raised.value)


def test_the_user_sees_one_line(data: Path, base: Path) -> None:
    """The command that DVC calls, in a process of its own, on a row that no UTF-8 file can hold."""
    folder = data.parent
    full = config.load(ROOT / "params.yaml").model_dump(mode="json")
    from flows import workspace
    from tasks.runtime import document

    params = workspace.merge(full, document.read(ROOT / "profiles/tiny.yaml") | {"shared": {"seed": 1}})
    params["corpus"] |= {"data": "data", "source": params["corpus"]["source"] | {"prompts": None, "preferences": None}}
    params["reward"]["origins"] = ["sampled"]
    document.write(folder / "params.yaml", params)
    shutil.copy(ROOT / "dvc.yaml", folder)
    shutil.copytree(base, folder / "runs/base")
    (data / "demonstrations.jsonl").write_bytes(jsonl(*GOOD, {"prompt": "\ud800\x1b[31m", "answer": "b"}))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RLHF_TRACKING": "off", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tasks", "corpus"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.stderr.splitlines()[1:] == [
        "error: data/demonstrations.jsonl:7: prompt has half a surrogate pair at character 0 ('\\ud800\\x1b[31m'), "
        "expected whole characters"
    ]
    assert done.returncode == 1
    assert not (folder / "runs/corpus").exists()
