"""A Hugging Face sequence classifier."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.errors import UserError
from tasks.language.dialogue import Prompt, spoken
from tasks.language.judges.protocol import write


class Classifier:
    """Log-odds of one label against all others, or its only output."""

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


def keep(model: str, label: str | None, data: Path, folder: Path) -> None:
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
