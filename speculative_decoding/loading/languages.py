"""The language tokens of NLLB-200, M2M-100 and mBART. They mark the source and output languages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import CheckpointError, InputError

END = "</s>"
PLAIN = r"([a-z]{2,3}_[A-Z][A-Za-z]{1,3})"  # eng_Latn, en_XX, and codes that users added, such as myv_XX
UNDERSCORES = r"__([a-z]{2,3}(?:_[A-Za-z]{2,4})?)__"  # the form in M2M-100, such as __en__


@dataclass(frozen=True)
class Languages:
    """Adds the language tokens of a multilingual model to a text's token ids.

    The order is LANGUAGE ids END for NLLB-200, M2M-100 and mBART-50, and ids END LANGUAGE for mBART and for NLLB-200
    with `legacy_behaviour`.

    ids: Language code -> token.
    form: A regular expression that matches language tokens and captures the code.
    default: The source language if the caller does not specify one.
    is_last: Whether the language token follows the text.
    end: The end token.
    """

    ids: Mapping[str, int]
    form: str
    default: str
    is_last: bool
    end: int

    def record(self) -> dict[str, Any]:
        """Return the manifest entry from which `from_record` restores these languages."""
        return {"form": self.form, "default": self.default, "is_last": self.is_last}

    @classmethod
    def from_record(cls, record: object, added: Mapping[int, Any], folder: Path) -> Languages:
        """Restore the languages that `languages_of` found. Raises `CheckpointError` for a damaged record."""
        tokens = {str(token): index for index, token in added.items()}
        match record:
            case {"form": str(form), "default": str(default), "is_last": bool(is_last)} if form in (PLAIN, UNDERSCORES):
                ids = codes_in(tokens, form)
                if default in ids and END in tokens:
                    return cls(MappingProxyType(ids), form, default, is_last, tokens[END])
        raise CheckpointError(f"{folder}: the languages in its manifest do not fit its tokenizer; convert it again")

    def wrap_source(self, ids: list[int], language: str | None) -> list[int]:
        """Return the encoder's input ids for a text's token ids.

        language: None means `src_lang` of tokenizer_config.json, or English.

        Raises `InputError` for a language that the model does not support.
        """
        code = self.default if language is None else language
        if code not in self.ids:
            raise InputError(f"language {code!r}: unknown to this model; choose one of {', '.join(self.ids)}")
        token = [self.ids[code]]
        return [*ids, self.end, *token] if self.is_last else [*token, *ids, self.end]

    def wrap_output(self, ids: list[int]) -> list[int]:
        """Return the decoder's output ids for a text's token ids. The language token is forced separately."""
        return [*ids, self.end]


def codes_in(tokens: Mapping[str, int], form: str) -> dict[str, int]:
    matches = ((re.fullmatch(form, piece), index) for piece, index in tokens.items())
    return {match[1]: index for match, index in matches if match}
