"""base: the pinned download through pip, the model sources, what makes a source unusable."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
)

from tasks import base
from tasks.errors import UserError
from tasks.language import embedded, pretrained, text
from tasks.runtime import config

WHEEL = "kept_words-1.0-py3-none-any.whl"


def shared(**changes: object) -> config.Shared:
    values = {"seed": 5, "precision": "float32", "format": "plain", "prompt_tokens": 8, "answer_tokens": 8}
    return config.Shared.model_validate(values | {"temperature": 1.0} | changes)


def section(model: str, track: Path | str = "data/embedded") -> config.Base:
    return config.Base(model=model, revision=None, track=Path(track))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index on disk, for the real pip: one small wheel, and the pin that asks for it."""
    links = tmp_path / "links"
    links.mkdir()
    with zipfile.ZipFile(links / WHEEL, "w") as wheel:
        wheel.writestr("kept_words/model.gguf", "not a model")
        info = "kept_words-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: kept-words\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    digest = hashlib.sha256((links / WHEEL).read_bytes()).hexdigest()
    pin(tmp_path, digest)
    return links


def pin(folder: Path, digest: str) -> None:
    wanted = {"package": "kept-words", "version": "1.0", "kind": "wheel", "file": WHEEL, "bytes": 1_000_000}
    wanted |= {"sha256": digest, "licence": "none", "holds": "words"}
    (folder / "pins.json").write_text(json.dumps({"words": wanted}))


def fetch(folder: Path) -> Path:
    return embedded.fetch("words", pins=folder / "pins.json", downloads=folder / "downloads")


def test_a_pinned_file_is_fetched_once(index: Path, tmp_path: Path) -> None:
    first = fetch(tmp_path)
    assert first.read_bytes() == (index / WHEEL).read_bytes()
    (index / WHEEL).unlink()  # a second download would fail now
    assert fetch(tmp_path) == first
    assert [p.name for p in (tmp_path / "downloads").iterdir()] == [WHEEL]


def test_a_damaged_file_is_replaced(index: Path, tmp_path: Path) -> None:
    target = fetch(tmp_path)
    target.write_bytes(b"half of it")
    assert fetch(tmp_path).read_bytes() == (index / WHEEL).read_bytes()


def test_a_download_with_other_bytes_is_refused(index: Path, tmp_path: Path) -> None:
    pin(tmp_path, "0" * 64)
    with pytest.raises(UserError, match=r"(?s)HASHES.*put the file in by hand.*" + "0" * 64):
        fetch(tmp_path)
    assert list((tmp_path / "downloads").iterdir()) == []


def test_without_an_index_the_error_says_how_to_go_on(index: Path, tmp_path: Path) -> None:
    (index / WHEEL).unlink()
    damaged = tmp_path / "downloads" / WHEEL
    damaged.parent.mkdir()
    damaged.write_bytes(b"half of it")
    with pytest.raises(UserError) as raised:
        fetch(tmp_path)
    message = str(raised.value)
    for part in (
        "kept-words 1.0 (1 MB; words)",
        "pip download --no-deps kept-words==1.0",
        f"copy {WHEEL}",
        "was removed",
    ):
        assert part in message
    assert not damaged.exists()


def test_the_pins_name_no_host() -> None:
    pins = json.loads(Path("data/embedded/pins.json").read_text())
    assert set(pins) == {"model", "snippets"}
    assert all(len(p["sha256"]) == 64 for p in pins.values())
    assert "://" not in json.dumps(pins)


def test_byte_tokenizer_has_every_byte_once() -> None:
    tokenizer = text.byte_tokenizer()
    words = "naïve café\n 42\t“so” \x00 日本 😀"
    assert tokenizer(words, add_special_tokens=False)["input_ids"] == list(words.encode())
    assert tokenizer.decode(list(words.encode())) == words
    assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}) == 3
    chat = [{"role": "user", "content": "hi"}]
    assert (
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        == "<|user|>hi<eos><|assistant|>"
    )


def test_tiny_is_small_seeded_and_loads_anywhere(tmp_path: Path) -> None:
    metrics = base.run(shared(), section("tiny"), out=tmp_path / "a")
    base.run(shared(), section("tiny"), out=tmp_path / "b")
    base.run(shared(seed=6), section("tiny"), out=tmp_path / "c")
    for name in sorted(p.name for p in (tmp_path / "a").iterdir()):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in "ac"]
    assert weights[0] != weights[1]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    # By hand: embedding 262 x 64 (tied); per layer q, o 2 x 64 x 64, k, v 2 x 64 x 32, mlp 3 x 64 x 192, norms 2 x 64.
    assert metrics["parameters"] == 262 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 192 + 2 * 64) + 64
    assert model.dtype == torch.float32
    assert metrics["vocabulary"] == 262
    assert metrics["layers"] == 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a")
    assert model.generation_config.eos_token_id == model.config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of the user's whose pad token is its end-of-sequence token and whose embedding has no row to spare."""
    tokenizer = text.byte_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.chat_template = None
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    settings = LlamaConfig(vocab_size=262, max_position_embeddings=64, tie_word_embeddings=False, **sizes)
    model = LlamaForCausalLM(settings).to(torch.bfloat16)
    model.generation_config.temperature = 0.3
    model.generation_config.do_sample = True
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "mine")
    return tmp_path / "mine"


def test_a_folder_becomes_float32_with_a_pad_token_of_its_own(folder: Path, tmp_path: Path) -> None:
    base.run(shared(), section(str(folder), folder), out=tmp_path / "out")
    before, after = (AutoModelForCausalLM.from_pretrained(f, dtype="auto") for f in (folder, tmp_path / "out"))
    assert (before.dtype, after.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(after.lm_head.weight[:262], before.lm_head.weight.float())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.pad_token == "<pad>"
    assert tokenizer.eos_token == "<eos>"
    assert after.generation_config.temperature in (None, 1.0)  # the stages sample with shared.temperature


def test_a_pad_token_without_a_row_gets_the_mean_row() -> None:
    tokenizer = one_special_token()
    torch.manual_seed(0)
    settings = LlamaConfig(
        vocab_size=3,
        hidden_size=4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(settings)
    old = [layer.weight.detach().clone() for layer in (model.get_input_embeddings(), model.get_output_embeddings())]
    pretrained.settle_tokens(model, tokenizer, "mine")
    assert tokenizer.pad_token_id == 3
    assert model.config.vocab_size == 4
    for layer, was in zip((model.get_input_embeddings(), model.get_output_embeddings()), old, strict=True):
        torch.testing.assert_close(layer.weight[3], was.mean(dim=0))
        assert torch.equal(layer.weight[:3], was)


def one_special_token() -> PreTrainedTokenizerFast:
    """Three tokens, one of which is bos, eos and unk at once, as GPT-2's `<|endoftext|>` is."""
    core = Tokenizer(models.WordLevel({"<|endoftext|>": 0, "a": 1, "b": 2}, unk_token="<|endoftext|>"))
    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token=end, eos_token=end, unk_token=end)


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _an_encoder(folder: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(vocab_size=262, initializer_range=1.0, **sizes)).save_pretrained(folder)


def _an_encoder_and_decoder(folder: Path) -> None:
    T5Config().save_pretrained(folder)


def _weights_of_another_size(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"num_hidden_layers": 2}))


def _pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _truncated_weights(folder: Path) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])


def _no_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def _no_end(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in settings.items() if k not in ("eos_token", "pad_token")}))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_no_config, "holds no model that can be read"),
        (_an_encoder, "sees later tokens"),
        (_an_encoder_and_decoder, "is a t5 model, expected a causal language model"),
        (_weights_of_another_size, "lacks 9 weights that its config asks for, such as model.layers.1"),
        (_pickled_weights, "cannot be loaded as a causal language model"),
        (_truncated_weights, "cannot be loaded as a causal language model"),
        (_no_tokenizer, "no tokenizer can be read"),
        (_no_end, "no end-of-sequence token"),
    ],
)
def test_a_folder_that_is_no_model(folder: Path, tmp_path: Path, spoil, message: str) -> None:
    spoil(folder)
    with pytest.raises(UserError, match=message) as raised:
        base.run(shared(), section(str(folder), folder), out=tmp_path / "out")
    assert str(folder) in str(raised.value)


def test_settings_that_the_model_cannot_serve(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = section(str(folder), folder)
    with pytest.raises(UserError, match=r"prompt_tokens \+ shared.answer_tokens: is 65, expected at most 64"):
        base.run(shared(prompt_tokens=57), mine, out=tmp_path / "out")
    with pytest.raises(UserError, match="no chat template"):
        base.run(shared(format="chat"), mine, out=tmp_path / "out")
    with pytest.raises(UserError, match=r"base.track: is data/embedded"):
        base.run(shared(), section(str(folder)), out=tmp_path / "out")
    with pytest.raises(UserError, match="is not a folder"):
        base.run(shared(), section(str(tmp_path / "nowhere")), out=tmp_path / "out")


def test_a_hub_id_offline_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="a hub id must exist and needs the network the first time"):
        base.run(shared(), section("someone/model-that-is-not-cached"), out=tmp_path / "out")


def test_too_little_memory_or_disk_says_how_much_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    # 7e9 parameters x 4 bytes x (weights, gradients, two moments, reference) = 140 GB; x 6 folders = 168 GB.
    monkeypatch.setenv("RLHF_DEVICE", "cpu")
    monkeypatch.setattr(base.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 139e9}))
    with pytest.raises(UserError, match=r"7000M parameters needs 140.0 GB of memory .*; 139.0 GB are free"):
        base.check_room("big", 7_000_000_000)
    monkeypatch.setattr(base.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 141e9}))
    monkeypatch.setattr(base.shutil, "disk_usage", lambda _: type("Disk", (), {"free": 167e9}))
    with pytest.raises(UserError, match=r"needs 168\.0 GB of disk"):
        base.check_room("big", 7_000_000_000)
    monkeypatch.setattr(base.shutil, "disk_usage", lambda _: type("Disk", (), {"free": 169e9}))
    base.check_room("big", 7_000_000_000)


@pytest.mark.network
@pytest.mark.slow
def test_the_embedded_model(tmp_path: Path) -> None:
    metrics = base.run(shared(), section("embedded"), out=tmp_path / "out")
    assert metrics["parameters"] == 134_515_008
    assert metrics["weight_bytes"] > 4 * 134_515_008
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert not hasattr(model.config, "quantization_config")
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|endoftext|>", "<|im_end|>")
    ids = tokenizer("The capital of France is", return_tensors="pt")
    assert tokenizer.decode(model.generate(**ids, max_new_tokens=1, do_sample=False)[0]).endswith(" Paris")
