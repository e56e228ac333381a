"""What can change the last bits of a result besides code, data and params: libraries, threads, device, processor."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import sys
from pathlib import Path

LIBRARIES = ("torch", "transformers", "numpy")


def describe() -> dict[str, str]:
    """Name -> value. Asks torch only where the stage has imported it."""
    found = {"python": platform.python_version(), "processor": processor()}
    for library in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[library] = importlib.metadata.version(library)
    return found | device()


def device() -> dict[str, str]:
    """The device that the stage uses, and its threads; {} where torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    used = torch.cuda.get_device_name() if torch.cuda.is_available() and torch.cuda.is_initialized() else "cpu"
    return {"device": str(used), "threads": str(torch.get_num_threads())}


def slow_bfloat16() -> bool:
    """Whether the stage computes on a processor that has no bfloat16 units, where it is many times slower than float32.

    False where that cannot be told.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return False
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("flags", "Features")):
                return not {"avx512_bf16", "amx_bf16", "bf16"} & set(line.split())
    return False


def processor() -> str:
    """Its model's name: math libraries choose their kernels by it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
