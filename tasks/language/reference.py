"""Log-probabilities of answers under the reference, computed once per data set and kept on disk.

A file is named by everything that decides its bits: the reference's weights, the data, how they were computed and the
code that computes them. So a hit is exact, and whoever finds one trains to the same bytes as whoever computes it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import safetensors.torch
import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel

from tasks.algorithms import logprobs
from tasks.language import batches, models, scoring
from tasks.language.batches import Completion

_CODE = (logprobs, batches, models, scoring)


def reference_log_probs(
    model: PreTrainedModel,
    completions: Sequence[Completion],
    *,
    policy: Path,
    cache: Path,
    temperature: float,
    fill: int,
    size: int,
) -> tuple[Tensor, bool]:
    """Per completion the sum over its answer tokens [len(completions)], float32 on the CPU; and whether it was kept.

    `model` must say what the policy in the folder `policy` says, in the precision of the training. A file that is
    damaged, or not what its name says, is computed anew.
    """
    facts = [temperature, fill, size, str(model.dtype), *_machine(model), _files(policy), _data(completions)]
    path = cache / f"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()}.safetensors"
    kept = _read(path, len(completions))
    if kept is not None:
        return kept, True
    found = scoring.all_log_probs(model, completions, temperature=temperature, fill=fill, size=size)
    sums = torch.stack([values.sum() for values in found])
    _write(path, sums)
    return sums, False


def _machine(model: PreTrainedModel) -> list[str]:
    """What else the last bit of a log-probability can depend on."""
    device = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else _processor()
    code = hashlib.sha256(b"".join(Path(str(module.__file__)).read_bytes() for module in _CODE)).hexdigest()
    return [torch.__version__, transformers.__version__, device, str(torch.get_num_threads()), code]


def _processor() -> str:
    return f"{os.uname().machine} {torch.backends.cpu.get_cpu_capability()}"


def _files(folder: Path) -> str:
    """Hash of a model folder: names and contents."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _data(completions: Sequence[Completion]) -> str:
    return hashlib.sha256(json.dumps([[c.prompt, c.answer] for c in completions]).encode()).hexdigest()


def _read(path: Path, count: int) -> Tensor | None:
    """The kept sums, or None where there are none that are whole."""
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            sums, noted = file.get_tensor("log_probs"), file.metadata() or {}
    except (SafetensorError, OSError):
        return None
    whole = sums.shape == (count,) and sums.dtype == torch.float32 and noted.get("sha256") == _checksum(sums)
    return sums if whole else None


def _write(path: Path, sums: Tensor) -> None:
    """Through a temporary name in the same folder: flush to disk, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        file.write(safetensors.torch.save({"log_probs": sums}, {"sha256": _checksum(sums)}))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _checksum(sums: Tensor) -> str:
    return hashlib.sha256(sums.numpy().tobytes()).hexdigest()
