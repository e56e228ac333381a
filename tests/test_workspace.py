"""Stand-alone copies of the project."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from flows import workspace
from tasks.errors import UserError


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "source"
    for name, text in {
        "params.yaml": "a: {kind: x, n: 1, m: 2}\nb: 1\n",
        ".gitignore": "ignored\n",
        "tasks/one.py": "1",
        "runs/x": "made",
        "metrics/y.json": "made",
        "dvc.lock": "made",
        "ignored": "secret",
        ".dvc/config": "[core]\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


def test_it_holds_the_projects_files_and_nothing_that_runs_make(project, tmp_path):
    workspace.create(tmp_path / "copy", {"b": 2}, project)
    names = {str(p.relative_to(tmp_path / "copy")) for p in (tmp_path / "copy").rglob("*") if p.is_file()}
    assert names == {"params.yaml", ".gitignore", "tasks/one.py", ".dvc/config", ".dvc/config.local"}
    assert yaml.safe_load((tmp_path / "copy/params.yaml").read_text()) == {"a": {"kind": "x", "n": 1, "m": 2}, "b": 2}


def test_a_second_time_it_follows_the_code_and_keeps_what_was_made(project, tmp_path):
    copy = tmp_path / "copy"
    workspace.create(copy, {}, project)
    (copy / "runs").mkdir()
    (copy / "runs/x").write_text("its own")
    (project / "tasks/one.py").rename(project / "tasks/two.py")
    workspace.create(copy, {}, project)
    assert (copy / "runs/x").read_text() == "its own"
    assert [path.name for path in (copy / "tasks").iterdir()] == ["two.py"]


def test_another_folder_is_left_alone(project, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/letter.txt").write_text("x")
    with pytest.raises(UserError, match="exists and is no workspace"):
        workspace.create(tmp_path / "home", {}, project)
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["letter.txt"]


def test_without_git_the_message_says_so(tmp_path):
    (tmp_path / "source").mkdir()
    with pytest.raises(UserError, match="copied from a git checkout"):
        workspace.create(tmp_path / "copy", {}, tmp_path / "source")


@pytest.mark.parametrize(
    ("above", "merged"),
    [
        ({"a": {"n": 5}}, {"a": {"kind": "x", "n": 5, "m": 2}}),
        ({"a": {"kind": "x", "n": 5}}, {"a": {"kind": "x", "n": 5, "m": 2}}),
        ({"a": {"kind": "y", "k": 3}}, {"a": {"kind": "y", "k": 3}}),
        ({"a": None}, {"a": None}),
    ],
)
def test_an_overlay_merges_but_another_kind_replaces(above, merged):
    assert workspace.merge({"a": {"kind": "x", "n": 1, "m": 2}}, above) == merged
