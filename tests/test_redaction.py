"""Secrets, planted in every place where they lie, never come through."""

from __future__ import annotations

import io

import pytest

from tasks.runtime.redaction import Redacting, redacted, redacted_tree


@pytest.fixture
def planted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "MLFLOW_TRACKING_PASSWORD",
        "MLFLOW_TRACKING_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_ACCESS_KEY_ID",
        "HF_TOKEN",
        "PREFECT_API_KEY",
        "AZURE_STORAGE_CONNECTION_STRING",
        "my_secret",
    ],
)
def test_the_value_of_a_variable_that_is_named_a_secret(planted, monkeypatch, name):
    assert redacted("it was pl/nted&9") == "it was pl/nted&9"
    monkeypatch.setenv(name, "pl/nted&9")
    assert redacted("it was pl/nted&9, twice: pl/nted&9") == "it was ***, twice: ***"
    # As it stands in an address.
    assert redacted("?key=pl%2Fnted%269") == "?key=***"


@pytest.mark.parametrize(
    ("name", "value"), [("TOKENIZERS_PARALLELISM", "falsely"), ("USE_TOKEN", "true"), ("KEYBOARD", "qwertz")]
)
def test_ordinary_variables_change_no_text(planted, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert redacted(f"a {value} sentence") == f"a {value} sentence"


def test_the_password_of_an_address(planted, monkeypatch):
    assert (
        redacted("at https://ann:s3cr%40t@host:5000/x or http://host/a@b")
        == "at https://***@host:5000/x or http://host/a@b"
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:s3cr%40t@host:5000")
    assert redacted("wrong password: s3cr@t (s3cr%40t)") == "wrong password: *** (***)"


def test_headers(planted):
    assert (
        redacted("Authorization: Basic YW5uOnMzY3I= and Bearer abc.def-1") == "Authorization: Basic *** and Bearer ***"
    )


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (".dvc/config.local", "['remote \"store\"']\n    url = s3://b\n    secret_access_key = kept-there-1\n"),
        (".dvc/config", "['remote \"store\"']\n    url = webdavs://ann:kept-there-1@host/x\n"),
        (".aws/credentials", "[default]\naws_access_key_id = x\naws_secret_access_key = kept-there-1\n"),
        (".mlflow/credentials", "[mlflow]\nmlflow_tracking_password = kept-there-1\n"),
    ],
)
def test_what_tools_keep_in_their_files(planted, monkeypatch, path, text):
    (planted / path).parent.mkdir(parents=True)
    (planted / path).write_text(text)
    monkeypatch.setenv("ANY_TOKEN", f"so that it is looked up for {path}")
    assert redacted("it is kept-there-1") == "it is ***"


def test_every_string_of_a_tree_and_lone_surrogates(planted, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_planted")
    tree = {"a hf_planted": ["hf_planted", {"b": ("x hf_planted", 1, 0.5, True, None)}], "c": "\ud800"}
    assert redacted_tree(tree) == {"a ***": ["***", {"b": ["x ***", 1, 0.5, True, None]}], "c": "?"}


def test_a_stream_shows_none(planted, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_planted")
    text = io.StringIO()
    print("it is hf_planted", file=Redacting(text))
    assert text.getvalue() == "it is ***\n"
