"""The Compose file and the images, offline: nothing here starts a container.

The Compose file is held against the Compose Specification's JSON schema, the Dockerfile against hadolint, settings
against the Prefect and MLflow that are installed. Each check is also shown a broken file, which it must refuse.
"""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
INFRA = ROOT / "infra"
COMPOSE = yaml.safe_load((INFRA / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
DOCKERFILE = (INFRA / "Dockerfile").read_text()


def pinned() -> dict[str, Version]:
    """Name -> version of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]
    return {r.name: Version(next(iter(r.specifier)).version) for r in found}


def program(name: str) -> str:
    """A program that a development requirement brought, beside this interpreter or on PATH."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    assert found, f"{name} is missing: install requirements-dev.txt"
    return found


# --- compose.yaml


def refused(document: Any) -> bool:
    schema = get_builtin_schema("vendor.compose-spec")
    return not jsonschema.validators.validator_for(schema)(schema).is_valid(document)


def test_compose_keeps_the_specification() -> None:
    assert not refused(COMPOSE)


@pytest.mark.parametrize(
    ("service", "key", "value"),
    [
        ("worker", "imagee", "x"),
        ("store", "ports", "8333"),
        ("worker", "deploy", {"resources": {"gpus": 1}}),
        ("prefect", "command", 3),
    ],
)
def test_a_broken_compose_file_is_refused(service: str, key: str, value: Any) -> None:
    broken = copy.deepcopy(COMPOSE)
    broken["services"][service][key] = value
    assert refused(broken)


def test_compose_names_only_what_exists() -> None:
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE))
    for name, service in SERVICES.items():
        assert set(service.get("depends_on", {})) <= set(SERVICES), name
        if "build" in service:
            assert service["build"]["target"] in targets, name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (INFRA / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], (name, source)


def test_compose_waits_only_for_services_that_report_their_health() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] != "service_healthy" or "healthcheck" in SERVICES[other], (name, other)


def test_compose_publishes_ports_on_loopback_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports), ports


def test_images_are_pinned() -> None:
    images = [service["image"] for service in SERVICES.values()]
    assert all(re.search(r":v?\d+\.\d+", image) for image in images), images


def test_compose_holds_no_secret_and_the_example_lists_every_variable_empty() -> None:
    text = (INFRA / "compose.yaml").read_text()
    example = dict(
        line.split("=", 1) for line in (INFRA / ".env.example").read_text().splitlines() if line and line[0] != "#"
    )
    assert set(re.findall(r"\$\{(\w+)", text)) == set(example)
    assert set(example.values()) == {""}
    used_without_demand = re.findall(r"\$\{\w+(?!\w|:\?)[^}]*\}", text)
    assert not used_without_demand, "a variable that is not set must stop `docker compose`"
    for service in SERVICES.values():
        for key, value in service.get("environment", {}).items():
            assert not re.search("PASSWORD|SECRET|KEY", key) or value.startswith("${"), key


def test_the_worker_reserves_a_gpu() -> None:
    (device,) = SERVICES["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


def test_prefect_and_mlflow_know_the_settings_they_are_given() -> None:
    from mlflow import environment_variables as mlflow_settings
    from mlflow.cli import server as mlflow_server
    from prefect.settings import Settings
    from prefect.settings.legacy import _get_valid_setting_names

    known = _get_valid_setting_names(Settings)
    for name, service in SERVICES.items():
        for key in service.get("environment", {}):
            assert not key.startswith("PREFECT_") or key in known, (name, key)
            assert not key.startswith("MLFLOW_") or hasattr(mlflow_settings, key), (name, key)
    options = {option for parameter in mlflow_server.params for option in parameter.opts}
    given = {word.split("=")[0] for word in SERVICES["mlflow"]["command"] if word.startswith("--")}
    assert given <= options, given - options


def test_no_server_sends_telemetry() -> None:
    assert SERVICES["prefect"]["environment"]["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert SERVICES["mlflow"]["environment"]["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert SERVICES["mlflow"]["environment"]["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"


# --- the images


def hadolint(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program("hadolint"), str(path)], capture_output=True, text=True)


def test_dockerfile_passes_the_linter() -> None:
    done = hadolint(INFRA / "Dockerfile")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("WORKDIR /project", "WORKDIR project"),
        ("RUN apt-get update", "RUNN apt-get update"),
        ("FROM python AS worker\n", "FROM debian:latest\n"),
    ],
)
def test_a_broken_dockerfile_is_refused(good: str, bad: str, tmp_path: Path) -> None:
    assert good in DOCKERFILE
    broken = tmp_path / "Dockerfile"
    broken.write_text(DOCKERFILE.replace(good, bad))
    assert hadolint(broken).returncode != 0


def test_images_run_as_a_plain_user() -> None:
    stages = {s.split("\n")[0].split(" AS ")[1]: s for s in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]}
    for target in ("worker", "mlflow"):
        assert re.findall(r"^USER (\S+)$", stages[target], re.MULTILINE)[-1] == "10001:10001"


def test_dockerfile_copies_only_what_the_context_holds() -> None:
    allowed = (INFRA / "Dockerfile.dockerignore").read_text().splitlines()
    for arguments in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        *sources, _ = [word for word in arguments.split() if not word.startswith("--")]
        for source in sources:
            assert (ROOT / source).exists(), source
            assert source == "." or f"!{source}" in allowed, source


def test_images_and_requirements_name_the_same_versions() -> None:
    pins = pinned()
    assert SERVICES["prefect"]["image"] == f"prefecthq/prefect:{pins['prefect']}-python3.11"
    lines = (INFRA / "requirements-mlflow.txt").read_text().splitlines()
    extra = {r.name: r for r in map(Requirement, [line for line in lines if not line.startswith("#")])}
    # boto3 x.y.z takes botocore x.y.z or later within x.y.
    boto3 = Version(next(iter(extra["boto3"].specifier)).version)
    assert boto3.release[:2] == pins["botocore"].release[:2]
    assert boto3 <= pins["botocore"]


def test_dvc_in_the_image_works_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, settings = tmp_path / "project", tmp_path / "settings"
    (project / ".dvc").mkdir(parents=True)
    shutil.copy(ROOT / ".dvc/config", project / ".dvc/config")
    settings.mkdir()
    (settings / "config").write_text((INFRA / "dvc.config").read_text().replace("/cache/dvc", str(tmp_path / "cache")))
    (project / "dvc.yaml").write_text("stages: {a: {cmd: echo a > a.txt, outs: [a.txt]}}\n")
    monkeypatch.setenv("DVC_SYSTEM_CONFIG_DIR", str(settings))
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    subprocess.run([sys.executable, "-m", "dvc", "repro", "-q"], cwd=project, check=True)
    # MD5 of "a\n".
    assert (tmp_path / "cache/files/md5/60/b725f10c9c85c70d97880dfe8191b3").read_text() == "a\n"


# --- buckets.py


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """An object store that has one bucket, "there", and forbids another, "mine"; yields the buckets asked for."""
    asked: list[str] = []
    answers = {"there": (409, "BucketAlreadyOwnedByYou"), "mine": (403, "AccessDenied")}

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            name = self.path.strip("/")
            asked.append(name)
            status, code = answers.get(name, (200, ""))
            body = f"<Error><Code>{code}</Code></Error>".encode() if code else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            """No access log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    yield asked
    server.shutdown()
    server.server_close()


def buckets(*names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(INFRA / "buckets.py"), *names], capture_output=True, text=True)


def test_missing_buckets_are_made_and_those_that_exist_are_left(store: list[str]) -> None:
    done = buckets("there", "new")
    assert (done.returncode, done.stdout) == (0, "there: exists\nnew: created\n"), done.stderr
    assert store == ["there", "new"]


def test_a_refusal_of_the_store_is_an_error(store: list[str]) -> None:
    done = buckets("mine", "new")
    assert done.returncode != 0
    assert "AccessDenied" in done.stderr
    assert store == ["mine"]


# --- programs


def test_shell_scripts_pass_the_linter() -> None:
    done = subprocess.run([program("shellcheck"), str(ROOT / ".ci/run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
