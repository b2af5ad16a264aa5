"""Folders of all families, each with a tokenizer that has other ids for the same words."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

from tests.support.paths import GOLDENS
from tests.support.tiny import TOKENIZER, whisper_tokenizer

FAMILIES = sorted(path.parent.name for path in GOLDENS.glob("*/model.safetensors"))
CODES = {"m2m_100": ("__{}__", ("en", "de")), "mbart": ("{}", ("en_XX", "de_DE"))}  # families with language tokens


def save_family(folder: Path, family: str) -> Path:
    """Copy the tiny model of a family, and write a tokenizer with a word for each of its ids."""
    shutil.copytree(GOLDENS / family, folder)
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] == "m2m_100":
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "M2M100Tokenizer"}))
    kind, size = config["model_type"], config.get("vocab_size")
    if kind == "whisper":
        content = whisper_tokenizer(config)
    else:
        if size is None:  # of T5Gemma
            size = config["decoder"].get("vocab_size") or config["decoder"]["text_config"]["vocab_size"]
        content = word_tokenizer(config, size, *CODES.get(kind, ("", ())), seed=FAMILIES.index(family))
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def word_tokenizer(config: dict[str, Any], size: int, form: str, codes: tuple[str, ...], seed: int) -> dict[str, Any]:
    """Return a tokenizer.json of the words w0, w1, ... in an order that depends on the seed."""
    names = {"decoder_start_token_id": "<s>", "bos_token_id": "<s>", "pad_token_id": "<pad>"}
    special = {config[key]: name for key, name in names.items() if isinstance(config.get(key), int)}
    ends = config.get("eos_token_id", 1)
    end = ends[0] if isinstance(ends, list) else ends
    special[end] = "</s>"
    free = [token for token in range(size) if token not in special]
    special[free.pop(0)] = "<unk>"
    special |= {free.pop(): form.format(code) for code in codes}
    words = [f"w{i}" for i in range(len(free))]
    random.Random(seed).shuffle(words)
    pieces = special | dict(zip(free, words, strict=True))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    single = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}]
    return TOKENIZER | {
        "added_tokens": [{"id": token, "content": piece, **flags} for token, piece in sorted(special.items())],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, *single],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [end], "tokens": ["</s>"]}},
        },
        "model": {"type": "WordLevel", "vocab": {pieces[token]: token for token in pieces}, "unk_token": "<unk>"},
    }
