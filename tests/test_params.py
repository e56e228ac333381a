"""params.yaml: every fault at once, each with its path, its value and what was expected."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import Field, model_validator

from flows import workspace
from tasks.errors import UserError
from tasks.runtime import config, document
from tasks.runtime.faults import faults
from tasks.runtime.sections.section import Count, Section

ROOT = Path(__file__).parents[1]
TINY = ROOT / "profiles/tiny.yaml"
GONE = object()
FILES = {"path": "a.jsonl", "hub": False, "split": None, "columns": {"prompt": "q", "answer": "a"}}
HUB = {"path": "someone/reviews", "hub": True, "split": "train", "columns": {"prompt": "q"}}


def defaults(*overlays: Path) -> dict[str, Any]:
    params = document.read(ROOT / "params.yaml")
    for overlay in overlays:
        params = workspace.merge(params, document.read(overlay))
    return params


def put(params: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Changes by dotted path, a list's item by its number; GONE takes the key away."""
    for path, value in changes.items():
        *above, last = path.split(".")
        here: Any = params
        for step in above:
            here = here[step]
        if value is GONE:
            del here[last]
        else:
            here[last] = value
    return params


def told(params: Any) -> list[str]:
    """The lines below the headline, whose count they must have."""
    with pytest.raises(UserError) as raised:
        config.check(params, "params.yaml")
    head, *lines = str(raised.value).split("\n")
    assert head == f"params.yaml has {len(lines)} fault(s):"
    return [line.removeprefix("  ") for line in lines]


def test_what_is_committed_has_no_fault() -> None:
    assert isinstance(config.load(ROOT / "params.yaml"), config.Params)
    config.check(defaults(TINY), "tiny")


PPO, TABLE, HELD = "ppo", "corpus.source.demonstrations", "corpus.source.held_out"
ONE: dict[str, tuple[dict[str, Any], str]] = {
    # One value: what pydantic tells, in our words.
    "unknown key": ({"dpo.sft_weigth": 1}, "dpo.sft_weigth: unknown key, expected sft_weight?"),
    "unknown section": ({"pppo": {}}, "pppo: unknown key, expected ppo?"),
    "nothing like it": (
        {"comparison.zzz": 1},
        "comparison.zzz: unknown key, expected examples, ",
    ),
    "a key is no text": ({"dpo.7": 1}, "dpo.7: unknown key, expected "),
    "missing key": ({"dpo.loss.beta": GONE}, "dpo.loss.beta: missing"),
    "missing section": ({"dpo": GONE}, "dpo: missing"),
    "a section is null": ({"dpo": None}, "dpo: is None, expected keys with values"),
    "a section is a list": ({"dpo": [1]}, "dpo: is [1], expected keys with values"),
    "text for a number": ({"dpo.loss.beta": "0.1"}, "dpo.loss.beta: is '0.1', expected a number"),
    "text for a count": ({"samples.prompts": "12"}, "samples.prompts: is '12', expected a whole number"),
    "truth for a count": ({"samples.prompts": True}, "samples.prompts: is True, expected a whole number"),
    "truth for a number": ({"dpo.loss.beta": True}, "dpo.loss.beta: is True, expected a number"),
    "a fraction of a count": ({"samples.prompts": 1.5}, "samples.prompts: is 1.5, expected a whole number"),
    "a whole float": ({"samples.prompts": 64.0}, "samples.prompts: is 64.0, expected a whole number"),
    "null": ({"shared.seed": None}, "shared.seed: is None, expected a whole number"),
    "number for text": (
        {"base.revision": 1234567},
        "base.revision: is 1234567, expected text (in quotes, if it looks like a number or a date)",
    ),
    "text for truth": ({f"{TABLE}.hub": "no"}, f"{TABLE}.hub: is 'no', expected true or false"),
    "text for a list": ({"dpo.origins": "sampled"}, "dpo.origins: is 'sampled', expected a list, such as [a, b]"),
    "number for a path": ({"corpus.data": 3}, "corpus.data: is 3, expected a path"),
    "zero for a count": ({"samples.batch": 0}, "samples.batch: is 0, expected greater than or equal to 1"),
    "negative seed": ({"shared.seed": -1}, "shared.seed: is -1, expected greater than or equal to 0"),
    "a seed that no generator takes": (
        {"shared.seed": 2**64},
        "shared.seed: is 18446744073709551616, expected ",
    ),
    "a number of 4301 digits": ({"shared.seed": 10**4301}, "shared.seed: is a int of more than 4300 digits, expected "),
    "NaN": ({"dpo.loss.beta": float("nan")}, "dpo.loss.beta: is nan, expected "),
    "infinite": ({"shared.temperature": float("inf")}, "shared.temperature: is inf, expected a finite number"),
    "a NaN score": ({"ppo.missing_eos.value": float("nan")}, "ppo.missing_eos.value: is nan, expected a finite number"),
    "a share of 1": ({"preferences.held_out": 1.0}, "preferences.held_out: is 1.0, expected less than 1"),
    "confidence in per cent": ({"evaluation.confidence": 95}, "evaluation.confidence: is 95, expected less than 1"),
    "learning rate 0": (
        {"sft.optimiser.learning_rate": 0},
        "sft.optimiser.learning_rate: is 0, expected ",
    ),
    "K of 1": ({"samples.answers": 1}, "samples.answers: is 1, expected greater than or equal to 2"),
    "KL target 0": (
        {"ppo.kl": {"kind": "adaptive", "coefficient": 0.1, "target": 0, "horizon": 100}},
        "ppo.kl.target: is 0, expected greater than 0",
    ),
    "KL horizon below 0": (
        {"ppo.kl": {"kind": "adaptive", "coefficient": 0.1, "target": 6, "horizon": -1}},
        "ppo.kl.horizon: is -1, expected greater than 0",
    ),
    "a kind of KL": ({"ppo.kl.kind": "fixd"}, "ppo.kl.kind: is 'fixd', expected one of fixed, adaptive"),
    "a kind that is a list": ({"ppo.kl.kind": ["fixed"]}, "ppo.kl.kind: is ['fixed'], expected one of fixed, adaptive"),
    "no kind": ({"ppo.kl": {"coefficient": 0.1}}, "ppo.kl.kind: missing"),
    "a key of the other kind": (
        {"ppo.kl": {"kind": "fixed", "coefficient": 0.1, "target": 6}},
        "ppo.kl.target: unknown key, expected kind, coefficient",
    ),
    "a precision": (
        {"shared.precision": "float16"},
        "shared.precision: is 'float16', expected 'bfloat16' or ",
    ),
    "an origin": ({"dpo.origins": ["filed"]}, "dpo.origins.0: is 'filed', expected 'sampled', 'ratings' or 'file'"),
    "no origins": ({"dpo.origins": []}, "dpo.origins: is [], expected "),
    "a column of ours": (
        {f"{TABLE}.columns": {"question": "q"}},
        f"{TABLE}.columns.question: is 'question', expected 'prompt', 'answer', 'messages', ",
    ),
    "no name of a column": ({f"{TABLE}.columns.prompt": ""}, f"{TABLE}.columns.prompt: is '', expected "),
    "no name of a file": ({f"{TABLE}.path": ""}, f"{TABLE}.path: is '', expected "),
    "NUL in a path": (
        {f"{TABLE}.path": "a\0.jsonl"},
        f"{TABLE}.path: is 'a\\x00.jsonl', expected text without control characters",
    ),
    "half a surrogate": (
        {"base.model": "a\ud800"},
        "base.model: is 'a\\ud800', expected ",
    ),
    "a judge's function": ({"corpus.judge": {"kind": "callable", "function": "f"}}, "corpus.judge.function: is 'f', "),
    # Two values.
    "minibatch does not divide": (
        {"ppo.episodes": 20},
        "ppo: episodes (20) must be a multiple of optimiser.batch (8)",
    ),
    "only the critic learns": (
        {"ppo.advantage.critic.warmup": 3},
        "ppo: advantage.critic.warmup (3) leaves no update to the policy (updates: 3)",
    ),
    "negative coefficient": (
        {"ppo.kl": {"kind": "adaptive", "coefficient": 0.1, "target": 6.0, "horizon": 3.2}},
        "ppo: episodes / kl.horizon is 5, expected below 5: the coefficient would turn negative",
    ),
    "a revision of nothing": (
        {"base.revision": "main"},
        "base: revision is 'main', expected null: model tiny has none",
    ),
    "batch larger than the demonstrations": (
        {"sft.demonstrations": 15},
        "sft.optimiser.batch (16) exceeds sft.demonstrations (15): they do not fill one batch",
    ),
    "batch larger than the pairs": (
        # 2 prompts with 4 answers each: 2 x 4 x 3 / 2 = 12 pairs at most.
        {"samples.prompts": 2, "dpo.optimiser.batch": 13},
        "dpo.optimiser.batch (13) exceeds the 12 pairs that samples.prompts (2) with samples.answers (4) can give: "
        "they do not fill one batch",
    ),
    "batch larger than the prompts": (
        {"samples.prompts": 7, "reward.origins": ["sampled"]},
        "reward.optimiser.batch (8) exceeds samples.prompts (7): they do not fill one batch",
    ),
    "more evaluated than held out": (
        {"baseline.prompts": 17},
        "baseline.prompts (17) exceeds corpus.held_out (16)",
    ),
    "answers to nothing": (
        {
            "dpo.origins": ["sampled", "ratings"],
            "corpus.source": document.read(ROOT / "params.yaml")["corpus"]["source"],
        }
        | {"reward.origins": ["sampled"]},
        "dpo.origins holds ratings: those pairs have no prompt, so their answers have no probability",
    ),
    "ratings of files": (
        {"reward.origins": ["sampled", "ratings"]},
        "reward.origins holds ratings, but corpus.source is files, which brings none: take it out",
    ),
    "file pairs of no file": (
        {"corpus.source.preferences": None},
        "reward.origins holds file, but corpus.source has no preferences table: take it out",
    ),
    "an origin twice": (
        {"dpo.origins": ["sampled", "sampled"]},
        "dpo.origins is sampled, sampled, expected each once",
    ),
    "nothing to fit the judge on": (
        {"corpus.judge.rated": None},
        "corpus: judge.rated is null, but only the embedded source brings ratings: expected a table of text and rating",
    ),
    "a judge's columns": (
        {"corpus.judge.rated.columns": {"text": "text"}},
        "corpus.judge: rated.columns names text, expected {rating, text}",
    ),
    "no column of the prompt": (
        {f"{TABLE}.columns": {"answer": "a"}},
        "corpus.source: demonstrations.columns names answer, expected {messages} or {answer, prompt}",
    ),
    "a column that nobody reads": (
        {"corpus.source.prompts.columns": {"prompt": "q", "messages": "m"}},
        "corpus.source: prompts.columns names messages, prompt, expected {prompt} or {messages}",
    ),
    "the held-out table's columns": (
        {HELD: FILES},
        "corpus.source: held_out.columns names answer, prompt, expected {prompt} or {messages}",
    ),
    "the pairs' columns": (
        {"corpus.source.preferences.columns": {"prompt": "q", "chosen": "c"}},
        "corpus.source: preferences.columns names chosen, prompt, expected {chosen, prompt, rejected} or ",
    ),
    "hub without split": (
        {HELD: HUB | {"split": None}},
        f"{HELD}: split is null, but hub is true: a hub data set needs its split, such as train",
    ),
    "file with split": (
        {f"{TABLE}.split": "train"},
        f"{TABLE}: split is 'train', but hub is false: a file has none, expected null",
    ),
    "a folder as hub data set": (
        {HELD: HUB | {"path": "../reviews"}},
        f"{HELD}: path is '../reviews', but hub is true: expected owner/name or owner/name@revision",
    ),
    "a loader as hub data set": (
        {HELD: HUB | {"path": "pandas"}},
        f"{HELD}: path is 'pandas', but hub is true: expected owner/name or owner/name@revision",
    ),
    "an absolute table": ({f"{TABLE}.path": "/etc/passwd"}, f"{TABLE}: path is '/etc/passwd', expected a path below "),
    "a table above the data": ({f"{TABLE}.path": "a/../../b"}, f"{TABLE}: path is 'a/../../b', expected a path below "),
    "absolute data": ({"corpus.data": "/srv"}, "corpus.data is '/srv', expected a folder below the repository root"),
    "data above the project": ({"corpus.data": "data/../.."}, "corpus.data is 'data/../..', expected a folder below "),
    "the project as data": ({"corpus.data": "."}, "corpus.data is '.', expected a folder below the repository root"),
}


@pytest.mark.parametrize("name", ONE)
def test_one_fault(name: str) -> None:
    changes, expected = ONE[name]
    (line,) = told(put(defaults(TINY), changes))
    assert line == expected or (not expected[-1].isalnum() and line.startswith(expected))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"samples.prompts": 1025}, "samples.prompts (1025) exceeds corpus.source.prompts (1024)"),
        ({"ppo.episodes": 1040}, "a ppo rollout has 1040 prompts, corpus.source.prompts only 1024"),
        ({"sft.demonstrations": 2000}, "sft.demonstrations (2000) exceeds corpus.source.demonstrations (1024)"),
        (
            {"corpus.source.pairs": 0},
            "reward.origins holds ratings, but corpus.source.pairs is 0: take it out, or raise pairs",
        ),
        ({"corpus.source.pair_gap": 8.5}, "corpus.source.pair_gap: is 8.5, expected less than 8"),
    ],
)
def test_one_fault_with_the_embedded_source(changes: dict[str, Any], expected: str) -> None:
    params = put(defaults(), changes)
    params["ppo"]["kl"] = {"kind": "fixed", "coefficient": 0.1}
    assert told(params) == [expected]


def test_all_faults_are_told_at_once() -> None:
    """Contradictions in two sections and across sections, beside values of a wrong type in the same sections."""
    changes = {
        "ppo.clip": "wide",
        "ppo.episodes": 20,
        "ppo.advantage.critic.warmup": 9,
        "evaluation.batch": None,
        "baseline.prompts": 17,
        "sft.optimiser.warmup": 2,
        "sft.demonstrations": 3,
        "corpus.overlap": 1,
        "corpus.judge.rated": None,
        "corpus.source.prompts.split": "train",
        "corpus.source.prompts.columns": {},
        "dpo.loss.betta": 0.1,
        "dpo.loss.beta": GONE,
        "comparison": None,
    }
    lines = told(put(defaults(TINY), changes))
    assert sorted(lines) == sorted(
        [
            "ppo.clip: is 'wide', expected a number",
            "ppo: episodes (20) must be a multiple of optimiser.batch (8)",
            "ppo: advantage.critic.warmup (9) leaves no update to the policy (updates: 3)",
            "evaluation.batch: is None, expected a whole number",
            "baseline.prompts (17) exceeds corpus.held_out (16)",
            "sft.optimiser.warmup: is 2, expected less than or equal to 1",
            "sft.optimiser.batch (16) exceeds sft.demonstrations (3): they do not fill one batch",
            "corpus.overlap: is 1, expected greater than or equal to 2",
            "corpus: judge.rated is null, but only the embedded source brings ratings: "
            "expected a table of text and rating",
            "corpus.source.prompts: split is 'train', but hub is false: a file has none, expected null",
            "corpus.source: prompts.columns names nothing, expected {prompt} or {messages}",
            "dpo.loss.betta: unknown key, expected beta?",
            "dpo.loss.beta: missing",
            "comparison: is None, expected keys with values",
        ]
    )


def test_a_rule_on_an_unsound_value_says_nothing() -> None:
    # Its value is wrong already: a second line about it would send the user to the wrong place.
    assert told(put(defaults(TINY), {"ppo.episodes": "20"})) == ["ppo.episodes: is '20', expected a whole number"]


class Inner(Section):
    kind: Annotated[str, Field(pattern="^x$")]
    low: Count
    high: Count

    @model_validator(mode="after")
    def _ordered(self) -> Inner:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) exceeds high ({self.high})")
        return self

    @model_validator(mode="after")
    def _even(self) -> Inner:
        if self.low % 2:
            raise ValueError(f"low ({self.low}) is odd")
        return self

    @model_validator(mode="after")
    def _defect(self) -> Inner:
        if self.high == 99:
            return self.no_such_value
        return self


class Outer(Section):
    inner: Inner
    other: Count


def test_the_rules_of_any_section_are_found() -> None:
    raw = {"inner": {"kind": "x", "low": 5, "high": 4}, "other": "a"}
    assert sorted(faults(Outer, raw)) == [
        "inner: low (5) exceeds high (4)",
        "inner: low (5) is odd",
        "other: is 'a', expected a whole number",
    ]
    assert faults(Outer, {"inner": {"kind": "x", "low": 2, "high": 4}, "other": 1}) == []
    with pytest.raises(AttributeError, match="no_such_value"):  # a rule with a mistake in it is a defect
        faults(Outer, {"inner": {"kind": "y", "low": 2, "high": 99}, "other": 1})


@pytest.mark.parametrize("raw", [None, [], "text", 3, {}])
def test_what_is_no_params_at_all(raw: Any) -> None:
    lines = told(raw)
    assert lines == (
        [f"{word}: missing" for word in config.Params.model_fields]
        if raw == {}
        else [f"is {raw!r}, expected keys with values"]
    )


BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
DOCUMENTS: dict[str, tuple[bytes, str]] = {
    "a key twice": (
        b"dpo:\n  beta: 0.1\n  beta: 0.2\n",
        ':3: not valid YAML: found duplicate key "beta" with ',
    ),
    "a section twice": (b"dpo: {}\nsft: {}\ndpo: {}\n", ':3: not valid YAML: found duplicate key "dpo"'),
    "a bomb of aliases": (BOMB.encode(), ": its aliases (*name) stand for more than 10000 values: write them out"),
    "an endless alias": (b"a: &a [*a]\n", ": an alias (*name) stands inside the value that it names"),
    "a number of 5000 digits": (b"a: " + b"9" * 5000, " is not valid YAML: Exceeds the limit (4300 digits)"),
    "a month that is not": (b"a: 2024-13-01\n", " is not valid YAML: month must be in 1..12"),
    "nested too deeply": (b"[" * 20_000, ": nested deeper than 50 levels, expected "),
    "a Python object": (
        b"a: !!python/object/apply:os.system ['touch planted']\n",
        ":1: not valid YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:python/object/apply:",
    ),
    "two documents": (b"a: 1\n---\na: 2\n", ":"),
    "no YAML": (b"a: b: c\n", ":1: not valid YAML: mapping values are not allowed here"),
    "a tab": (b"a:\n\tb: 1\n", ":2: not valid YAML: found character '\\t' that cannot start any token"),
    "a bracket left open": (b"a: [1, 2\n", ":2: not valid YAML: "),
    "NUL": (b"a: \x00\n", " is not valid YAML: unacceptable character #x0000"),
    "Latin-1": ("a: café\n".encode("latin-1"), " is not UTF-8 (byte 6): save it as UTF-8"),
    "UTF-16": ("a: 1\n".encode("utf-16"), " is not UTF-8 (byte 0): save it as UTF-8"),
    "a file of megabytes": (b"#" * 2_000_000, ": has 2000000 bytes, expected at most 1048576"),
    "an empty file": (b"", " has 1 fault(s):\n  is None, expected keys with values"),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_file_that_is_no_params(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, expected = DOCUMENTS[name]
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_bytes(data)
    with pytest.raises(UserError) as raised:
        config.load()
    assert str(raised.value).startswith(f"params.yaml{expected}")
    assert len(str(raised.value)) < 300
    assert sorted(tmp_path.iterdir()) == [tmp_path / "params.yaml"]


def test_a_folder_in_the_place_of_params(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").mkdir()
    with pytest.raises(UserError, match=r"params.yaml cannot be read: Is a directory"):
        config.load(tmp_path / "params.yaml")


def test_numbers_are_read_as_dvc_reads_them(tmp_path: Path) -> None:
    """YAML 1.2: PyYAML would take 1e-4 for text, no for false and 010 for eight."""
    from dvc.utils.serialize import load_yaml

    path = tmp_path / "some.yaml"
    path.write_text("a: 1e-4\nb: no\nc: 010\nd: 1:30\ne: &e {x: 1}\nf: {<<: *e, y: 2}\n")
    expected = {"a": 0.0001, "b": "no", "c": 10, "d": "1:30", "e": {"x": 1}, "f": {"x": 1, "y": 2}}
    assert document.read(path) == load_yaml(path) == expected


def test_what_is_written_is_read_back_by_yaml_of_either_version(tmp_path: Path) -> None:
    values = [
        "no",
        "1e-4",
        "010",
        "1:30",
        "2024-01-01",
        "",
        "~",
        "null",
        "é",
        "a\u2028b\x85c",
        "x\n y\n",
        "- a",
        "#",
        "=",
        "<<",
    ]
    written = {
        "texts": values,
        "numbers": [1e-5, 1.0, 10**20, -0.0, 1],
        "others": [None, True, {}],
        "b": {"z": 1, "a": 2},
    }
    document.write(tmp_path / "some.yaml", written)
    text = (tmp_path / "some.yaml").read_text(encoding="utf-8")
    assert document.read(tmp_path / "some.yaml") == yaml.safe_load(text) == written
    assert list(document.read(tmp_path / "some.yaml")["b"]) == ["z", "a"]


def test_data_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "project/data").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    document.write(tmp_path / "project/params.yaml", put(defaults(TINY), {"corpus.data": "data/mine"}))
    link = tmp_path / "project/data/mine"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"corpus.data: data/mine is a link to .*/elsewhere, expected a folder in "):
        config.load(tmp_path / "project/params.yaml")
    link.unlink()
    (tmp_path / "project/data/inside").mkdir()
    link.symlink_to("inside")
    assert config.load(tmp_path / "project/params.yaml").corpus.data == Path("data/mine")


OVERLAYS: dict[str, tuple[str, str]] = {
    "a contradiction with what lies below": (
        "ppo: {episodes: 20}\n",
        " laid on params.yaml has 1 fault(s):\n  ppo: episodes (20) must be a multiple of optimiser.batch (16)",
    ),
    "two faults": (
        "ppo: {clip: x}\nsft: 3\n",
        " laid on params.yaml has 2 fault(s):\n  sft: is 3, expected keys with values\n  ppo.clip: is 'x', ",
    ),
    "a misspelt section": (
        "ppoo: {clip: .1}\n",
        " laid on params.yaml has 1 fault(s):\n  ppoo: unknown key, expected ppo?",
    ),
    "a key twice": ("dpo: {beta: 1, beta: 2}\n", ':1: not valid YAML: found duplicate key "beta"'),
    "a list": ("- dpo\n", ": is ['dpo'], expected some of the sections of params.yaml"),
    "nothing": ("", ": is None, expected some of the sections of params.yaml"),
}


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_that_cannot_serve_leaves_no_workspace(name: str, tmp_path: Path, monkeypatch, capsys) -> None:
    text, expected = OVERLAYS[name]
    monkeypatch.chdir(ROOT)
    overlay = tmp_path / "mine.yaml"
    overlay.write_text(text)
    monkeypatch.setattr(sys, "argv", ["workspace", str(tmp_path / "copy"), "--overlay", str(overlay)])
    assert workspace.main() == 1
    assert capsys.readouterr().err.startswith(f"error: {overlay}{expected}")
    assert not (tmp_path / "copy").exists()


def test_a_stage_is_refused_before_a_model_loads(tmp_path: Path) -> None:
    """Each stage checks all of params.yaml, also the sections of others, and imports nothing heavy for it."""
    document.write(tmp_path / "params.yaml", put(defaults(TINY), {"ppo.episodes": 20, "dpo.loss.beta": "x"}))
    program = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from tasks.__main__ import main
status = main(["sft"])
heavy = [name for name in ("torch", "transformers", "mlflow", "dvc", "prefect") if name in sys.modules]
sys.exit(f"imported {{heavy}}" if heavy else status)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == (
        "error: params.yaml has 2 fault(s):\n"
        "  dpo.loss.beta: is 'x', expected a number\n"
        "  ppo: episodes (20) must be a multiple of optimiser.batch (8)\n"
    )
    assert done.returncode == 1
