"""Whatever stands in a file, the readers give rows or one message. Derandomised: the same inputs on every run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.errors import UserError
from tasks.language import dialogue, examples, readers
from tasks.runtime import config, records

KINDS: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "demonstrations": (("prompt", "answer"), examples.demonstrations),
    "chats": (("messages",), examples.demonstrations),
    "prompts": (("prompt",), lambda rows, dropped: examples.prompts(rows, "prompts", dropped)),
    "preferences": (("prompt", "chosen", "rejected"), examples.preferences),
    "pairs of chats": (("chosen", "rejected"), examples.preferences),
    "rated": (("text", "rating"), examples.rated),
}
NAMES = ("prompt", "answer", "messages", "chosen", "rejected", "text", "rating", "role", "content")
bounded = settings(max_examples=100, deadline=None, derandomize=True, database=None)

texts = st.text(st.characters(codec=None), max_size=8) | st.sampled_from(
    ["", " ", "\0", "\ud800", "\u200b", "a", "1e4"]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.just(10**400)
message = st.fixed_dictionaries(
    {},
    optional={"role": st.sampled_from(dialogue.ROLES) | scalars, "content": texts | scalars, "name": scalars},
)
values = st.recursive(
    scalars | st.lists(message, max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | texts, inner, max_size=3),
    max_leaves=8,
)
row = st.dictionaries(st.sampled_from(NAMES), values, max_size=6)
likely = st.fixed_dictionaries(
    {},
    optional={
        "prompt": texts | st.lists(message, max_size=3),
        "answer": texts,
        "messages": st.lists(message, max_size=4),
        "chosen": texts | st.lists(message, max_size=3),
        "rejected": texts | st.lists(message, max_size=3),
        "text": texts,
        "rating": st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    },
)


def outcome(name: str, data: bytes) -> None:
    """Read a file of these bytes as every kind: rows that can be written and read again, or one clean message."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / name).write_bytes(data)
        for columns, make in KINDS.values():
            table = config.Table(path=name, hub=False, split=None, columns={column: column for column in columns})
            dropped = examples.Dropped()
            try:
                rows = readers.read(root, table)
                found = make(rows, dropped)
            except UserError as error:
                said = str(error)
            else:
                said = ""
            assert said.startswith(f"{root}/{name}" if said else "")
            assert "\n" not in said
            assert len(said) < 600
            if said:
                continue
            assert len(found) + sum(dropped.counts.values()) == len(rows)
            assert all(line.isprintable() for line in dropped.lines())
            kept = [{"id": 1, **vars(one)} for one in found]
            records.write_jsonl(root / "kept.jsonl", kept)
            assert records.read_jsonl(root / "kept.jsonl") == kept


@bounded
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    outcome("rows.jsonl", data)
    outcome("rows.parquet", data)


@bounded
@given(st.text(st.sampled_from('{}[]",: \n\r\\ue9aNIfty0-.\ufeff'), max_size=60))
def test_any_text_of_jsons_characters(text: str) -> None:
    outcome("rows.jsonl", text.encode())


@bounded
@given(st.lists(row | likely, max_size=4), st.booleans())
def test_any_values_in_the_place_of_rows(rows: list[dict[str, Any]], escaped: bool) -> None:
    lines = [json.dumps(row, ensure_ascii=escaped) for row in rows]
    outcome("rows.jsonl", "\n".join(lines).encode("utf-8", "surrogatepass"))


@bounded
@given(st.lists(row | likely, min_size=1, max_size=2), st.data())
def test_a_sound_file_with_one_byte_changed(rows: list[dict[str, Any]], draw: st.DataObject) -> None:
    data = bytearray("\n".join(json.dumps(row) for row in rows).encode())
    data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    outcome("rows.jsonl", bytes(data))


column = st.sampled_from(
    [
        pyarrow.string(),
        pyarrow.large_string(),
        pyarrow.int64(),
        pyarrow.float32(),
        pyarrow.bool_(),
        pyarrow.binary(),
        pyarrow.timestamp("ns"),
        pyarrow.date32(),
        pyarrow.null(),
        pyarrow.list_(pyarrow.string()),
        pyarrow.list_(pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string())])),
        pyarrow.list_(pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.int32())])),
        pyarrow.map_(pyarrow.string(), pyarrow.string()),
        pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
        pyarrow.decimal128(5, 2),
    ]
)
sound = st.text(st.characters(codec="utf-8"), max_size=5)


def _cells(kind: pyarrow.DataType) -> st.SearchStrategy[Any]:
    plain = {
        pyarrow.int64(): st.integers(-(2**63), 2**63 - 1),
        pyarrow.float32(): st.floats(width=32),
        pyarrow.bool_(): st.booleans(),
        pyarrow.binary(): st.binary(max_size=4),
        pyarrow.timestamp("ns"): st.integers(-(2**63) + 1, 2**63 - 1),
        pyarrow.date32(): st.integers(-(2**31), 2**31 - 1),
        pyarrow.null(): st.none(),
        pyarrow.decimal128(5, 2): st.decimals(-99, 99, places=2),
        pyarrow.map_(pyarrow.string(), pyarrow.string()): st.lists(st.tuples(sound, sound), max_size=2),
        pyarrow.list_(pyarrow.string()): st.lists(sound, max_size=2),
    }
    if kind in plain:
        return st.none() | plain[kind]
    if pyarrow.types.is_list(kind):
        content = sound if kind.value_type.field("content").type == pyarrow.string() else st.integers(0, 9)
        turn = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "x"]), "content": content})
        return st.none() | st.lists(turn, max_size=3)
    return st.none() | sound


@st.composite
def parquet(draw: st.DrawFn) -> bytes:
    count = draw(st.integers(0, 3))
    table = {}
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)):
        kind = draw(column)
        table[name] = pyarrow.array(draw(st.lists(_cells(kind), min_size=count, max_size=count)), kind)
    buffer = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(table), buffer)
    return buffer.getvalue().to_pybytes()


@bounded
@given(parquet())
def test_any_parquet_columns(data: bytes) -> None:
    outcome("rows.parquet", data)


@bounded
@given(parquet(), st.data())
def test_parquet_that_is_cut_or_changed(data: bytes, draw: st.DataObject) -> None:
    end = draw.draw(st.integers(0, len(data)))
    changed = bytearray(data)
    changed[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    outcome("rows.parquet", data[:end])
    outcome("rows.parquet", bytes(changed))
