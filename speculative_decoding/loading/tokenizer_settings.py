"""Reads a tokenizer's settings from the JSON files in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..checkpoints.files import read_json_object
from ..errors import CheckpointError
from ..sampling.options import short_repr
from .languages import END, PLAIN, UNDERSCORES, Languages, codes_in

# Tokenizer class -> pattern of its language tokens, and default language.
CLASSES = {
    "NllbTokenizer": (PLAIN, "eng_Latn"),
    "MBartTokenizer": (PLAIN, "en_XX"),
    "MBart50Tokenizer": (PLAIN, "en_XX"),
    "M2M100Tokenizer": (UNDERSCORES, "en"),
}
GENERAL_CLASSES = (None, "PreTrainedTokenizer", "TokenizersBackend")  # classes that any family may use
OPENNMT = "opennmt"  # `model_type` of models converted from CTranslate2's format, which may be of any family
MULTILINGUAL = (None, "mbart", "m2m_100", "nllb-moe")  # results of `model_type_of`


def settings_of(path: Path) -> dict[str, Any]:
    """Read a JSON file. Returns an empty dict if there is none."""
    return read_json_object(path) if path.is_file() else {}


def tokenizer_class(folder: Path) -> str | None:
    """Return the tokenizer class that a folder names, without "Fast"."""
    for file in ("tokenizer_config.json", "config.json"):
        name = settings_of(folder / file).get("tokenizer_class")
        if isinstance(name, str):
            return name.removesuffix("Fast")
    return None


def model_type_of(folder: Path) -> str | None:
    """Return the `model_type` that determines the tokenizer, or None if config.json names none."""
    model_type = settings_of(folder / "config.json").get("model_type")
    return model_type if isinstance(model_type, str) and model_type != OPENNMT else None


def family_config(folder: Path) -> dict[str, str]:
    """Return the config.json fields from which transformers determines the tokenizer class."""
    fields = {"model_type": model_type_of(folder), "tokenizer_class": tokenizer_class(folder)}
    return {key: value for key, value in fields.items() if value is not None}


def languages_of(added: Mapping[int, Any], folder: Path) -> Languages | None:
    """Return a tokenizer's language tokens, or None for most tokenizers, which have none.

    Args:
        added: The added tokens, keyed by id. `str(token)` is a token's content.
        folder: The tokenizer's folder. The tokenizer class or `model_type` named in its files determines whether the
            tokenizer has language tokens.

    Raises `CheckpointError` for an unknown `src_lang`.
    """
    tokens = {str(token): index for index, token in added.items()}
    name, model_type = tokenizer_class(folder), model_type_of(folder)
    settings = settings_of(path := folder / "tokenizer_config.json")
    if name in CLASSES:
        forms = [CLASSES[name]]
    elif name in GENERAL_CLASSES and model_type in MULTILINGUAL:
        forms = list(dict.fromkeys(CLASSES.values()))
    else:
        forms = []
    choices = [(codes_in(tokens, form), form, default) for form, default in forms]
    ids, form, default = max(choices, key=lambda each: (len(each[0]), each[2] in each[0]), default=({}, "", ""))
    if not ids or END not in tokens:
        if "tokenizer_class" in settings and name in CLASSES:
            raise CheckpointError(f"{folder}: names the class {name}, but its tokenizer has no language tokens")
        return None

    # mBART-50 supports Afrikaans; mBART does not.
    is_mbart = name == "MBartTokenizer" or (name not in CLASSES and default == "en_XX" and "af_ZA" not in ids)
    default = settings.get("src_lang") or default  # English if src_lang is missing, as in transformers
    if not isinstance(default, str) or default not in ids:
        raise CheckpointError(f"{path}: unknown src_lang {short_repr(default)}; choose one of {', '.join(ids)}")
    is_last = is_mbart or settings.get("legacy_behaviour") is True
    return Languages(MappingProxyType(ids), form, default, is_last, tokens[END])
