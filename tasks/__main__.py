"""`python -m tasks STAGE`: runs one stage of dvc.yaml. This is the command that DVC calls."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PYTHON = (3, 11)
PARTIAL = Path(".rlhf/partial")
RETRY_LATER = 75
PACKAGES = ("pydantic", "yaml", "psutil", "torch", "transformers")
"""Without one of these, this is the wrong Python."""
SLOW = (
    "this processor has no bfloat16 units (AVX512-BF16 or AMX), and computes it many times slower than float32: set"
    " shared.precision: float32"
)
USAGE = "usage: python -m tasks STAGE     (a stage of dvc.yaml, such as sft or evaluation@dpo)"


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 done, 1 something the user can put right, 75 no network, 130 interrupted, 143 stopped."""
    if sys.version_info < PYTHON:
        return _fail(f"Python {'.'.join(map(str, PYTHON))} or newer is needed; this is {sys.version.split()[0]}")
    if len(arguments) != 1 or arguments[0].startswith("-"):
        return _fail(USAGE)
    from tasks.errors import Unreachable, UserError
    from tasks.runtime import disk
    from tasks.runtime.process import Stopped

    (address,) = arguments
    try:
        with disk.faults_named():
            execute(address)
    except ModuleNotFoundError as error:
        if error.name not in PACKAGES:
            raise
        return _fail(f"package {error.name} is missing in {sys.executable}: `make venv`, then `. .venv/bin/activate`")
    except Unreachable as error:
        _fail(str(error))
        return RETRY_LATER
    except UserError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        _fail(f"{address} interrupted: {_resumption(address)}")
        return 130
    except Stopped:
        _fail(f"{address} stopped: {_resumption(address)}")
        return 143
    return 0


def _resumption(address: str) -> str:
    from tasks.runtime import work

    if address in work.waiting():
        return f"the same command goes on from its last checkpoint in {work.WORK / address}"
    return "the same command starts it again, finished stages are kept"


def execute(address: str) -> None:
    """Check everything that can be checked early, then run the stage under its locks."""
    from tasks.runtime import config, process, stage

    params = config.load()
    binding = stage.bind(address)
    _require_inputs(binding)
    process.prepare_environment(downloads=binding.word in ("base", "corpus"))
    process.stop_on_sigterm()
    process.end_in_time(lambda: f"{address} interrupted: {_resumption(address)}")
    if "DVC_STAGE" in os.environ:
        # Started by DVC, whose death must not leave a trainer behind; by hand, nohup and tmux keep their meaning.
        process.die_with_parent()
    with contextlib.ExitStack() as stack:
        stack.enter_context(process.locked(address, f"stage {address}"))
        if stage.uses_gpu(binding.word):
            for gpu in process.gpus():
                stack.enter_context(process.locked(f"gpu-{gpu}", f"GPU {gpu}"))
        _run(params, binding)


def _run(params: Any, binding: Any) -> None:
    """Run the stage with everyone listening; whatever ends it, its MLflow run is closed with the right status."""
    from tasks.runtime import fingerprint, record, reporter, terminal, work

    section = getattr(params, binding.word)
    screen, history = terminal.Terminal(binding.address), record.History()
    screen.header(f"{', '.join(dict.fromkeys(map(str, binding.inputs.values()))) or 'start'} -> {binding.out}")
    listeners: list[Any] = [screen, history]
    made_from = fingerprint.present(binding.address)
    work.forget({address: fingerprint.of(entry) for address, entry in fingerprint.locked().items()}, binding.address)
    tracked = None
    if reporter.wanted():
        described = {"shared": params.shared.model_dump(mode="json"), binding.word: section.model_dump(mode="json")}
        start = {"address": binding.address, "word": binding.word, "params": described, "fingerprint": made_from}
        tracked = reporter.Reporter(start, screen.note)
        listeners.append(tracked)
    status, error, metrics = "FAILED", "", {}
    try:
        with record.listening(*listeners), work.using(binding.address, made_from):
            metrics = _work(params.shared, section, binding)
        _keep(binding, metrics, history)
        status = "FINISHED"
    except BaseException as raised:
        status = "FAILED" if isinstance(raised, Exception) else "KILLED"
        error = f"{type(raised).__name__}: {raised}"
        raise
    finally:
        screen.close()
        if tracked:
            tracked.end(status, metrics, error)
    screen.done(metrics)


def _work(shared: Any, section: Any, binding: Any) -> dict[str, Any]:
    """Make the artefact beside its place: a folder in runs/ is never half of one. Returns the final figures."""
    from tasks.errors import UserError
    from tasks.runtime import record, stage, surroundings

    partial = PARTIAL / binding.address
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    run = importlib.import_module(f"tasks.{binding.word}").run
    if shared.precision == "bfloat16" and stage.uses_gpu(binding.word) and surroundings.slow_bfloat16():
        record.note(SLOW)
    metrics: dict[str, Any] = run(shared, section, **binding.inputs, out=partial)
    if not any(partial.iterdir()):
        raise UserError(f"stage {binding.address} wrote nothing")
    return metrics


def _keep(binding: Any, metrics: dict[str, Any], history: Any) -> None:
    """Write the figures and, these being sound, put the artefact into its place."""
    from tasks.runtime import made, record

    record.write_metrics(binding.metrics, metrics)
    history.write(binding.history)
    shutil.rmtree(binding.out, ignore_errors=True)
    binding.out.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(PARTIAL / binding.address, binding.out)
    made.remember(binding.address, binding.out)


def _require_inputs(binding: Any) -> None:
    from tasks.errors import UserError
    from tasks.runtime import stage

    for path in binding.inputs.values():
        if not path.exists():
            raise UserError(f"{path} is missing: run `dvc repro {stage.maker(path)}` or `make align`")


def _fail(message: str) -> int:
    from tasks.runtime.redaction import redacted

    print(f"error: {redacted(message)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    from tasks.runtime.redaction import Redacting

    # Notes, library logs and the traceback of a defect go this way, too.
    sys.stderr = Redacting(sys.stderr)
    sys.exit(main(sys.argv[1:]))
