"""Real servers for the tests: MLflow's own on a sqlite file, and a relay before it that can misbehave."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil

from tests.conftest import environment

HOST = "127.0.0.1"


def companions(project: Path) -> list[psutil.Process]:
    """The processes that deliver for the stages of this folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "tasks.runtime.companion" in process.cmdline() and Path(process.cwd()) == project.resolve():
                found.append(process)
    return found


class MlflowServer:
    """`mlflow server` that can be stopped and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = f"sqlite:///{folder}/server.db"
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port: int = probe.getsockname()[1]
        self.address = f"http://{HOST}:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = ["mlflow", "server", "--host", HOST, "--port", str(self.port), "--workers", "1"]
        places = ["--backend-store-uri", self.store, "--artifacts-destination", str(self.folder / "artifacts")]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command, *places],
                cwd=self.folder,
                env=environment(MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false"),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.address}/health", timeout=5):
                return
            time.sleep(0.2)
        raise AssertionError((self.folder / "server.log").read_text()[-2000:])

    def stop(self) -> None:
        if self._process and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Relay:
    """Passes requests on to `target`. mode: "pass"; "500" answers that; "hang" never answers; "late" does what writes a
    run or its points only after `lag` seconds, when nobody waits for the answer any more.
    """

    def __init__(self, target: str, lag: float = 6.0) -> None:
        self.target, self.lag, self.mode = target, lag, "pass"
        self.seen: list[tuple[str, str]] = []
        """Mode and path of each request."""
        self.authorizations: set[str | None] = set()
        self._closed = threading.Event()
        relay = self

        class Handler(BaseHTTPRequestHandler):
            def _relay(self) -> None:
                relay.answer(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _relay  # noqa: N815 - the names that http.server calls

            def log_message(self, *arguments: object) -> None: ...

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://{HOST}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        mode = self.mode
        if mode == "late" and not handler.path.endswith(("runs/create", "runs/log-batch")):
            mode = "pass"
        self.seen.append((mode, handler.path))
        self.authorizations.add(handler.headers.get("Authorization"))
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        status, content, kind = 500, b"broken", "text/plain"
        if mode == "hang":
            self._closed.wait(30)
            return
        if mode == "late":
            self._closed.wait(self.lag)
        if mode != "500":
            kept = {k: v for k, v in handler.headers.items() if k.lower() in ("content-type", "accept")}
            request = urllib.request.Request(
                self.target + handler.path, data=body or None, headers=kept, method=handler.command
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as found:
                    status, content, kind = found.status, found.read(), found.headers.get_content_type()
            except urllib.error.HTTPError as error:
                status, content, kind = error.code, error.read(), error.headers.get_content_type()
            except OSError:
                status, content = 502, b"no server"
        with contextlib.suppress(OSError):
            handler.send_response(status)
            handler.send_header("Content-Type", kind)
            handler.send_header("Content-Length", str(len(content)))
            handler.end_headers()
            handler.wfile.write(content)

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()
