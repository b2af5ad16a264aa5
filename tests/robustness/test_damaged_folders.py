"""Loading a damaged or malicious folder succeeds or fails with a one-line error, and never reads out of bounds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from speculative_decoding import CheckpointError, InputError, Session, load
from speculative_decoding.cli.common import read_text, say
from speculative_decoding.drafters.text_store import TextStore
from speculative_decoding.errors import MAX_CHARACTERS
from tests.support.damaged_folders import FILES, SMALL_TOKENIZER, checked_lookup
from tests.support.device import use
from tests.support.tiny import CONFIG, VOCAB, OneLanguage, save_hugging_face, tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = save_hugging_face(tiny_model(), tmp_path / "model", CONFIG)
    (folder / "tokenizer.json").write_text(json.dumps(SMALL_TOKENIZER))
    return folder


@pytest.fixture(autouse=True)
def check_lookups(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail on any lookup outside an embedding table."""
    monkeypatch.setattr(nn.Embedding, "__call__", checked_lookup(nn.Embedding.__call__))
    mx.disable_compile()  # type: ignore[no-untyped-call]
    yield
    mx.enable_compile()  # type: ignore[no-untyped-call]
    use(mx.cpu)


def one_line(error: pytest.ExceptionInfo[InputError]) -> str:
    assert str(error.value).isprintable()
    return str(error.value)


INVALID_FIELDS: list[tuple[str, Any]] = [
    *((name, value) for name in ("num_layers", "d_model", "d_kv", "d_ff", "num_heads") for value in (0, 10**9)),
    *(("vocab_size", value) for value in (True, "24", 1.5, 10**400, 1)),
    *(("num_decoder_layers", value) for value in (0, 10**9)),
    *(("relative_attention_num_buckets", value) for value in (1, 10**9)),
    *(("relative_attention_max_distance", value) for value in (4, 10**400)),
    *(("layer_norm_epsilon", value) for value in (0, float("nan"), float("inf"), "1e-6", 1e-45)),
    *(("feed_forward_proj", value) for value in (["relu"], "gated-", "relu\x1b[2J")),
    ("tie_word_embeddings", 1),
    *(("model_type", value) for value in (None, ["t5"], "\ud800")),
    ("n_positions", 0),
    *((name, value) for name in ("decoder_start_token_id", "pad_token_id") for value in (-1, VOCAB)),
    *(("eos_token_id", value) for value in ([1, VOCAB], [[1]], -1, True, [1] * 1000)),
]


@pytest.mark.parametrize(("field", "value"), INVALID_FIELDS, ids=lambda value: str(value)[:20])
def test_an_invalid_config_field_is_named_in_one_line(folder: Path, field: str, value: Any) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | {field: value}))
    with pytest.raises(CheckpointError) as error:
        load(folder)
    assert field in one_line(error)


def test_config_sizes_are_checked_against_the_tensors_without_using_memory(folder: Path) -> None:
    for change in ({"vocab_size": 1 << 24}, {"d_ff": 1 << 22}, {"num_layers": 512}, {"num_heads": 4, "d_kv": 2}):
        (folder / "config.json").write_text(json.dumps(CONFIG | change))
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        with pytest.raises(CheckpointError, match=r"has shape|is missing"):
            load(folder)
        assert mx.get_peak_memory() - before < 10 << 20


@pytest.mark.parametrize("name", ["decoder_start_token_id", "pad_token_id", "eos_token_id"])
def test_ids_of_generation_config_are_used_and_checked(folder: Path, name: str) -> None:
    (folder / "generation_config.json").write_text(json.dumps({name: 5}))
    config = load(folder).model.config
    assert 5 in (*config.eos_token_ids, config.pad_token_id, config.decoder_start_token_id)
    (folder / "generation_config.json").write_text(json.dumps({name: 10**9}))
    with pytest.raises(CheckpointError, match=f"{name}.*must be a whole number, 0 to {VOCAB - 1}"):
        load(folder)


def test_overridden_ids_are_checked_too(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | {"decoder_start_token_id": 9000}))
    (folder / "generation_config.json").write_text(json.dumps({"decoder_start_token_id": 0}))
    with pytest.raises(CheckpointError, match="decoder_start_token_id.*not 9000"):
        load(folder)


def with_post_processor(ids: list[int]) -> dict[str, Any]:
    special = {"</s>": {"id": "</s>", "ids": ids, "tokens": ["</s>"] * len(ids)}}
    return SMALL_TOKENIZER | {"post_processor": SMALL_TOKENIZER["post_processor"] | {"special_tokens": special}}


def with_more_pieces(count: int) -> dict[str, Any]:
    vocab = [*SMALL_TOKENIZER["model"]["vocab"], *([f"x{i}", -50.0] for i in range(count)), ["q", -1.0]]
    return SMALL_TOKENIZER | {"model": SMALL_TOKENIZER["model"] | {"vocab": vocab}}


@pytest.mark.parametrize(
    "tokenizer",
    [with_post_processor([VOCAB]), with_more_pieces(VOCAB - 17)],
    ids=["special", "pieces"],
)
def test_tokenizer_ids_outside_the_table_are_refused(folder: Path, tokenizer: dict[str, Any]) -> None:
    """The ids come from the post-processor or the pieces, and reach a prompt, a decoder prefix and a scored text."""
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')  # reads it as it is
    session = load(folder)
    with pytest.raises(InputError, match=f"prompt: its tokens must be between 0 and {VOCAB - 1}, not"):
        session.generate("the q", max_tokens=2)
    with pytest.raises(InputError, match=r"must be between 0"):
        session.generate("the", decoder_prefix="q", max_tokens=2)
    with pytest.raises(InputError, match=r"must be between 0"):
        session.score("the", "q")


def test_draft_ids_outside_the_table_are_not_looked_up() -> None:
    """A drafter may propose unknown ids, and a draft model may have a smaller vocabulary than the target."""

    class InvalidDrafter:
        def begin(self, tokens: object) -> None: ...

        def propose(self, tokens: object, count: int) -> list[int]:
            return [5, 10**9, -7][:count]

    session = Session(tiny_model(), Words(), tiny_model(vocab_size=12))
    plain = session.generate("a", drafter="none", max_tokens=8)
    assert session.generate("a", drafter=InvalidDrafter(), num_draft_tokens=3, max_tokens=8).tokens == plain.tokens
    assert session.generate("a", drafter="model", num_draft_tokens=3, max_tokens=8).tokens == plain.tokens


class Words(OneLanguage):
    """Encodes any text to ids that a draft model with 12 ids does not have."""

    def encode(self, text: str, language: str | None = None) -> list[int]:
        return [23, 14, 5, 1]

    def decode(self, tokens: object) -> str:
        return "".join(f"{token} " for token in tokens)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [name for name in FILES if "index" not in name])
def test_pipes_are_not_opened(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match="not a regular file"):
        load(folder)


def test_inputs_that_are_no_regular_files_are_refused(tmp_path: Path) -> None:
    """A named pipe would block and /dev/zero is endless. A pipe that the shell has opened is read."""
    (path := tmp_path / "input").symlink_to("/dev/null")
    for read in (TextStore.load, lambda name: read_text(Path(name), "--prompts")):
        with pytest.raises(InputError, match="not a regular file"):
            read(str(path))
    read_end, write_end = os.pipe()
    os.write(write_end, b"a\nb")
    os.close(write_end)
    assert read_text(Path(f"/dev/fd/{read_end}"), "--prompts") == "a\nb"
    os.close(read_end)


def test_control_characters_in_errors_are_escaped(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | {"model_type": "\x1b[2J\r\n\u202eowned\ud800"}))
    with pytest.raises(CheckpointError, match=r"\\x1b.*owned") as error:
        load(folder)
    assert one_line(error)
    (folder / "config.json").unlink()
    hostile = folder.rename(folder.with_name("\x1b]0;owned\x07"))
    with pytest.raises(CheckpointError, match=r"\\x1b\]0;owned\\x07") as error:
        load(hostile)
    assert one_line(error)
    assert len(str(InputError("x" * 10_000_000))) < 2 * MAX_CHARACTERS
    assert str(InputError("a\nb\tc — ä")) == "a\\nb\\tc — ä"


def test_control_characters_in_messages_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    say("target \x1b]0;owned\x07\r\nsecond line")
    assert capsys.readouterr().err == "target \\x1b]0;owned\\x07\\r\nsecond line\n"


@pytest.mark.parametrize("dtype", [np.uint32, np.bool_])
def test_integer_weights_are_refused(folder: Path, dtype: type) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"shared.weight": tensors["shared.weight"].astype(dtype)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"'shared\.weight' has dtype"):
        load(folder)


@pytest.mark.parametrize("shape", [(), (24, 0), (24, 3)])
def test_invalid_quantization_is_refused(folder: Path, shape: tuple[int, ...]) -> None:
    tensors = load_file(folder / "model.safetensors") | {"shared.scales": np.zeros(shape, np.float32)}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load(folder)


def test_a_missing_tensor_is_named_before_float16_rescales_it(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["decoder.block.0.layer.2.DenseReluDense.wo.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"DenseReluDense\.wo\.weight' is missing"):
        load(folder, dtype="float16")


def test_weights_that_are_not_finite_cannot_be_rescaled_for_float16(folder: Path) -> None:
    for value in (np.inf, np.nan):
        tensors = load_file(folder / "model.safetensors")
        tensors["shared.weight"][3, 4] = value
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match="not finite"):
            load(folder, dtype="float16")
