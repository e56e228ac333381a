"""Prefect's API for one run, where the user has no server: on loopback, without pages, gone when the run is.

Prefect starts such a server itself when it finds none, but as a part of the flow's process group: Ctrl-C then ends the
server first, and the flow waits a minute for it; and a flow that is killed leaves it behind.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from tasks.errors import UserError

HOST = "127.0.0.1"
LOG = Path(".rlhf/prefect/server.log")
_STARTUP, _POLL, _GRACE = 120.0, 0.1, 5.0
SETTINGS = {
    "PREFECT_UI_ENABLED": "0",
    # What Prefect sets for its own server of this kind.
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    # It has no deployments to schedule.
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
}


class Server:
    """A server that is starting; `address` waits until it answers."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self._port: int = probe.getsockname()[1]
        LOG.parent.mkdir(parents=True, exist_ok=True)
        with LOG.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flows.server", str(self._port)],
                env={**os.environ, **SETTINGS},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        # At the very end: Prefect sends the last log lines when the interpreter exits, and handlers run in reverse.
        atexit.register(self._stop)

    def address(self) -> str:
        """URL of the API. Raises UserError when it does not come up."""
        url = f"http://{HOST}:{self._port}/api"
        deadline = time.monotonic() + _STARTUP
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310 - our own
                return url
            time.sleep(_POLL)
        raise UserError(f"Prefect's server did not start, see {LOG}")

    def _stop(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()


def _serve(port: int) -> None:
    import uvicorn

    def end_with_parent() -> None:
        # The parent holds the other end of stdin and never writes: this returns when it has closed it or is gone.
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end_with_parent, daemon=True).start()
    uvicorn.run("prefect.server.api.server:create_app", factory=True, host=HOST, port=port, log_level="error")


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
