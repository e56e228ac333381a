"""No pickle is loaded, no foreign code runs, nothing leaves the project: in the source, and with planted ones."""

from __future__ import annotations

import ast
import json
import pickle
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from tasks import base
from tasks.errors import UserError
from tasks.language import judge, models, readers, text
from tasks.runtime import config
from tests.test_base import section, shared

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    path.relative_to(ROOT)
    for folder in ("tasks", "flows", "docs", "benchmarks", "examples", "infra")
    for path in (ROOT / folder).rglob("*.py")
)
PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
LOADERS = {("torch", "load"), ("np", "load"), ("numpy", "load"), ("pd", "read_pickle"), ("pandas", "read_pickle")} | {
    ("yaml", name) for name in ("load", "load_all", "full_load", "unsafe_load", "UnsafeLoader", "FullLoader", "Loader")
}


MUST_BE = {"trust_remote_code": False, "allow_pickle": False, "use_safetensors": True, "weights_only": True}


def offences(source: str) -> Iterator[str]:
    """What a file does that could load a pickle or run code that came with data or a model."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            yield from (f"{node.lineno}: imports {name}" for name in names if name.split(".")[0] in PICKLES)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in LOADERS:
                yield f"{node.lineno}: {node.value.id}.{node.attr}"
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            yield from _options((getattr(key, "value", None), value) for key, value in pairs)
        elif isinstance(node, ast.Call):
            yield from _options((keyword.arg, keyword.value) for keyword in node.keywords)
            yield from _calls(node)


def _options(pairs: Iterable[tuple[Any, ast.expr]]) -> Iterator[str]:
    for name, value in pairs:
        if name in MUST_BE and not (isinstance(value, ast.Constant) and value.value is MUST_BE[name]):
            yield f"{value.lineno}: {name} is not {MUST_BE[name]}"


def _calls(node: ast.Call) -> Iterator[str]:
    if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec", "compile"):
        yield f"{node.lineno}: {node.func.id}"
    if isinstance(node.func, ast.Attribute) and node.func.attr == "from_pretrained":
        given = {keyword.arg for keyword in node.keywords}
        # ** carries a dict of options, which stands in the same file and is looked at as a dict.
        if not given & {"trust_remote_code", None, "gguf_file"}:
            yield f"{node.lineno}: from_pretrained without trust_remote_code=False"


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_the_source_loads_no_pickle_and_trusts_no_remote_code(path: Path) -> None:
    assert list(offences((ROOT / path).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import load",
        "import torch; torch.load(path)",
        "yaml.load(text, yaml.FullLoader)",
        "np.load(path, allow_pickle=True)",
        "AutoModel.from_pretrained(source, trust_remote_code=True)",
        "AutoModel.from_pretrained(source, trust_remote_code=wanted)",
        "AutoModel.from_pretrained(source)",
        "AutoModel.from_pretrained(source, trust_remote_code=False, use_safetensors=None)",
        "options = {'trust_remote_code': True}",
        "eval(text)",
    ],
)
def test_the_scan_sees_it(line: str) -> None:
    assert list(offences(line))


class Planted:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """What a planted pickle or program makes; at the end it must not be there."""
    mark = tmp_path / "mark"
    yield mark
    assert not mark.exists(), "planted code ran"


def test_the_planted_pickle_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Planted(tmp_path / "mark")))
    assert (tmp_path / "mark").exists()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "sound"
    base.run(shared(), section("tiny"), out=folder)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "mine")


def settings(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | changes))


def only_pickled(folder: Path, mark: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": Planted(mark)}, folder / "pytorch_model.bin")


def pickled_by_the_name_of_safetensors(folder: Path, mark: Path) -> None:
    torch.save(Planted(mark), folder / "model.safetensors")


def an_index_of_pickles(folder: Path, mark: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": Planted(mark)}, folder / "part-1.bin")
    index = {"metadata": {"total_size": 1}, "weight_map": {"model.embed_tokens.weight": "part-1.bin"}}
    settings(folder, "model.safetensors.index.json", **index)


def an_index_that_leads_out(folder: Path, mark: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    torch.save({"model.embed_tokens.weight": Planted(mark)}, folder.parent / "outside.bin")
    settings(folder, "model.safetensors.index.json", metadata={}, weight_map={"lm_head.weight": "../outside.bin"})


def code_of_its_own(folder: Path, mark: Path) -> None:
    program = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n"
    (folder / "modeling_mine.py").write_text(program + "class Model: ...\nclass Config: ...\n")
    names = {"AutoConfig": "modeling_mine.Config", "AutoModelForCausalLM": "modeling_mine.Model"}
    settings(folder, "config.json", auto_map=names, model_type="mine")


def a_template_that_reaches_out(folder: Path, mark: Path) -> None:
    reach = "cycler.__init__.__globals__.os.system('touch " + str(mark) + "')"
    (folder / "chat_template.jinja").write_text("{{ " + reach + " }}")


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (only_pickled, "cannot be loaded as a causal language model"),
        (pickled_by_the_name_of_safetensors, "cannot be loaded as a causal language model"),
        (
            an_index_of_pickles,
            "model.safetensors.index.json names part-1.bin, expected .safetensors files in the same folder",
        ),
        (an_index_that_leads_out, "model.safetensors.index.json names ../outside.bin, expected .safetensors files"),
        (code_of_its_own, "holds no model that can be read"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_model_that_brings_a_program_is_refused(plant: Any, message: str, folder: Path, mark: Path) -> None:
    plant(folder, mark)
    with pytest.raises(UserError) as raised:
        base.run(shared(), section(str(folder), folder), out=folder.parent / "out")
    assert message in str(raised.value)


def test_what_lies_beside_the_weights_is_not_touched(folder: Path, mark: Path) -> None:
    """Leftovers of other trainers, and code that a known architecture does not need."""
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save(Planted(mark), folder / name)
    for name in ("tokenizer.pkl", "vocab.pkl", "model.joblib", "data.pickle"):
        (folder / name).write_bytes(pickle.dumps(Planted(mark)))
    program = f"from pathlib import Path\nPath({str(mark)!r}).touch()\nclass Mine: ...\n"
    (folder / "mine.py").write_text(program)
    settings(folder, "config.json", auto_map={"AutoModelForCausalLM": "mine.Mine"})
    settings(folder, "tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.Mine", "mine.Mine"]})
    out = folder.parent / "out"
    base.run(shared(), section(str(folder), folder), out=out)
    models.load_policy(out)
    assert {path.suffix for path in out.iterdir()} <= {".json", ".safetensors", ".jinja"}


def test_an_adapter_of_pickles_is_not_touched(folder: Path, mark: Path) -> None:
    torch.save({"a": Planted(mark)}, folder / "adapter_model.bin")
    settings(folder, "adapter_config.json", peft_type="LORA", base_model_name_or_path=str(folder), r=1)
    try:
        base.run(shared(), section(str(folder), folder), out=folder.parent / "out")
    except UserError as error:
        assert str(folder) in str(error)  # noqa: PT017 - either answer will do, as long as nothing runs


def test_a_chat_template_is_kept_in_its_sandbox(folder: Path, mark: Path) -> None:
    a_template_that_reaches_out(folder, mark)
    with pytest.raises(UserError, match="the tokenizer's chat template does not take messages of user"):
        text.prompt_tokens(text.load_tokenizer(folder), "hello", "chat")


def test_a_classifier_of_pickles_is_refused(tmp_path: Path, mark: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertForSequenceClassification(BertConfig(vocab_size=262, num_labels=1, **sizes)).save_pretrained(tmp_path / "mine")
    text.byte_tokenizer().save_pretrained(tmp_path / "mine")
    (tmp_path / "mine/model.safetensors").unlink()
    torch.save({"classifier.weight": Planted(mark)}, tmp_path / "mine/pytorch_model.bin")
    with pytest.raises(UserError, match="cannot be loaded as a classifier"):
        judge.keep_classifier("mine", None, tmp_path, tmp_path / "judge")


def test_harmless_pickles_are_refused_too(folder: Path, tmp_path: Path) -> None:
    """Sound weights, only in a pickle: the format is refused, not its content."""
    model = models.load_policy(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="cannot be loaded as a causal language model"):
        base.run(shared(), section(str(folder), folder), out=tmp_path / "out")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    classifier = BertForSequenceClassification(BertConfig(vocab_size=262, num_labels=1, **sizes))
    classifier.config.save_pretrained(tmp_path / "judge-model")
    text.byte_tokenizer().save_pretrained(tmp_path / "judge-model")
    torch.save(classifier.state_dict(), tmp_path / "judge-model/pytorch_model.bin")
    with pytest.raises(UserError, match="cannot be loaded as a classifier"):
        judge.keep_classifier("judge-model", None, tmp_path, tmp_path / "judge")


@pytest.mark.parametrize("kind", ["fitted", "classifier", "callable", "pickled", None, []])
def test_a_judge_folder_of_pickles_is_refused(kind: Any, tmp_path: Path, mark: Path) -> None:
    (tmp_path / "judge.json").write_text(json.dumps({"kind": kind, "label": None, "intercept": 0.0}))
    for name in ("weights.safetensors", "terms_0.txt", "terms_1.txt", "judge.pkl", "judge.joblib"):
        (tmp_path / name).write_bytes(pickle.dumps(Planted(mark)))
    with pytest.raises(UserError, match=r"holds no judge that can be loaded|no tokenizer can be read"):
        judge.load(tmp_path)


def test_data_of_pickles_is_refused(tmp_path: Path, mark: Path) -> None:
    for name, message in (
        ("rows.jsonl", "rows.jsonl:1: not UTF-8"),
        ("rows.parquet", "cannot be read as parquet"),
        ("rows.pkl", "expected .jsonl or .parquet"),
    ):
        (tmp_path / name).write_bytes(pickle.dumps(Planted(mark)))
        with pytest.raises(UserError, match=message):
            readers.read(tmp_path, config.Table(path=name, hub=False, split=None, columns={"prompt": "q"}))


@pytest.mark.parametrize("name", ["arrow.py_extension_type", "arrow.json", "mine.unknown"])
def test_a_parquet_extension_type_is_read_as_its_storage(name: str, tmp_path: Path, mark: Path) -> None:
    """Old versions of pyarrow unpickled the metadata of such a column (CVE-2023-47248)."""
    marked = {b"ARROW:extension:name": name.encode(), b"ARROW:extension:metadata": pickle.dumps(Planted(mark))}
    schema = pyarrow.schema([pyarrow.field("q", pyarrow.string(), metadata=marked)])
    pyarrow.parquet.write_table(pyarrow.table([pyarrow.array(["a"])], schema=schema), tmp_path / "rows.parquet")
    table = config.Table(path="rows.parquet", hub=False, split=None, columns={"prompt": "q"})
    try:
        assert [row.values for row in readers.read(tmp_path, table)] == [{"prompt": "a"}]
    except UserError as error:
        assert "cannot be read as parquet" in str(error)  # noqa: PT017 - either answer will do


def test_a_local_folder_is_no_hub_data_set(tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """datasets would read the folder, and used to run a script of its name."""
    (tmp_path / "mine/reviews").mkdir(parents=True)
    (tmp_path / "mine/reviews/reviews.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\n")
    monkeypatch.chdir(tmp_path)
    table = config.Table(path="mine/reviews", hub=True, split="train", columns={"prompt": "q"})
    with pytest.raises(UserError, match="mine/reviews: is a path on this machine, expected a hub data set id"):
        readers.read(tmp_path, table)
