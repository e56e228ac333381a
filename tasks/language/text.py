"""Tokenizers: the only file that imports them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tasks.errors import UserError

_CHAT = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<eos>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_UNUSED = ("<pad>", "<|pad|>", "[PAD]", "<|finetune_right_pad_id|>", "<|padding|>", "<|endoftext|>", "<unk>")
"""Tokens that can stand for padding where a tokenizer names none, the best first."""


def load_tokenizer(source: str | Path, **options: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder or hub id. Raises UserError that names the source."""
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
    except Exception as error:  # transformers raises OSError, ValueError, KeyError, ImportError and tokenizers' own
        raise UserError(f"no tokenizer can be read from {source}: {error}") from error


def byte_tokenizer() -> PreTrainedTokenizerBase:
    """Every byte a token whose id is the byte's value; then pad, bos, eos and the marks of the three chat roles."""
    shown = _byte_characters()
    core = Tokenizer(models.BPE(vocab={shown[byte]: byte for byte in range(256)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    roles = [f"<|{role}|>" for role in ("system", "user", "assistant")]
    core.add_special_tokens([AddedToken(text, special=True) for text in ("<pad>", "<bos>", "<eos>", *roles)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", extra_special_tokens=roles
    )
    tokenizer.chat_template = _CHAT
    return tokenizer


def separate_pad(tokenizer: PreTrainedTokenizerBase, source: str) -> None:
    """Give the tokenizer a pad token that is not its end-of-sequence token, in place.

    An unused token of its vocabulary is taken; one is added only where there is none (the caller then sees to the
    embedding). Raises UserError for a tokenizer without an end-of-sequence token: no answer could end.
    """
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer of {source} names no end-of-sequence token (eos_token), so no answer could end")
    taken = {tokenizer.eos_token_id, tokenizer.bos_token_id}
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id not in taken:
        return
    vocabulary = tokenizer.get_vocab()
    for token in _UNUSED:
        if token in vocabulary and vocabulary[token] not in taken:
            tokenizer.pad_token = token
            return
    tokenizer.add_special_tokens({"pad_token": "<|pad|>"})


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, prompt: str | list[dict[str, str]], style: str) -> list[int]:
    """A prompt as ids, with one BOS where the tokenizer or its template writes any, and open for an answer.

    plain: as it stands. chat: through the chat template. auto: chat where the tokenizer has a template, else plain.
    Raises UserError for messages in plain style and for a tokenizer without a chat template in chat style.
    """
    if style == "plain" or (style == "auto" and tokenizer.chat_template is None):
        if not isinstance(prompt, str):
            raise UserError(f"chat messages need shared.format: chat and a chat template (it is {style})")
        return _open(tokenizer, prompt) if prompt else []
    if tokenizer.chat_template is None:
        raise UserError("shared.format is chat, but the tokenizer has no chat template; use plain")
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    # The template writes its own BOS as text, so none is added here.
    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # the template is a program: it refuses roles out of turn, or has a mistake in it
        roles = ", ".join(message["role"] for message in messages[:10])
        raise UserError(f"the tokenizer's chat template does not take messages of {roles}: {error}") from error
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _open(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """The ids of a plain prompt. A BOS that stands in the text and is added besides counts once; an EOS that the
    tokenizer adds is left out, as the answer comes next."""
    ids, bare = (tokenizer(prompt, add_special_tokens=special)["input_ids"] for special in (True, False))
    if ids[-1:] == [tokenizer.eos_token_id] != bare[-1:]:
        ids = ids[:-1]
    return ids[1:] if ids[:2] == [tokenizer.bos_token_id] * 2 else ids


def answer_tokens(tokenizer: PreTrainedTokenizerBase, answer: str, limit: int) -> list[int]:
    """An answer as ids, tokenised apart from its prompt as the model would produce it, end-of-sequence token included.

    It ends with its first end-of-sequence token, also where the text spells one: there is exactly one. An answer that
    does not fit `limit` is cut there and gets none: it did not end. A limit below 1 leaves nothing.
    """
    ids = tokenizer(answer, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    return ids[: min(ids.index(tokenizer.eos_token_id) + 1, max(limit, 0))]


def text_of(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> str:
    """The text of sampled ids without special tokens, for judges and people; it is never encoded again."""
    return tokenizer.decode(tokens, skip_special_tokens=True)


def _byte_characters() -> list[str]:
    """The printable character that byte-level BPE writes for each byte (GPT-2's table, by byte value)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    shown = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    return [shown[byte] for byte in range(256)]
