"""Damaged folders for tools/fuzz_files.py, and functions that use them.

A model's folder holds a tiny T5 or the golden model of another family, with damage in config.json,
generation_config.json, the tokenizer files or the manifest. Other folders hold only a tokenizer, or a draft head.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from speculative_decoding import load
from speculative_decoding.checkpoints.npz import read_npz
from speculative_decoding.loading.canonical_tokenizer import canonical_tokenizer
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.draft_head import write_draft_head
from speculative_decoding.loading.load import BUNDLED, Storage, build_model, checked_generation_config, read_folder
from speculative_decoding.loading.tokenizer import load_tokenizer
from tests.support.ctranslate2_cases import CASES, variables, write
from tests.support.ctranslate2_files import Value, model_bytes, stored, write_folder
from tests.support.paths import GOLDENS as GOLDENS_FOLDER
from tests.support.tiny import CONFIG, TOKENIZER, save_hugging_face, tiny_head, tiny_model

Random = random.Random
BUNDLED_TARGET = BUNDLED / "t5-web-docs"
TEXT = "the method returns a value \U0001f389 <extra_id_0>"
SPECIAL = ("<pad>", "</s>", "<unk>")
SMALL_TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {"id": i, "content": piece, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        | {"special": True}
        for i, piece in enumerate(SPECIAL)
    ],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
    "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
    },
    "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    "model": {
        "type": "Unigram",
        "unk_id": 2,
        "vocab": [[piece, 0.0] for piece in SPECIAL] + [[piece, -i] for i, piece in enumerate("▁ethdmrusnavlxi", 3)],
        "byte_fallback": False,
    },
}
TOKENIZER_CONFIG = {"tokenizer_class": "T5Tokenizer", "eos_token": "</s>", "extra_ids": 0, "pad_token": "<pad>"}
FILES: dict[str, Any] = {
    "config.json": CONFIG | {"num_decoder_layers": CONFIG["num_layers"], "layer_norm_epsilon": 1e-6}
    | {"feed_forward_proj": "relu"}
    | {"pad_token_id": 0, "decoder_start_token_id": 0, "n_positions": 512, "scale_decoder_outputs": False},
    "generation_config.json": {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0},
    "tokenizer.json": SMALL_TOKENIZER,
    "tokenizer_config.json": TOKENIZER_CONFIG,
    "manifest.json": {"format_version": 1, "dtype": "float32", "files": {}},
    "model.safetensors.index.json": {"metadata": {}, "weight_map": {"shared.weight": "model.safetensors"}},
}  # fmt: skip
GOLDENS = sorted(path.parent for path in GOLDENS_FOLDER.glob("*/config.json"))
TOKENIZER_JSONS = sorted(GOLDENS_FOLDER.glob("tokenizers/*/tokenizer.json"))
GROWING = {"type": "Replace", "pattern": {"String": "e"}, "content": "eeeeeeeeee"}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
STEPS: dict[str, tuple[dict[str, Any], ...]] = {
    "normalizer": (
        *({"type": name} for name in ("NFKC", "NFD", "Nmt", "StripAccents", "ByteLevel")),
        GROWING,
        {"type": "Sequence", "normalizers": [GROWING] * 12},
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "x" * 1_000_000}] * 5},
    ),
    "pre_tokenizer": (BYTE_LEVEL, {"type": "Sequence", "pretokenizers": [BYTE_LEVEL] * 40}, {"type": "Whitespace"}),
    "decoder": (
        GROWING,
        BYTE_LEVEL,
        {"type": "Sequence", "decoders": [GROWING] * 12},
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "CTC", "pad_token": "e", "word_delimiter_token": "|", "cleanup": True},
    ),
}
MODEL_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
MALICIOUS_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, 3, -1, 24, 9000, 1 << 31, 1 << 63, 10**9, 10**400, -(10**400), 0.5, 1e308, 1e-320, -0.0,
    float("nan"), float("inf"), -float("inf"), "", "a", "relu\0", "\x1b[2J\x1b[31mowned\r\n", "\ud800",
    "../../etc/passwd", "x" * 100_000, [], {}, [[]], [1] * 100_000, [0, 1, 2], {"a": 1},
    {str(i): i for i in range(10_000)},
    "(a+)+$", "gated-", "t5", "mt5", "bart", "marian", "m2m_100", "t5gemma", "t5gemma2",
)  # fmt: skip


@cache
def weights(vocab_size: int) -> Path:
    """Make a folder with a model of this vocabulary size and the bundled SentencePiece model, once per process.

    The tokenizer is loaded once here, because the first load makes transformers import many modules.
    """
    changes = {"vocab_size": vocab_size}
    folder = save_hugging_face(tiny_model(**changes), Path(tempfile.mkdtemp(), "model"), CONFIG | changes)
    (folder / "tokenizer.json").unlink()
    shutil.copy(BUNDLED_TARGET / "spiece.model", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))
    load_tokenizer(folder)
    return folder


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, each in inner for place in places(each, (*at, key)))]


def replaced(content: Any, rng: Random) -> Any:
    """Replace, remove, rename or wrap one value, half of the time at the top level."""
    content = copy.deepcopy(content)
    inner = places(content)
    if len(inner) == 1:
        return rng.choice(MALICIOUS_VALUES)
    at = rng.choice([place for place in inner if len(place) == 1] if rng.random() < 0.5 else inner[1:])
    holder = content
    for key in at[:-1]:
        holder = holder[key]
    kind = rng.randrange(10)
    old = holder[at[-1]]
    if kind == 0:
        del holder[at[-1]]
    elif kind == 1 and isinstance(holder, dict):
        holder[rng.choice(list(holder))] = old
    elif kind == 2:
        holder[at[-1]] = rng.choice(
            ([old], {"a": old}, str(old), [old] * (3 if isinstance(old, dict | list) else 1000))
        )
    else:
        holder[at[-1]] = rng.choice(MALICIOUS_VALUES)
    return content


def damaged_text(text: bytes, rng: Random) -> bytes:
    """Return invalid or unusual JSON."""
    at = rng.randrange(len(text) + 1)
    depth = rng.choice((40, 2000, 200_000))
    return rng.choice(
        (
            text[:at],
            text[:at] + rng.randbytes(8) + text[at + 8 :],
            b"[" * depth + b"]" * depth,
            b'{"model_type": ' * depth + b"1" + b"}" * depth,
            text[:-1] + b", " + text[1:],
            text.decode("latin-1").encode("utf-16"),
            b"\xef\xbb\xbf" + text,
            text.replace(b"1", b"1" * 5000, 1),
            b"",
            b"null",
        )
    )


def strange_file(path: Path, rng: Random) -> None:
    kind = rng.randrange(6)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        with path.open("wb") as file:
            file.truncate(1 << 34)
    else:
        path.symlink_to(("/dev/zero", "/dev/tty", path.name)[kind - 3])


def write_damaged_folder(folder: Path, rng: Random) -> None:
    """Write a folder with one or two damaged files. A tenth have a SentencePiece model instead of tokenizer.json."""
    folder.mkdir()
    files = dict(FILES)
    is_bare = rng.random() < 0.1
    golden = None if is_bare or rng.random() < 0.2 else rng.choice(GOLDENS)
    damaged = [rng.choice(("config.json",) * 5 + (*MODEL_FILES, *files)) for _ in range(rng.choice((1, 1, 2)))]
    source = weights(8192 if is_bare else CONFIG["vocab_size"])
    if golden is not None:
        source = golden
        files |= {name: json.loads((golden / name).read_text()) for name in MODEL_FILES if (golden / name).is_file()}
    (folder / "model.safetensors").symlink_to(source / "model.safetensors")
    if is_bare:
        del files["tokenizer.json"]
        files["config.json"] = files["config.json"] | {"vocab_size": 8192}
        spiece = (BUNDLED_TARGET / "spiece.model").read_bytes()
        (folder / "spiece.model").write_bytes(damaged_text(spiece, rng) if rng.random() < 0.2 else spiece)
    elif rng.random() < 0.2:
        normalizer = json.loads((BUNDLED_TARGET / "tokenizer.json").read_text(encoding="utf-8"))["normalizer"]
        files["tokenizer.json"] = SMALL_TOKENIZER | {"normalizer": normalizer}
    for name, content in files.items():
        if name not in damaged and name not in MODEL_FILES:
            continue
        if name in damaged and rng.random() < 0.06:
            strange_file(folder / name, rng)
            continue
        for _ in range(rng.choice((1, 1, 3)) if name in damaged else 0):
            content = replaced(content, rng)
        text = json.dumps(content).encode()
        (folder / name).write_bytes(damaged_text(text, rng) if name in damaged and rng.random() < 0.15 else text)


def write_damaged_tokenizer(folder: Path, rng: Random) -> None:
    """Write a damaged tokenizer.json, with some of the steps that make texts longer."""
    folder.mkdir()
    content = rng.choice([SMALL_TOKENIZER, *(json.loads(path.read_text("utf-8")) for path in TOKENIZER_JSONS)])
    if rng.random() < 0.5:
        name = rng.choice(list(STEPS))
        content = content | {name: rng.choice(STEPS[name])}
    if rng.random() < 0.2:
        nllb = json.loads(TOKENIZER_JSONS[0].read_text("utf-8"))["normalizer"]["normalizers"][0]
        rules = bytearray(base64.b64decode(nllb["precompiled_charsmap"]))
        for _ in range(rng.choice((1, 10))):
            rules[rng.randrange(len(rules))] ^= 1 << rng.randrange(8)
        content = content | {"normalizer": nllb | {"precompiled_charsmap": base64.b64encode(rules).decode()}}
    for _ in range(rng.choice((0, 1, 1, 3))):
        name = rng.choice(list(content))
        content = content | {name: replaced(content[name], rng)}
    text = json.dumps(content, ensure_ascii=rng.random() < 0.5).encode("utf-8", "replace")
    (folder / "tokenizer.json").write_bytes(damaged_text(text, rng) if rng.random() < 0.1 else text)


def write_damaged_side_file(folder: Path, rng: Random) -> None:
    """Write a tokenizer of the hard layouts with damage in one file that is neither tokenizer.json nor a model."""
    shutil.copytree(rng.choice(sorted((GOLDENS_FOLDER / "hard_tokenizers").iterdir())), folder)
    (folder / "golden.json").unlink()
    chosen = rng.choice([path for path in sorted(folder.iterdir()) if path.suffix in (".json", ".txt")])
    text = chosen.read_bytes()
    if chosen.suffix == ".json":
        content = json.loads(text)
        for _ in range(rng.choice((1, 1, 3))):
            content = replaced(content, rng)
        text = json.dumps(content).encode("utf-8", "replace")
    chosen.write_bytes(damaged_text(text, rng) if rng.random() < 0.2 or chosen.suffix == ".txt" else text)


CTRANSLATE2 = (
    "pre-norm",
    "zero start",
    "int8",
    "int16",
    "T5, tied, with wide heads",
    "whisper",
    "version 5, revision 4",
)


def hostile_value(value: Value, rng: Random) -> Value | None:
    """Return another value of a variable, or None to remove it."""
    array = stored(value)
    numbers = (0, 1, -1, 2, 3, 7, 127, 1 << 15, (1 << 31) - 1, -(1 << 31))
    others: list[Value | None] = [
        None,
        np.int32(rng.choice(numbers)),
        np.float32(rng.choice((0.0, 1e30, float("nan"), float("inf"), 0.5))),
        np.zeros((0,), np.float32),
        array[None],
        array.reshape(-1),
        array.astype(rng.choice((np.float16, np.int8, np.int16, np.int32, np.float32)))
        if np.isfinite(array).all()
        else None,
        "x" * rng.choice((0, 1, 5000)),
    ]
    if array.ndim:
        others += [array[:-1], np.concatenate([array, array]), array * 0]
    if array.ndim == 2:
        others += [array.T.copy(), array[:, :-1].copy()]
    return rng.choice(others)


def damaged_ctranslate2(rng: Random) -> bytes:
    """Return a valid model.bin with other variables or aliases."""
    case = CASES[rng.choice(CTRANSLATE2)]
    values = dict(variables(case["name"]))
    names = sorted(values)
    attributes = [name for name in names if stored(values[name]).size <= 1]
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        name = rng.choice(attributes if rng.random() < 0.4 else names)
        new = hostile_value(values[name], rng) if name in values else None
        values.pop(name, None)
        if new is not None:
            values[name if rng.random() < 0.9 else rng.choice((*names, "", "a/" * 100, "\ud7ff\n"))] = new
    aliases = list(case["aliases"])
    for _ in range(rng.choice((0, 0, 1, 3))):
        aliases.append((rng.choice((*names, "new")), rng.choice((*names, "new", "missing"))))
    rng.shuffle(aliases)
    numbers = [rng.choice((case[name],) * 60 + (0, 1, 5, 255)) for name in ("revision", "version")]
    spec = rng.choice((case["spec"],) * 60 + ("", "WhisperSpec", "TransformerSpec", "x" * 60000))
    return model_bytes(spec, numbers[0], values, aliases, numbers[1])


def write_damaged_vocabulary(folder: Path, rng: Random) -> None:
    """Write a CTranslate2 model with damage in its vocabulary or config.json."""
    case = CASES[rng.choice(CTRANSLATE2)]
    kind = rng.choice((".json", ".json", ".txt"))
    name = case["vocabulary"].replace(".json", kind)
    write(case["name"], folder)
    (folder / case["vocabulary"]).unlink()
    write_folder(folder, (folder / "model.bin").read_bytes(), None, case["tokens"], name)
    if rng.random() < 0.5:
        words = {token: index for index, token in enumerate(case["tokens"])}
        model = {"type": "WordLevel", "vocab": words, "unk_token": case["tokens"][0]}
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER | {"model": model}))
    config = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"} | case["config"]
    (folder / "config.json").write_text(json.dumps(config))
    damaged = folder / rng.choice((name, "config.json"))
    if rng.random() < 0.06:
        damaged.unlink()
        if rng.random() < 0.8:
            strange_file(damaged, rng)
        return
    text = damaged.read_bytes()
    if damaged.suffix == ".json":
        content = json.loads(text)
        for _ in range(rng.choice((1, 1, 3))):
            content = replaced(content, rng)
        text = json.dumps(content).encode("utf-8", "replace")
    damaged.write_bytes(damaged_text(text, rng) if rng.random() < 0.2 or damaged.suffix == ".txt" else text)


def open_ctranslate2(folder: Path) -> bool:
    """Open a folder with its tokenizer, if it has one, and run two tokens through its decoder."""
    raw, checkpoint = read_folder(folder)
    model, raw, checkpoint = build_model(raw, checkpoint, Storage("float32"))
    checked_generation_config(folder, raw, model)
    model.load_checkpoint(checkpoint)
    start = model.config.decoder_start_token_id
    assert 0 <= start < model.config.vocab_size
    if model.audio is None:
        encoded = model.encode_rows([[start, model.config.eos_token_ids[0]]])[0]
        mx.eval(model.decode(mx.array([[start, start]], mx.uint32), model.make_cache(encoded)))
    if (folder / "tokenizer.json").is_file():
        load_tokenizer(folder).encode("w5 w6")
    return True


def use_tokenizer(folder: Path) -> bool:
    tokenizer = load_tokenizer(folder)
    for text in (TEXT, "e" * 200 + "é 漢字 ﷺ"):
        tokenizer.decode(tokenizer.encode_output(text))
    canonical_tokenizer(folder)
    return True


@cache
def target_and_head() -> tuple[Path, dict[str, Any], dict[str, mx.array]]:
    """Make a target's folder, once per process, and the config.json and weights of its draft head."""
    root = Path(tempfile.mkdtemp())
    folder = save_hugging_face(tiny_model(), root / "target", CONFIG)
    target = load(folder).model
    write_draft_head(root / "head", tiny_head(target).with_frequent([1, 5, 7], {5: [9, 3]}), target, mx.float32)
    return folder, json.loads((root / "head/config.json").read_text()), dict(read_npz(root / "head/weights.npz"))


def write_damaged_head(folder: Path, rng: Random) -> None:
    """Write a draft head with damage in config.json, or with missing, reshaped, cast or useless weights."""
    folder.mkdir()
    _, config, weights = target_and_head()
    weights = dict(weights)
    if rng.random() < 0.4:
        name = rng.choice(list(weights))
        array = weights.pop(name)
        changed = (array, array[:0], array[None], array.astype(mx.int32), array * mx.nan, array * 1e30)
        if rng.random() < 0.8:
            weights[rng.choice((name, name, "unknown"))] = rng.choice(changed)
    else:
        for _ in range(rng.choice((1, 1, 3))):
            config = replaced(config, rng)
    text = json.dumps(config).encode()
    (folder / "config.json").write_bytes(damaged_text(text, rng) if rng.random() < 0.1 else text)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)


def use_head(folder: Path) -> bool:
    target, _, _ = target_and_head()
    load(target, draft=folder).generate([5, 9, 3, 1], drafter="model", max_tokens=6)
    return True


def checked_lookup(embed: Callable[[nn.Embedding, mx.array], mx.array]) -> Callable[[nn.Embedding, mx.array], mx.array]:
    """Return an embedding lookup that fails for ids outside the table."""

    def checked(self: nn.Embedding, ids: mx.array) -> mx.array:
        assert mx.all((ids >= 0) & (ids < self.weight.shape[0])).item(), "an id outside the table"
        return embed(self, ids)

    return checked


def load_and_use(folder: Path) -> bool:
    """Load a folder and decode a few tokens, or convert it if its number is divisible by 3. Return True on success."""
    if int(folder.stem) % 3 == 0:
        output = folder.with_suffix(".converted")
        try:
            convert(str(folder), output)
        finally:
            shutil.rmtree(output, ignore_errors=True)
        return True
    embed = nn.Embedding.__call__
    nn.Embedding.__call__ = checked_lookup(embed)  # type: ignore[method-assign]
    try:
        session = load(folder)
        session.generate(TEXT, max_tokens=3)
        session.generate("a", max_tokens=2, decoder_prefix="the")
    finally:
        nn.Embedding.__call__ = embed  # type: ignore[method-assign]
    return True
