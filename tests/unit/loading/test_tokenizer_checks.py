"""Hostile tokenizer files are refused before a library reads them, which could take all memory, crash, or panic."""

from __future__ import annotations

import base64
import functools
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from speculative_decoding import InputError
from speculative_decoding.loading.tokenizer import load_tokenizer
from speculative_decoding.loading.tokenizer_checks import check_tokenizer_json
from tests.support.damaged_folders import SMALL_TOKENIZER, SPECIAL
from tests.support.tokenizers import FOLDERS


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
    ({"normalizer": in_sequence("normalizers", *[replace("a" * 10, String="a")] * 12)}, "normalizer expands one"),
    ({"normalizer": in_sequence("normalizers", *[replace("e", Regex="(?=e)")] * 40)}, "normalizer expands one"),
    ({"normalizer": in_sequence("normalizers", *[prepend(3000)] * 5)}, "normalizer expands one"),
    ({"normalizer": in_sequence("normalizers", *[in_sequence("normalizers", prepend(9))] * 120)}, "normalizer expands"),
    ({"decoder": in_sequence("decoders", *[replace("ee", String="e")] * 40)}, "decoder expands one character"),
    ({"pre_tokenizer": in_sequence("pretokenizers", *[{"type": "ByteLevel"}] * 40)}, "pre_tokenizer expands one"),
    (with_template(*[PROMPT] * 2000), "post_processor expands one"),
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
            r"a*a*a*b",
            r"(?:a?){40}b",
            r"(?:(?:a?)a)+b",
            r"(a+)?*b",
            "(a|a)" * 30 + "b",
            r"\c[(x+x+)+y\c]",
            r"(?#[)(x+x+)+y(?#])",
        )
    ],
    ({"normalizer": functools.reduce(lambda inner, _: {"a": inner}, range(40), {})}, "too large or too deep"),
    ({"decoder": {"type": "x" * 4000, "a": ["x" * 4000] * 1100}}, "too large or too deep"),
    (with_rules(b"abc"), "rules are damaged"),
    ({"normalizer": {"type": "Precompiled"}}, "rules are damaged"),
    (with_rules(struct.pack("<I", 0xFFFFFC00)), "rules are damaged"),
    (with_rules(rules(unit=1 << 20)), "rules are damaged"),
    (with_rules(rules(unit=1 << 8 | 1 << 10) + b"\x80"), "rules are damaged"),
    (with_rules(rules(unit=1 << 8 | 1 << 10) + b"\xff"), "utf-8"),
    (with_rules(rules(replacements=b"a" * 2000)), "normalizer expands one"),
]


def check(change: dict[str, Any]) -> None:
    check_tokenizer_json(json.dumps(SMALL_TOKENIZER | change).encode())


@pytest.mark.parametrize(("change", "problem"), HOSTILE_TOKENIZERS)
def test_hostile_tokenizers_are_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check(change)


@pytest.mark.parametrize("change", [HOSTILE_TOKENIZERS[0][0], with_piece("x" * 10_000)], ids=["growing", "long"])
def test_files_are_checked_before_a_library_reads_them(change: dict[str, Any], tmp_path: Path) -> None:
    """The library would accept these."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(SMALL_TOKENIZER | change))
    with pytest.raises(InputError, match=r"tokenizer\.json: not a readable tokenizer \(.* (more|longer) than"):
        load_tokenizer(tmp_path)


def test_escaped_keys_cannot_hide_a_normalizer() -> None:
    with pytest.raises(ValueError, match="a key has escaped letters"):
        check_tokenizer_json(json.dumps(SMALL_TOKENIZER).replace('"normalizer"', r'"n\u006Frmalizer"').encode())


def test_common_steps_of_tokenizers_are_accepted() -> None:
    steps: list[Any] = ["no object", {"type": "NFKC"}, replace("▁", String=" "), SPACES, prepend(1)]
    check({"normalizer": in_sequence("normalizers", *steps), **with_piece("x" * 4000), **with_merge("##b")})


@pytest.mark.parametrize("regex", COMMON_REGEXES)
def test_common_regular_expressions_are_accepted(regex: str) -> None:
    check({"pre_tokenizer": in_sequence("pretokenizers", split(regex))})


def spiece(charsmap: bytes = b"", **piece: Any) -> bytes:
    pieces = [{"piece": "<unk>", "type": 2}, {"piece": "a"} | piece]
    return bytes(ModelProto(pieces=pieces, normalizer_spec={"precompiled_charsmap": charsmap}).SerializeToString())


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "it holds no pieces"),
        (b"\xff", "Error parsing"),
        (spiece(piece="x" * 5000), "a piece is longer"),
        (spiece(rules(replacements=b"a" * 2000)), "normalizer expands one"),
    ],
)
def test_hostile_sentencepiece_models_are_refused(data: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(data)
    with pytest.raises(InputError, match=rf"spiece\.model: not a readable SentencePiece model \(.*{problem}"):
        load_tokenizer(tmp_path)


LONG = "x" * 5000
HOSTILE: list[tuple[str, str, object]] = [
    ("t5_added", "added_tokens.json", {LONG: 320}),
    ("t5_added", "special_tokens_map.json", {"eos_token": LONG}),
    ("t5_added", "special_tokens_map.json", {"eos_token": {"content": LONG}}),
    ("t5_added", "special_tokens_map.json", {"additional_special_tokens": [LONG]}),
    ("t5_fast", "tokenizer_config.json", {"added_tokens_decoder": {"400": {"content": LONG}}}),
    ("t5_fast", "tokenizer_config.json", {"extra_special_tokens": {"a_token": LONG}}),
    ("bert", "vocab.txt", f"[PAD]\n[UNK]\n{LONG}\n"),
    ("bartpho", "dict.txt", f"{LONG} 1\n"),
    ("m2m_100", "vocab.json", {LONG: 1}),
]


@pytest.mark.parametrize(("name", "file", "content"), HOSTILE, ids=lambda value: str(value)[:30])
def test_long_tokens_are_refused_in_every_file(name: str, file: str, content: object, tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDERS[name], tmp_path / name)
    (folder / file).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InputError, match=rf"{file}: not .*longer than 4096"):
        load_tokenizer(folder)
