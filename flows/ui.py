"""`python -m flows.ui`: the MLflow and Prefect pages on this machine, until Ctrl-C.

Ports: MLFLOW_PORT (5000) and PREFECT_PORT (4200). Both listen on 127.0.0.1 only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import FrameType

from tasks.errors import UserError
from tasks.runtime.redaction import redacted

HOST = "127.0.0.1"
_STARTUP, _POLL, _GRACE = 120.0, 0.5, 10.0


def main() -> int:
    """Exit status: 0 ended by the user, 1 a server could not start or has ended."""
    signal.signal(signal.SIGTERM, _interrupt)
    servers: dict[str, subprocess.Popen[bytes]] = {}
    try:
        ports = {"MLflow": _port("MLFLOW_PORT", 5000), "Prefect": _port("PREFECT_PORT", 4200)}
        servers["MLflow"] = _start(_mlflow(ports["MLflow"]), {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})
        servers["Prefect"] = _start(_prefect(ports["Prefect"]), {})
        _wait(servers["MLflow"], f"http://{HOST}:{ports['MLflow']}/health")
        print(f"MLflow   http://{HOST}:{ports['MLflow']}", flush=True)
        _wait(servers["Prefect"], f"http://{HOST}:{ports['Prefect']}/api/health")
        print(f"Prefect  http://{HOST}:{ports['Prefect']}\nCtrl-C ends both", flush=True)
        while all(server.poll() is None for server in servers.values()):
            time.sleep(_POLL)
        raise UserError("a server has ended, see .rlhf/ui.log")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        _end(list(servers.values()))


def _mlflow(port: int) -> list[str]:
    # Artefacts of the default store lie in mlartifacts/; each experiment knows its own place.
    store = os.environ.get("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    if store.startswith(("http:", "https:")):
        raise UserError(f"MLFLOW_TRACKING_URI is {redacted(store)}: open that address, it has the pages")
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    return [*command, "--backend-store-uri", store]


def _prefect(port: int) -> list[str]:
    return [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]


def _start(command: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
    log = Path(".rlhf/ui.log")
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _port(variable: str, usual: int) -> int:
    port = int(os.environ.get(variable, usual))
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            raise UserError(f"port {port} is in use: set {variable} to another one") from None
    return port


def _wait(server: subprocess.Popen[bytes], address: str) -> None:
    deadline = time.monotonic() + _STARTUP
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):  # noqa: S310 - our own http
            return
        time.sleep(_POLL)
    raise UserError(f"{address} does not answer, see .rlhf/ui.log")


def _end(servers: list[subprocess.Popen[bytes]]) -> None:
    """End both with their workers: each is the head of its own process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for server in servers:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(server.pid, number)
        for server in servers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(_GRACE)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
