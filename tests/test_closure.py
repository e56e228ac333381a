"""The closure sees every form of import, on a small tree made for it."""

from pathlib import Path

import pytest

from tests.closure import closure, deps

TREE = {
    "tasks/__init__.py": "",
    "tasks/sft.py": "import tasks.language.models\nfrom tasks.language import text as words\nimport torch\n",
    "tasks/language/__init__.py": "",
    "tasks/language/models.py": "from tasks.language.batches import pad\nfrom tasks.runtime import config\n",
    "tasks/language/batches.py": "import tasks.language.models\n",  # a circle ends
    "tasks/language/text.py": "def late():\n    from tasks.algorithms import kl\n    return kl\n",
    "tasks/language/unused.py": "",
    "tasks/algorithms/__init__.py": "",
    "tasks/algorithms/kl.py": "import math\n",
    "tasks/runtime/__init__.py": "",
    "tasks/runtime/config.py": "from tasks.runtime import records\n",
    "tasks/runtime/records.py": "",
    "dvc.yaml": "stages:\n  sft:\n    deps: [runs/base, tasks/sft.py, tasks/language/unused.py, runs/corpus]\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_the_closure_follows_every_import_but_neutral_ones(tree):
    assert closure("tasks/sft.py", tree) == {
        "tasks/sft.py",
        "tasks/language/models.py",
        "tasks/language/batches.py",
        "tasks/language/text.py",
        "tasks/algorithms/kl.py",
    }


def test_a_runtime_module_is_a_dependency_unless_named_neutral(tree):
    (tree / "tasks/sft.py").write_text("from tasks.runtime.records import write_json\n")
    assert closure("tasks/sft.py", tree) == {"tasks/sft.py", "tasks/runtime/records.py"}


def test_the_deps_to_copy_keep_the_artefacts_and_drop_stale_code(tree):
    assert deps("sft", tree) == [
        "tasks/sft.py",
        "tasks/algorithms/kl.py",
        "tasks/language/batches.py",
        "tasks/language/models.py",
        "tasks/language/text.py",
        "runs/base",
        "runs/corpus",
    ]


def test_a_relative_import_is_an_error(tree):
    (tree / "tasks/sft.py").write_text("from . import errors\n")
    with pytest.raises(ValueError, match=r"sft\.py:1: relative import"):
        closure("tasks/sft.py", tree)
