"""dvc.yaml, params.yaml, the config classes, the stages' signatures and the imports tell one story."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from tasks.runtime import config, stage
from tests.closure import NEUTRAL, closure, imported, is_code, modules, stages

STAGES = stages()
FILES = sorted(path.as_posix() for folder in ("tasks", "flows") for path in Path(folder).rglob("*.py"))

BELOW = {
    "algorithms": {"algorithms"},
    "errors": set(),
    "language": {"errors", "algorithms", "language"},
    "runtime": {"errors", "runtime"},
    "stage": {"errors", "algorithms", "language", "runtime"},
    "runner": {"errors", "runtime"},  # it finds the stage by its name
    "flows": {"errors", "runtime", "flows"},
}
"""Part of the tree -> the parts it may import: language and runtime not each other, a stage no other stage."""

THIRD_PARTY = {
    "algorithms": {"torch", "numpy"},
    "errors": set(),
    "language": {
        *("torch", "numpy", "transformers", "datasets", "accelerate", "peft", "safetensors"),
        *("scipy", "sklearn"),  # the fitted judge
        "httpx",  # the judge behind an endpoint
        "pyarrow",  # parquet
    },
    "runtime": {"pydantic", "yaml", "ruamel", "dvc", "psutil"},
    "stage": {"torch", "numpy", "psutil"},
    "runner": set(),
    "flows": {
        *("prefect", "dvc", "yaml", "psutil"),
        "uvicorn",  # serves Prefect's application where the user runs no server
    },
}
ONLY_IN = {
    "tokenizers": "tasks/language/text.py",
    "mlflow": "tasks/runtime/tracking.py",
}
TOKENIZER_NAMES = {"AutoTokenizer", "PreTrainedTokenizer", "PreTrainedTokenizerFast", "AutoProcessor"}
"""Not PreTrainedTokenizerBase: that type may stand in an annotation elsewhere."""
IMPORTS_BY_NAME = {
    "tasks/__main__.py": "the stage",
    "tasks/language/judges/function.py": "the user's own function, below corpus.data or installed",
}


def part(path: str) -> str:
    """The part of the tree that a file belongs to: a key of BELOW."""
    pieces = Path(path).parts
    if pieces[0] == "flows":
        return "flows"
    if len(pieces) > 2:
        return pieces[1]
    return {"errors.py": "errors", "__main__.py": "runner"}.get(pieces[1], "stage")


@pytest.mark.parametrize("address", stage.addresses())
def test_the_signature_is_the_contract(address):
    binding = stage.bind(address)
    parameters = inspect.signature(importlib.import_module(f"tasks.{binding.word}").run).parameters
    named = {name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert named == {*binding.inputs, "out"}, f"tasks/{binding.word}.py: run(*, {named}) against the deps in dvc.yaml"
    assert [name for name in parameters if name not in named] == ["shared", "cfg"]


@pytest.mark.parametrize("word", STAGES)
def test_the_config_class_is_that_of_the_section(word):
    hints = get_type_hints(importlib.import_module(f"tasks.{word}").run)
    assert hints["shared"] is config.Shared
    assert hints["cfg"] is config.Params.model_fields[word].annotation
    assert {hint for name, hint in hints.items() if name not in {"shared", "cfg", "return"}} == {Path}


@pytest.mark.parametrize("word", STAGES)
def test_a_stage_tracks_its_own_params(word):
    tracked = STAGES[word]["params"]
    assert tracked[:2] == ["shared", word]
    unknown = {key.split(".")[0] for key in tracked} - set(config.Params.model_fields)
    assert not unknown, f"{word} tracks {unknown}: no section of params.yaml"


@pytest.mark.parametrize("word", STAGES)
def test_a_stage_is_called_by_one_word_everywhere(word):
    (out,) = STAGES[word]["outs"]
    item = "".join(f"${{item.{key}}}" for key in STAGES[word].get("matrix", {}))
    assert STAGES[word]["cmd"] == f"python -m tasks {word}" + (f"@{item}" if item else "")
    assert out == f"runs/{word}" + (f"/{item}" if item else "")


def test_every_artefact_that_is_read_is_made():
    made = [stage.bind(address).out for address in stage.addresses()]
    for address in stage.addresses():
        for name, path in stage.bind(address).inputs.items():
            assert any(out.is_relative_to(path) for out in made), (
                f"{address} reads {name} ({path}), which no stage makes"
            )


@pytest.mark.parametrize("word", STAGES)
def test_code_that_a_stage_runs_is_a_dependency_and_no_other(word):
    assert Path(f"tasks/{word}.py").is_file(), f"tasks/{word}.py, the stage that dvc.yaml names, is not there"
    needed, declared = closure(f"tasks/{word}.py"), {dep for dep in STAGES[word]["deps"] if is_code(dep)}
    report = [f"  missing: {dep}" for dep in sorted(needed - declared)]
    report += [f"  stale:   {dep}" for dep in sorted(declared - needed)]
    lines = "\n".join(report)
    assert not report, f"dvc.yaml, {word}.deps (`python tests/closure.py {word}` prints them):\n{lines}"


def test_no_dependency_is_listed_twice():
    assert {word: deps for word in STAGES if len(set(deps := STAGES[word]["deps"])) < len(deps)} == {}


def test_what_is_neutral_exists():
    assert [path for path in sorted(NEUTRAL) if not Path(path).is_file()] == []


@pytest.mark.parametrize("path", [path for path in FILES if part(path) != "flows" and path.endswith("__init__.py")])
def test_a_package_file_holds_no_code(path):
    # The closure of a stage leaves these out.
    body = ast.parse(Path(path).read_text(encoding="utf-8")).body
    assert [ast.unparse(node) for node in body if not isinstance(node, ast.Expr)] == []


@pytest.mark.parametrize("path", FILES)
def test_imports_only_go_down(path):
    allowed = BELOW[part(path)]
    wrong = {found for found in modules(Path(path)) if part(found) not in allowed}
    assert not wrong, f"{path} ({part(path)}) must not import {sorted(wrong)}"


@pytest.mark.parametrize("path", FILES)
def test_third_party_packages_stay_on_their_floor(path):
    wrong = []
    for name, line in imported(Path(path)):
        package = name.split(".")[0]
        if package in sys.stdlib_module_names or package in {"tasks", "flows"}:
            continue
        home = ONLY_IN.get(package)
        if path != home and (home or package not in THIRD_PARTY[part(path)]):
            wrong.append(f"  {path}:{line}: {package}" + (f", only in {home}" if home else ""))
    assert not wrong, "\n".join(["packages out of place (THIRD_PARTY, ONLY_IN):", *sorted(set(wrong))])


@pytest.mark.parametrize("path", [path for path in FILES if path != ONLY_IN["tokenizers"]])
def test_the_tokenizer_is_imported_in_one_file(path):
    names = {name.split(".")[-1] for name, _ in imported(Path(path))}
    tree = ast.walk(ast.parse(Path(path).read_text(encoding="utf-8")))
    names |= {node.attr for node in tree if isinstance(node, ast.Attribute)}
    assert not names & TOKENIZER_NAMES, f"{path}: the tokenizer belongs to {ONLY_IN['tokenizers']}"


@pytest.mark.parametrize("path", [path for path in FILES if path not in IMPORTS_BY_NAME])
def test_no_module_is_imported_by_a_name_that_the_closure_cannot_see(path):
    # Functions that load a module by its name; importlib.util.find_spec loads nothing.
    hidden = {"import_module", "__import__", "spec_from_file_location", "run_module", "run_path"}
    tree = ast.walk(ast.parse(Path(path).read_text(encoding="utf-8")))
    called = {getattr(node.func, "attr", getattr(node.func, "id", "")) for node in tree if isinstance(node, ast.Call)}
    assert not called & hidden, f"{path}: an import by name is a dependency that dvc.yaml lacks (IMPORTS_BY_NAME)"


@pytest.mark.parametrize("path", FILES)
def test_a_file_is_named_for_what_it_holds(path):
    assert Path(path).stem not in {"utils", "util", "common", "helpers", "misc"}
