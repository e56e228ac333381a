"""The pipeline as a Prefect flow: one task per DVC stage, the graph is DVC's own.

`python -m flows.pipeline [TARGET]` brings TARGET and all it depends on up to date, with a Prefect server or without.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType
from typing import TypeVar

from prefect import State, flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.logging.handlers import PrefectConsoleHandler
from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Completed, Failed

from flows import child, graph, server, summary
from flows import push as remote
from flows.slot import Slot
from tasks.errors import UserError
from tasks.runtime import config, fingerprint, reporter, work
from tasks.runtime.process import PARENT_RUN
from tasks.runtime.redaction import redacted
from tasks.runtime.reporter import Reporter
from tasks.runtime.terminal import duration, printable

ON_TERMINAL = "RLHF_ON_TERMINAL"
"""Environment, set by `main`: lines go to the terminal as they are, besides to Prefect's log."""
END_IN = 4.5
"""Seconds that the flow has to put things in order after Ctrl-C; a stage has 3 of them."""
INTERRUPTED = "interrupted: the same command goes on from the stages that are finished and the last checkpoint"
T = TypeVar("T")
_gpu = Slot()
_passing: set[str] = set()
"""Stages whose last failure may pass by itself."""


@task(cache_policy=NO_CACHE, persist_result=False)
def reproduce(node: graph.Node, place: int, force: bool, parent: str | None) -> State[bool]:
    """Bring one stage up to date in a child process, so that its memory is freed with it.

    place: position in the plan; of several stages that wait for the GPU, the first goes first.
    """
    if node.up_to_date and not force:
        _say(f"{node.address}: up to date")
        return Completed(name="Cached", message="up to date", data=False)
    variables = {PARENT_RUN: parent} if parent else {}
    with _gpu.held(place, wanted="gpu" in node.tags):
        outcome = child.reproduce(node.address, force, variables, _say)
    if outcome.retry:
        _passing.add(node.address)
    if not outcome.ok:
        return Failed(message=outcome.error)
    try:
        graph.require_cached(node.address)
    except UserError as error:
        return Failed(message=str(error))
    if outcome.ran:
        return Completed(message=f"{node.address} made", data=True)
    return Completed(name="Cached", message="up to date", data=False)


@flow(name="rlhf", flow_run_name="{target}", persist_result=False, log_prints=False)
def rlhf(target: str = "comparison", force: bool = False, push: bool = False) -> State[None]:
    """Reproduce `target` (any stage of dvc.yaml) and everything it depends on.

    force: run every stage on the way, whether up to date or not. push: then push to the DVC remote and check that
    everything is there; the run fails when it is not.
    """
    started = time.monotonic()
    try:
        nodes = prepare(target)
    except UserError as error:
        return Failed(message=str(error))
    before = graph.recorded()
    idle = all(node.up_to_date for node in nodes) and not force
    above = None if idle else _tracked(lambda lineage: lineage.begin(target, nodes, _say))
    try:
        states = _run(nodes, force, above.token if above else None)
    except BaseException:
        # Ctrl-C, SIGTERM or a cancelled flow. The run is closed by a process of its own while the stages end.
        try:
            _tracked(lambda lineage: lineage.finish(above, nodes, "KILLED", []) if above else None)
        finally:
            child.stop_all()
        raise
    graph.keep_order(before, [node.address for node in nodes])
    work.forget({address: fingerprint.of(entry) for address, entry in fingerprint.locked().items()})
    state = _conclude(target, nodes, states, above, time.monotonic() - started)
    return _pushed(state) if push and state.is_completed() else state


def prepare(target: str) -> list[graph.Node]:
    """Everything that can be refused before any work. Raises UserError."""
    config.load()
    nodes = graph.plan(target)
    graph.refuse_foreign(nodes)
    return nodes


def _run(nodes: Sequence[graph.Node], force: bool, parent: str | None) -> dict[str, State[bool]]:
    futures: dict[str, PrefectFuture[bool]] = {}
    for place, node in enumerate(nodes):
        configured = reproduce.with_options(
            name=node.address,
            task_run_name=node.address,
            tags=node.tags,
            retries=node.retries,
            retry_delay_seconds=node.retry_delay,
            retry_condition_fn=lambda task, run, state: task.name in _passing,
        )
        upstream = [futures[address] for address in node.upstream]
        futures[node.address] = configured.submit(node, place, force, parent, wait_for=upstream)  # type: ignore[call-overload]
    for future in futures.values():
        future.wait()
    return {address: future.state for address, future in futures.items()}


def _conclude(
    target: str, nodes: Sequence[graph.Node], states: dict[str, State[bool]], above: Reporter | None, seconds: float
) -> State[None]:
    fresh = [address for address, state in states.items() if state.is_completed() and state.name != "Cached"]
    failed = {address: state for address, state in states.items() if state.is_failed() or state.is_crashed()}
    ok = all(state.is_completed() for state in states.values())
    page = None
    if above is None and ok:
        page = _tracked(lambda lineage: lineage.earlier(target, nodes) or lineage.linked(target, nodes, _say))
    elif above is not None:
        page = _tracked(lambda lineage: lineage.finish(above, nodes, "FINISHED" if ok else "FAILED", fresh))
    if not ok:
        waiting = [address for address, state in states.items() if address not in failed and not state.is_completed()]
        reasons = [f"{address} failed: {state.message}" for address, state in failed.items()]
        return Failed(message="\n".join([*reasons, f"not run: {', '.join(waiting)}" if waiting else ""]).strip())
    text = summary.table(nodes)
    if text:
        create_markdown_artifact(key="rlhf-result", markdown=text, description=f"{target}: the policies side by side")
        _say(f"\n{text}\n")
    if shown := summary.examples(nodes):
        _say(f"{shown}\n")
    news = f"made {', '.join(fresh)}" if fresh else "everything was up to date"
    message = f"{target}: {news} ({duration(seconds)})"
    _say(message)
    if page:
        _say(f"MLflow: `make ui`, then http://127.0.0.1:5000{page}")
    return Completed(message=message)


def _pushed(state: State[None]) -> State[None]:
    try:
        files, size = remote.push()
    except UserError as error:
        return Failed(message=str(error))
    _say(f"{files} files, {size / 1e6:.1f} MB, are on the DVC remote")
    return state


def _tracked(call: Callable[[ModuleType], T]) -> T | None:
    """Call with flows.lineage. What goes wrong there never fails the pipeline."""
    if not reporter.wanted():
        return None
    try:
        from flows import lineage

        return call(lineage)
    except Exception as error:  # noqa: BLE001
        reason = str(error).partition("\n")[0]
        _say(redacted(f"MLflow does not record this run: {type(error).__name__}: {reason}"))
        return None


def _say(line: str) -> None:
    if ON_TERMINAL in os.environ and not child.is_chatter(line):
        # One write, so that stages side by side do not share a line.
        sys.stdout.write(f"{printable(line).strip(chr(10)).rstrip()}\n")
        sys.stdout.flush()
    get_run_logger().info(line)


def _silence_console() -> None:
    """Prefect's own lines on the terminal repeat what the stages say; its pages keep them."""
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    for handler in logging.getLogger().handlers:
        if isinstance(handler, PrefectConsoleHandler):
            handler.setLevel(logging.CRITICAL)


def _end_in_time() -> None:
    """See that Ctrl-C ends everything within END_IN seconds: what is slow to end (a stage, a server) is killed."""

    def end() -> None:
        time.sleep(END_IN)
        child.kill_all()
        with contextlib.suppress(OSError):
            os.write(2, f"{INTERRUPTED}\n".encode())
        os._exit(130)

    def interrupt(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=end, daemon=True).start()
        signal.default_int_handler(number, frame)

    # Where it is ignored (nohup, a background job of a script) it stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)


def _run_here(target: str, force: bool, push: bool) -> State[None]:
    """Run the flow in this process, against the user's Prefect server or one that lives as long as the run."""
    os.environ[ON_TERMINAL] = "1"
    _silence_console()
    own = None if PREFECT_API_URL.value() else server.Server()
    # Once before Prefect's part, while its server starts: a refusal takes a second.
    prepare(target)
    # A private server has nobody to tell that the flow lives, and the heartbeat's thread keeps it a second longer.
    private = {PREFECT_API_URL: own.address(), PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None} if own else {}
    with temporary_settings(private):
        return rlhf(target, force, push, return_state=True)  # type: ignore[return-value]


def main() -> int:
    """Exit status: 0 done, 1 refused or failed, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="python -m flows.pipeline", description=__doc__.splitlines()[0])
    parser.add_argument("target", nargs="?", default="comparison", help="a stage of dvc.yaml, such as evaluation@dpo")
    parser.add_argument("--force", action="store_true", help="run every stage, whether up to date or not")
    parser.add_argument("--push", action="store_true", help="then push to the DVC remote and check what is there")
    arguments = parser.parse_args()
    _end_in_time()
    try:
        state = _run_here(arguments.target, arguments.force, arguments.push)
    except UserError as error:
        print(f"error: {redacted(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130
    if not state.is_completed():
        raised = state.result(raise_on_failure=False) if state.data is not None else None
        if isinstance(raised, BaseException):
            # A defect: a failed stage is a state without an exception.
            traceback.print_exception(raised)
        print(f"error: {redacted(str(state.message))}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
