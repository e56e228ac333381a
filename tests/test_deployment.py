"""prefect.yaml on a real server with a real worker, on loopback."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import environment, run_in
from tests.test_runner import wait_for


class Server:
    """A Prefect server for one workspace."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.port}/api"
        self.variables = {
            "PREFECT_API_URL": self.url,
            "PREFECT_HOME": str(folder / ".rlhf/prefect"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "RLHF_TRACKING": "off",
            # A worker asks for runs every 10 seconds otherwise.
            "PREFECT_WORKER_QUERY_SECONDS": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)],
            cwd=folder,
            env=environment(**self.variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def healthy(self) -> bool:
        try:
            return self.ask("health") is True
        except OSError:
            return False

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def prefect(self, *arguments: str) -> str:
        done = run_in(self.folder, "prefect", "--no-prompt", *arguments, **self.variables)
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture
def server(stubbed):
    running = Server(stubbed)
    try:
        wait_for(running.healthy, 90)
        yield running
    finally:
        running.process.send_signal(signal.SIGINT)
        try:
            running.process.wait(20)
        except subprocess.TimeoutExpired:
            running.process.kill()


@pytest.mark.slow
def test_the_deployment_runs_on_a_worker_and_its_schedule_is_paused(server, stubbed):
    server.prefect("work-pool", "create", "--type", "process", "rlhf")
    server.prefect("concurrency-limit", "create", "gpu", "1")
    server.prefect("deploy", "--all")
    deployment = server.ask("deployments/name/rlhf/nightly")
    assert [(s["schedule"]["cron"], s["active"]) for s in deployment["schedules"]] == [("0 3 * * *", False)]
    assert deployment["parameters"] == {"target": "comparison"}
    # Nothing comes by itself; a run that is asked for does.
    assert server.ask("flow_runs/filter", {}) == []
    server.prefect("deployment", "run", "rlhf/nightly", "--param", "target=sft")
    server.prefect("worker", "start", "--pool", "rlhf", "--run-once")
    (run,) = server.ask("flow_runs/filter", {})
    tasks = server.ask("task_runs/filter", {})
    assert (run["state_name"], {task["name"]: task["state_name"] for task in tasks}) == (
        "Completed",
        {"base": "Completed", "corpus": "Completed", "sft": "Completed"},
    )
    assert (stubbed / "runs/sft/made.txt").exists()
    logged = [line["message"] for line in server.ask("logs/filter", {"limit": 200})]
    assert any(line.startswith("sft: done in") for line in logged)
