"""Folders with a CTranslate2 vocabulary and configuration, without weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from speculative_decoding.loading.tokenizer import Tokenizer
from tests.support.tokenizers import FOLDERS, loaded

CONFIG = {
    "model_type": "opennmt",
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "add_source_bos": False,
    "add_source_eos": False,
}
# The files that users copy beside a converted model, and the fields in which its configuration differs
FAMILIES: dict[str, tuple[Sequence[str], dict[str, Any]]] = {
    "nllb": (["sentencepiece.bpe.model"], {}),
    "m2m_100": (["sentencepiece.bpe.model"], {}),
    "mbart": (["sentencepiece.bpe.model"], {}),
    "mbart50": (["sentencepiece.bpe.model"], {}),
    "t5": (["spiece.model"], {"model_type": "t5", "bos_token": "<pad>"}),
    "mt5": (["spiece.model"], {"model_type": "t5", "bos_token": "<pad>"}),
    "pegasus": (["spiece.model"], {"bos_token": "<pad>"}),
    "marian": (["source.spm", "target.spm"], {}),
}
FILLERS = {
    "nllb": [f"madeupword{index}" for index in range(2)],
    "m2m_100": [f"madeupword{index}" for index in range(8)],
    "t5": [f"<extra_id_{index}>" for index in range(28)],
    "mt5": [f"<extra_id_{index}>" for index in range(12)],
}


def vocabulary_of(tokenizer: Tokenizer) -> list[str]:
    """As `ModelLoader.get_vocabulary` of CTranslate2's converter for Hugging Face models."""
    ids = {piece: index for index, piece in tokenizer.vocabulary.pieces.items()}
    return [token for token, _ in sorted(ids.items(), key=lambda item: item[1])]


def family_tokens(family: str) -> list[str]:
    """As the overrides of `get_vocabulary` for a family."""
    tokens = vocabulary_of(loaded(FOLDERS[family]))
    if family == "marian":
        assert tokens.pop() == "<pad>"
    return tokens + FILLERS.get(family, [])


def config_for(tokens: Sequence[str], **fields: Any) -> dict[str, Any]:
    """The configuration of a model with these tokens, as `checkpoints.read_config` returns it."""
    config = {**CONFIG, "vocab_size": len(tokens), **fields}
    padding = next((token for token in ("<pad>", "<blank>") if token in tokens), None)
    pad = len(tokens) if padding is None else tokens.index(padding)
    ids = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": tokens.index(config["eos_token"])}
    return ids | config


def write_vocabulary(folder: Path, tokens: Sequence[str], suffix: str = "json") -> Path:
    path = folder / f"shared_vocabulary.{suffix}"
    text = json.dumps(tokens) if suffix == "json" else "".join(f"{token}\n" for token in tokens)
    path.write_bytes(text.encode())
    return path


def write_folder(folder: Path, family: str, suffix: str = "json") -> Path:
    """Write what a family's folder contains after its conversion with CTranslate2."""
    folder.mkdir()
    files, fields = FAMILIES[family]
    tokens = family_tokens(family)
    for name in files:
        shutil.copyfile(FOLDERS[family] / name, folder / name)
    write_vocabulary(folder, tokens, suffix)
    (folder / "config.json").write_text(json.dumps(config_for(tokens, **fields)))
    return folder
