"""A stage's companion: a process that delivers its spool while it runs, and closes its run however it ends.

`python -m tasks.runtime.companion FOLDER NUMBER` serves the start that has this number until the stage has ended or is
gone, and leaves when the stage has been started again. With `--once` it delivers what is there: the flow's own run. On
its way it delivers what waits in other spools, and ends the runs of dead processes.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tasks.runtime import spooled, tracking
from tasks.runtime.delivery import Delivery
from tasks.runtime.redaction import Redacting, redacted

FLUSH_SECONDS = 5.0
POLL, SHORTEST, LONGEST = 0.25, 0.5, 5.0
"""Seconds between two looks at the spool, and between two tries while the server does not answer."""
PATIENCE = 15.0
"""Seconds that the server has from the end of the stage on."""


def serve(folder: Path, number: int, once: bool, tell: Callable[[str], None]) -> None:
    """Deliver this spool until its start `number` has ended and arrived; once: only what is there now.

    tell: called with the run's page as soon as there is one.
    """
    with spooled.delivering(folder, wait=True) as held:
        delivery = Delivery(folder) if held else None
        if delivery is None or not delivery.start:
            return
        delivery.describe()
        pause, due, deadline, reached, over = SHORTEST, 0.0, None, False, False
        while delivery.start["n"] == number:
            over = delivery.is_over
            if deadline is None and (over or once):
                due, deadline = 0.0, time.monotonic() + PATIENCE
            if time.monotonic() >= due:
                try:
                    delivery.advance()
                    if over:
                        delivery.close()
                    if not reached:
                        tell(tracking.page(str(delivery.state.experiment), str(delivery.state.run)))
                        _look_after_others(str(delivery.state.experiment))
                    reached = True
                    if over or once:
                        break
                    delivery.watch_machine()
                    pause, due = SHORTEST, time.monotonic() + FLUSH_SECONDS
                except Exception as error:  # noqa: BLE001 - whatever goes wrong here must not end the stage
                    delivery.failed(error)
                    due, pause = time.monotonic() + pause, min(2 * pause, LONGEST)
            if deadline is not None and time.monotonic() > deadline:
                break
            time.sleep(POLL)
            delivery.look()
    if reached and over and delivery.end is None:
        # The stage was killed; so may have been the flow above it.
        _look_after_others(str(delivery.state.experiment))


def _look_after_others(experiment: str) -> None:
    """Deliver what waits in other spools, and end the runs of processes that are gone."""
    try:
        replay(lambda line: None)
        tracking.close_runs_of_the_dead(experiment)
    except Exception as error:  # noqa: BLE001 - the next one tries again
        sys.stderr.write(redacted(f"{type(error).__name__}: {error}\n"))


def replay(say: Callable[[str], None]) -> int:
    """Deliver every spool whose process is gone; returns how many were delivered. Raises what the server raises."""
    count = 0
    # Stages first: a pipeline's end links their runs.
    for folder in sorted(spooled.folders(), key=lambda folder: folder.name.startswith("pipeline-")):
        with spooled.delivering(folder, wait=False) as held:
            delivery = Delivery(folder) if held else None
            if delivery is None or not delivery.start or not delivery.is_over:
                say(f"{folder.name}: is running")
            elif delivery.is_closed:
                delivery.tidy()
            else:
                try:
                    delivery.advance()
                    delivery.close()
                except Exception as error:
                    delivery.failed(error)
                    raise
                say(f"{folder.name}: delivered")
                count += 1
    spooled.sweep()
    return count


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 done, 1 the server does not answer, 2 not called as it should be."""
    # Before MLflow prints anything.
    sys.stderr = Redacting(sys.stderr)
    if list(arguments) == ["replay"]:
        try:
            _say(f"delivered {replay(_say)} runs")
        except Exception as error:  # noqa: BLE001 - the user is told, and nothing is lost
            sys.stderr.write(f"error: {type(error).__name__}: {str(error).partition(chr(10))[0]}\n")
            return 1
        return 0
    if len(arguments) < 2:
        sys.stderr.write("usage: python -m tasks.runtime.tracking replay\n")
        return 2
    serve(Path(arguments[0]), int(arguments[1]), "--once" in arguments, _say)
    return 0


def _say(line: str) -> None:
    # The stage that would read it may be gone.
    with contextlib.suppress(OSError):
        sys.stdout.write(redacted(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
