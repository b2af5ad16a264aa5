"""Derives Hugging Face's config.json from a CTranslate2 folder: its model.bin, config.json and vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..sampling.options import short_repr
from .argos_metadata import MODEL_FOLDER, is_package, package_fields
from .ctranslate2 import Header, read_header
from .ctranslate2_layout import Layout, layout_of
from .ctranslate2_vocabulary import (
    END_OF_TEXT,
    START_OF_TRANSCRIPT,
    find_separate,
    find_speech_vocabulary,
    find_vocabulary,
    read_vocabulary,
)
from .files import read_json_object

MULTILINGUAL_SIZE = 51865  # ids; the English-only Whisper models have fewer
PADDING = ("<pad>", "<blank>", "[PAD]")
# Fields of CTranslate2's config.json, and the attributes in which versions before 6 store them
TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
FLAGS = {"add_source_bos": "with_source_bos", "add_source_eos": "with_source_eos"}
# Fields of a Whisper's config.json -> fields of generation_config.json
SPEECH_FIELDS = {
    "suppress_ids": "suppress_tokens",
    "suppress_ids_begin": "begin_suppress_tokens",
    "alignment_heads": "alignment_heads",
}


def ctranslate2_config(path: Path) -> dict[str, Any]:
    """Return the fields of Hugging Face's config.json for a model.bin, and the fields that its tokenizer needs.

    For Whisper, fields of generation_config.json are included.

    Raises `CheckpointError` if a file of the folder is damaged, missing or not supported.
    """
    header = read_header(path)
    layout = layout_of(header)
    given = read_json_object(file) if (file := path.with_name("config.json")).exists() else {}
    if layout.config["model_type"] == "whisper":
        fields = {ours: given[name] for name, ours in SPEECH_FIELDS.items() if given.get(name) is not None}
        return layout.config | speech_ids(layout, path.parent) | fields
    vocabulary = find_vocabulary(path.parent)
    if vocabulary is None and (separate := find_separate(path.parent)) is not None:
        raise CheckpointError(
            f"{separate}: separate source and target vocabularies are not supported; use a model with a shared one"
        )
    if vocabulary is None:
        raise CheckpointError(f"{path.parent}: has no shared_vocabulary.json or .txt; copy it from the original folder")
    settings = token_settings(header, given, file)
    tokens = read_vocabulary(vocabulary, settings["unk_token"])
    ids = token_ids(layout, settings, tokens, vocabulary)
    fields = layout.config | settings | epsilon(given, layout, file) | ids
    package = path.parent.parent
    if path.parent.name == MODEL_FOLDER and is_package(package):
        if fields["model_type"] == "t5":
            raise CheckpointError(f"{path}: a package with a T5 is not supported, because its unknown tokens are lost")
        fields |= package_fields(package, tokens)
    return fields


def speech_ids(layout: Layout, folder: Path) -> dict[str, int]:
    """Return the ids of Whisper's special tokens, from its vocabulary, or by OpenAI's layout if there is no file."""
    end, start = 50256 + (layout.config["vocab_size"] >= MULTILINGUAL_SIZE), None
    if (path := find_speech_vocabulary(folder)) is not None:
        tokens = read_vocabulary(path, END_OF_TEXT)
        if START_OF_TRANSCRIPT not in tokens:
            raise CheckpointError(f"{path}: has no {START_OF_TRANSCRIPT}; restore the file")
        end, start = tokens.index(END_OF_TEXT), tokens.index(START_OF_TRANSCRIPT)
    return {"eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": end + 1 if start is None else start}


def token_settings(header: Header, given: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the special tokens, and whether they are added to sources.

    given: the parsed config.json, whose fields are attributes of model.bin before version 6.
    """
    attributes = header.attributes
    settings: dict[str, Any] = {}
    for name, default in TOKENS.items():
        settings[name] = attributes.get(name, default) if header.version < 6 else given.get(name, default)
        if not isinstance(settings[name], str) or not settings[name]:
            raise CheckpointError(f"{file}: {name!r} must be a token, not {settings[name]!r}")
    for name, older in FLAGS.items():
        settings[name] = bool(attributes.get(older, 0) if header.version < 6 else given.get(name, False))
    start: Any = given.get("decoder_start_token", settings["bos_token"])
    if header.version < 6:
        start = settings["bos_token" if attributes.get("with_target_bos", 1) else "eos_token"]
        start = None if attributes.get("user_decoder_start_tokens", 0) else start
    if start is not None and not isinstance(start, str):
        raise CheckpointError(f"{file}: 'decoder_start_token' must be a token, not {short_repr(start)}")
    if start is None:
        raise CheckpointError(
            f"{file}: 'decoder_start_token' is missing: each output would have to begin with a language token that the "
            "caller chooses, which is not supported; use the original model"
        )
    return settings | {"decoder_start_token": start}


def epsilon(given: Mapping[str, Any], layout: Layout, file: Path) -> dict[str, Any]:
    """Return T5's `layer_norm_epsilon`. Raises `CheckpointError` if another layout has an unusual one."""
    found = given.get("layer_norm_epsilon")
    if layout.config["model_type"] == "t5":
        return {"layer_norm_epsilon": 1e-6 if found is None else found}
    if found is not None and found != 1e-5:
        raise CheckpointError(f"{file}: 'layer_norm_epsilon' of {found!r} is not supported (expected 1e-05)")
    return {}


def token_ids(layout: Layout, settings: Mapping[str, Any], tokens: Sequence[str], vocabulary: Path) -> dict[str, Any]:
    """Return the size of the vocabulary and the ids of special tokens."""
    size = next(tensor.shape[0] for name, tensor in layout.tensors.items() if name.endswith("embed_tokens.weight"))
    if len(tokens) > size - layout.padding:
        raise CheckpointError(f"{vocabulary}: has {len(tokens)} tokens, but the model has {size - layout.padding}")
    ids = {token: index for index, token in reversed([*enumerate(tokens)])}
    for name in ("eos_token", "decoder_start_token"):
        if settings[name] not in ids and not (layout.padding and name == "decoder_start_token"):
            raise CheckpointError(f"{vocabulary}: has no {settings[name]!r}, which is the model's {name!r}")
    fields = {"vocab_size": size, "eos_token_id": ids[settings["eos_token"]]}
    if layout.padding:  # as in Marian's Hugging Face folders: the last token has an embedding of zeros
        return fields | {
            "pad_token_id": size - 1,
            "decoder_start_token_id": size - 1,
            "bad_words_ids": [[size - 1]],
        }
    padding = next((ids[token] for token in PADDING if token in ids), 0)
    return fields | {"pad_token_id": padding, "decoder_start_token_id": ids[settings["decoder_start_token"]]}
