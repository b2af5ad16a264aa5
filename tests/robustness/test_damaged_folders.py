"""Loading a damaged or malicious folder succeeds or fails with a one-line error, and never reads out of bounds."""

from __future__ import annotations

import base64
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file, save_file
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from speculative_decoding import CheckpointError, InputError, Session, load
from speculative_decoding.checkpoints.files import MAX_JSON_DEPTH, read_json_object
from speculative_decoding.checkpoints.npz import read_npz
from speculative_decoding.cli.common import read_text, say
from speculative_decoding.drafters.text_store import TextStore
from speculative_decoding.errors import MAX_CHARACTERS
from speculative_decoding.loading.load import locate
from speculative_decoding.loading.tokenizer import load_tokenizer
from tests.support.checkpoint_files import Entry, zip_bytes
from tests.support.damaged_folders import FILES, SMALL_TOKENIZER, SPECIAL, checked_lookup
from tests.support.device import use
from tests.support.tiny import CONFIG, VOCAB, OneLanguage, save_hugging_face, tiny_model
from tools.fuzz_files import npy


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
    *(
        (name, value)
        for name in ("num_layers", "d_model", "d_kv", "d_ff", "num_heads")
        for value in (0, -1, 10**9, 1.5)
    ),
    *(("vocab_size", value) for value in (True, "24", [24], 10**400, 1)),
    *(("num_decoder_layers", value) for value in (0, 10**9, "2")),
    *(("relative_attention_num_buckets", value) for value in (0, 1, 10**9)),
    *(("relative_attention_max_distance", value) for value in (0, 4, 10**400)),
    *(("layer_norm_epsilon", value) for value in (0, -1e-6, float("nan"), float("inf"), "1e-6", 1e-45)),
    *(("feed_forward_proj", value) for value in (["relu"], 5, "gated-", "relu\x1b[2J")),
    *(("tie_word_embeddings", value) for value in ("no", 1)),
    *(("model_type", value) for value in (None, ["t5"], {"t5": 1}, "\ud800")),
    *(("n_positions", value) for value in (0, "512")),
    *((name, value) for name in ("decoder_start_token_id", "pad_token_id") for value in (9000, 10**9, -1, VOCAB, [0])),
    *(("eos_token_id", value) for value in (9000, [1, 10**9], [[1]], -1, True, [1] * 1000)),
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
    [with_post_processor([VOCAB]), with_post_processor([10**9]), with_more_pieces(VOCAB - 17), with_more_pieces(9000)],
    ids=["special", "special 10^9", "pieces", "9000 pieces"],
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


def in_sequence(kind: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", kind: steps}


def replace(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def prepend(size: int) -> dict[str, Any]:
    return {"type": "Prepend", "prepend": "x" * size}


def with_piece(piece: str) -> dict[str, Any]:
    return {"model": SMALL_TOKENIZER["model"] | {"vocab": [*SMALL_TOKENIZER["model"]["vocab"], [piece, -1.0]]}}


def with_merge(second: str, prefix: str = "##") -> dict[str, Any]:
    vocab = {piece: i for i, piece in enumerate((*SPECIAL, "a", second, f"a{second.removeprefix(prefix)}"))}
    model = {"type": "BPE", "unk_token": "<unk>", "continuing_subword_prefix": prefix, "vocab": vocab}
    return {"model": model | {"merges": [["a", second]]}}


def split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def with_template(*pieces: dict[str, Any]) -> dict[str, Any]:
    return {"post_processor": SMALL_TOKENIZER["post_processor"] | {"single": pieces}}


def with_rules(rules: bytes) -> dict[str, Any]:
    return {"normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(rules).decode()}}


def rules(unit: int = 0, replacements: bytes = b"") -> bytes:
    """Return normalization rules whose trie has one root."""
    return struct.pack("<I256I", 1024, unit, *[0] * 255) + replacements


SPACES = replace(" ", Regex=" {2,}")
COMMON_REGEXES = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",  # Llama 3
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[\r\n/]*|\s+(?!\S)",  # GPT-4o
    r"(?=(\d{3})+(?!\d))",
)
PROMPT = {"Sequence": {"id": "A", "type_id": 0}}
HOSTILE_TOKENIZERS: list[tuple[dict[str, Any], str]] = [
    ({"normalizer": in_sequence("normalizers", *[replace("a" * 10, String="a")] * 12)}, "normalizer makes more than"),
    ({"normalizer": in_sequence("normalizers", *[replace("ee", String="e")] * 40)}, "normalizer makes more than"),
    ({"normalizer": in_sequence("normalizers", *[replace("e", Regex="(?=e)")] * 40)}, "normalizer makes more than"),
    ({"normalizer": in_sequence("normalizers", *[prepend(3000)] * 5)}, "normalizer makes more than"),
    ({"normalizer": in_sequence("normalizers", *[in_sequence("normalizers", prepend(9))] * 120)}, "normalizer makes"),
    ({"normalizer": prepend(1_000_000)}, "a piece is longer than 4096 bytes"),
    ({"decoder": in_sequence("decoders", *[replace("ee", String="e")] * 40)}, "decoder makes more than 1000 char"),
    ({"pre_tokenizer": in_sequence("pretokenizers", *[{"type": "ByteLevel"}] * 40)}, "pre_tokenizer makes more than"),
    (with_template(*[PROMPT] * 2000), "post_processor makes more than"),
    (with_template({"SpecialToken": {"id": "<x>", "type_id": 0}}), "unknown token"),
    (with_template({"Sequence": {"id": "B", "type_id": 0}}), "unknown token"),
    (with_piece("x" * 2_000_000), "a piece is longer"),
    (with_piece('"' * 10_000), "a piece is longer"),
    (with_piece('"precompiled_charsmap":"' + "x" * 10_000), "a piece is longer"),
    (with_merge("b"), "'b' in a merge lacks the prefix '##'"),
    *[
        ({"pre_tokenizer": split(regex)}, "exponential time")
        for regex in (
            r"(x+x+)+y",
            r"(a|a)*b",
            r"^(\w+\s?)*$",
            r"a*a*a*b",
            r"(?:a?){40}b",
            r"(?:(?:a?)a)+b",
            r"(a+)?*b",
            "(a|a)" * 30 + "b",
            r"\c[(x+x+)+y\c]",
            r"(?#[)(x+x+)+y(?#])",
            r"(?<a>a?b?)\g<a>\g<a>",
        )
    ],
    (with_rules(b"abc"), "rules are damaged"),
    ({"normalizer": {"type": "Precompiled"}}, "rules are damaged"),
    (with_rules(struct.pack("<I", 0xFFFFFC00)), "rules are damaged"),
    (with_rules(rules(unit=1 << 20)), "rules are damaged"),
    (with_rules(rules(unit=1 << 8 | 1 << 10) + b"\xff"), "utf-8"),
    (with_rules(rules(replacements=b"a" * 2000)), "normalizer makes more than"),
]


@pytest.mark.parametrize(("change", "problem"), HOSTILE_TOKENIZERS)
def test_hostile_tokenizers_are_refused_before_a_library_reads_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], problem: str
) -> None:
    monkeypatch.setattr(tokenizers, "Tokenizer", None)  # it could take all memory, crash, or print a panic
    (folder / "tokenizer.json").write_text(json.dumps(SMALL_TOKENIZER | change))
    with pytest.raises(InputError, match=r"tokenizer\.json: not a readable tokenizer") as error:
        load(folder)
    assert problem in one_line(error)


def test_escaped_keys_cannot_hide_a_normalizer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "Tokenizer", None)
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"normalizer"', r'"n\u006Frmalizer"'))
    with pytest.raises(InputError, match="a key has escaped letters"):
        load(folder)


def test_common_steps_of_tokenizers_are_accepted(folder: Path) -> None:
    splits = [split(regex) for regex in COMMON_REGEXES]
    steps = [{"type": "NFKC"}, {"type": "Lowercase"}, replace("▁", String=" "), SPACES, prepend(1)]
    change = {"normalizer": in_sequence("normalizers", *steps), **with_piece("x" * 4000)}
    change |= {"pre_tokenizer": in_sequence("pretokenizers", *splits)}
    (folder / "tokenizer.json").write_text(json.dumps(SMALL_TOKENIZER | change))
    assert load(folder).generate("the", max_tokens=2).tokens
    (folder / "tokenizer.json").write_text(json.dumps(SMALL_TOKENIZER | with_merge("##b")))
    assert "ab" in load_tokenizer(folder).vocabulary.pieces.values()


def test_hostile_sentencepiece_models_are_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    model = ModelProto(pieces=[{"piece": "<unk>", "type": 2}, {"piece": "a"}])
    hostile = {
        b"": "it holds no pieces",
        b"\xff": "Error parsing",
        ModelProto(pieces=[{"piece": "x" * 5000}]).SerializeToString(): "a piece is longer",
        model.SerializeToString() + ModelProto(normalizer_spec={"precompiled_charsmap": b"abc"}).SerializeToString(): (
            "rules are damaged"
        ),
    }
    for data, problem in hostile.items():
        (folder / "spiece.model").write_bytes(data)
        with pytest.raises(InputError, match=r"spiece\.model: not a readable SentencePiece model") as error:
            load(folder)
        assert problem in one_line(error)


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


SPECIAL_FILES: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": os.mkdir,
}


@pytest.mark.parametrize("name", [name for name in FILES if "index" not in name])
@pytest.mark.parametrize("make", SPECIAL_FILES.values(), ids=SPECIAL_FILES)
def test_special_files_are_not_opened(folder: Path, name: str, make: Callable[[Path], None]) -> None:
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
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


def test_json_size_and_depth_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.json"

    def read(text: str) -> dict[str, Any]:
        path.write_text(text)
        return read_json_object(path)

    deepest = '{"a":' * (MAX_JSON_DEPTH - 1) + "1" + "}" * (MAX_JSON_DEPTH - 1)
    assert json.dumps(read(deepest), indent=2)
    for text in (
        f'{{"a":{deepest}}}',
        "[" * 100_000,
        '{"a":' * 100_000,
        "[]",
        "1" * 5000,
        "",
        '"\xff',
        " " * (5 << 20),
    ):
        with pytest.raises(CheckpointError, match=r"a\.json"):
            read(text)


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


def test_impossible_folder_names_are_refused() -> None:
    for name in ("x" * 5000, "a\0b"):
        with pytest.raises(InputError, match="neither a folder"):
            locate(name)


def test_duplicate_arrays_and_integer_weights_are_refused(folder: Path) -> None:
    array = npy(np.ones(3, np.float32))
    (path := folder / "weights.npz").write_bytes(zip_bytes([Entry("a.npy", array), Entry("a", array)]))
    with pytest.raises(CheckpointError, match="'a' appears twice"):
        read_npz(path)
    path.write_bytes(zip_bytes([Entry("a.npy", npy(np.ones(3, np.int32)))]))
    with pytest.raises(CheckpointError, match="holds '<i4'"):
        read_npz(path)
    path.unlink()
    tensors = load_file(folder / "model.safetensors")
    for dtype in (np.uint32, np.int64, np.bool_):
        save_file(tensors | {"shared.weight": tensors["shared.weight"].astype(dtype)}, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"'shared\.weight' has dtype"):
            load(folder)


@pytest.mark.parametrize("shape", [(), (0,), (24, 0), (24, 3)])
def test_invalid_quantization_is_refused(folder: Path, shape: tuple[int, ...]) -> None:
    tensors = load_file(folder / "model.safetensors") | {"shared.scales": np.zeros(shape, np.float32)}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load(folder)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_missing_tensor_is_named_in_any_dtype(folder: Path, dtype: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["decoder.block.0.layer.2.DenseReluDense.wo.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"DenseReluDense\.wo\.weight' is missing"):
        load(folder, dtype=dtype)


def test_weights_that_are_not_finite_cannot_be_rescaled_for_float16(folder: Path) -> None:
    for value in (np.inf, np.nan):
        tensors = load_file(folder / "model.safetensors")
        tensors["shared.weight"][3, 4] = value
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match="not finite"):
            load(folder, dtype="float16")
