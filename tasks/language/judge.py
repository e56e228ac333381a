"""Judges: a score for an answer to a prompt, higher is better.

Three kinds stand behind `load`: ridge regression on TF-IDF fitted on rated texts, a Hugging Face classifier, and a
function of the user's. A judge folder holds `judge.json` and what the kind needs; nothing is pickled.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tasks.errors import UserError
from tasks.language.dialogue import Prompt, spoken


class Judge(Protocol):
    """Scores complete texts."""

    name: str

    def score(self, prompts: Sequence[Prompt], answers: Sequence[str]) -> list[float]:
        """One finite number per answer."""
        ...


def load(folder: Path) -> Judge:
    """The judge that was written to `folder`. Raises UserError for a folder that holds none."""
    try:
        settings = json.loads((folder / "judge.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} holds no judge: {error}") from None
    if settings["kind"] == "fitted":
        return Fitted(folder, settings)
    return Classifier(folder, settings) if settings["kind"] == "classifier" else Function(folder, settings)


def write(folder: Path, settings: dict[str, Any]) -> None:
    """Write `judge.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(settings, ensure_ascii=False, sort_keys=True, allow_nan=False) + "\n"
    (folder / "judge.json").write_text(text, encoding="utf-8", newline="\n")


class Fitted:
    """TF-IDF and ridge regression on rated texts: the score is the predicted rating of prompt and answer together."""

    name = "fitted"

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        from tasks.language.ratings import Regression

        self._model = Regression.load(folder, settings)

    def score(self, prompts: Sequence[Prompt], answers: Sequence[str]) -> list[float]:
        """Predicted ratings, on the scale of the ratings it was fitted on."""
        return self._model.predict([spoken(p) + a for p, a in zip(prompts, answers, strict=True)]).tolist()


class Classifier:
    """A sequence classifier: log-odds of one label against all others, or its only output."""

    name = "classifier"

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        from tasks.language.text import load_tokenizer

        self._tokenizer = load_tokenizer(folder / "model")
        self._model = _classifier(folder / "model")
        self._label = settings["label"]
        context = getattr(self._model.config, "max_position_embeddings", None) or self._tokenizer.model_max_length
        self._longest = min(self._tokenizer.model_max_length, context)

    def score(self, prompts: Sequence[Prompt], answers: Sequence[str]) -> list[float]:
        """Log-odds in nats. One text at a time: no padding, so that no score depends on its neighbours.

        A text longer than the classifier's context loses its end.
        """
        import torch

        scores = []
        for prompt, answer in zip(prompts, answers, strict=True):
            text = spoken(prompt) + answer
            encoded = self._tokenizer(text, truncation=True, max_length=self._longest, return_tensors="pt")
            with torch.no_grad():
                logits = self._model(**encoded).logits[0].double()
            if self._label is not None:
                others = torch.cat([logits[: self._label], logits[self._label + 1 :]])
                logits = logits[self._label] - torch.logsumexp(others, 0)
            scores.append(logits.item())
        return scores


class Function:
    """A function (prompts, answers) -> scores from a file that lies in the judge folder, or from a module."""

    name = "callable"

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._where = settings["function"]
        source, _, attribute = self._where.rpartition(":")
        self._function = _imported(folder / Path(source).name if source.endswith(".py") else source, attribute)

    def score(self, prompts: Sequence[Prompt], answers: Sequence[str]) -> list[float]:
        """The function's own scores. Raises UserError where it fails or returns something else than finite numbers."""
        try:
            scores = [float(value) for value in self._function(list(prompts), list(answers))]
        except Exception as error:
            raise UserError(f"judge {self._where} failed: {type(error).__name__}: {error}") from error
        if len(scores) != len(answers):
            raise UserError(f"judge {self._where} returned {len(scores)} scores for {len(answers)} answers")
        for index, value in enumerate(scores):
            if not math.isfinite(value):
                raise UserError(f"judge {self._where} returned {value} for answer {answers[index][:60]!r}")
        return scores


def keep_classifier(model: str, label: str | None, data: Path, folder: Path) -> None:
    """Write a classifier judge to `folder`, weights included: it is versioned with the corpus and loads offline.

    model: a folder below `data`, or a hub id (`id@revision`). Raises UserError for anything else and for an unknown
    label.
    """
    from tasks.language.text import load_tokenizer

    local = data / model
    if local.is_dir() and not local.resolve().is_relative_to(data.resolve()):
        raise UserError(f"corpus.judge.model: {model} leads out of corpus.data ({data})")
    if not local.is_dir() and (Path(model).is_dir() or model.startswith((".", "/", "~"))):
        raise UserError(f"corpus.judge.model: {model} is not a folder below corpus.data ({data})")
    source, _, revision = (str(local), "", "") if local.is_dir() else model.partition("@")
    options = {"revision": revision} if revision else {}
    loaded = _classifier(source, **options)
    index = _label_index(loaded.config, label, model)
    loaded.save_pretrained(folder / "model")
    load_tokenizer(source, **options).save_pretrained(folder / "model")
    write(folder, {"kind": "classifier", "model": model, "label": index})


def keep_function(function: str, data: Path, folder: Path) -> None:
    """Write a callable judge to `folder`; a file is copied along, so that it is versioned with the corpus.

    function: "path/to/file.py:name" below `data`, or "package.module:name". Raises UserError for a missing file.
    """
    source, _, _ = function.rpartition(":")
    folder.mkdir(parents=True, exist_ok=True)
    if source.endswith(".py"):
        path = (data / source).resolve()
        if not path.is_relative_to(data.resolve()):
            raise UserError(f"corpus.judge.function: {source} leads out of corpus.data ({data})")
        if not path.is_file():
            raise UserError(f"corpus.judge.function: {data / source} not found")
        shutil.copyfile(path, folder / path.name)
    write(folder, {"kind": "callable", "function": function})


def _imported(source: Path | str, attribute: str) -> Callable[[list[Prompt], list[str]], Any]:
    try:
        if isinstance(source, Path):
            spec = importlib.util.spec_from_file_location(f"judge_{source.stem}", source)
            module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
            sys.dont_write_bytecode, kept = True, sys.dont_write_bytecode  # no __pycache__ in a versioned folder
            try:
                spec.loader.exec_module(module)  # type: ignore[union-attr]
            finally:
                sys.dont_write_bytecode = kept
        else:
            module = importlib.import_module(source)
        function = getattr(module, attribute)
    except Exception as error:
        raise UserError(f"corpus.judge.function: {source}:{attribute} cannot be imported: {error}") from error
    if not callable(function):
        raise UserError(f"corpus.judge.function: {source}:{attribute} is not a function")
    return function


def _classifier(source: str | Path, **options: Any) -> Any:
    import torch
    from transformers import AutoModelForSequenceClassification

    options |= {"dtype": torch.float32, "trust_remote_code": False, "use_safetensors": True}
    try:
        return AutoModelForSequenceClassification.from_pretrained(source, **options).eval()
    except Exception as error:  # a foreign model fails in more ways than transformers documents
        raise UserError(f"corpus.judge.model: {source} cannot be loaded as a classifier: {error}") from error


def _label_index(config: Any, label: str | None, source: str) -> int | None:
    """Index of `label`; None where the classifier has one output."""
    if config.num_labels == 1:
        return None
    if label in config.label2id:
        return int(config.label2id[label])
    known = ", ".join(map(str, config.label2id))
    raise UserError(f"corpus.judge.label: is {label!r}, expected a label of {source}: {known}")
