"""Language tokens of NLLB-200, M2M-100 and mBART: added to a source, and forced before its translation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ..checkpoints.files import read_json_object
from ..errors import CheckpointError, InputError
from ..sampling.options import short_repr

END = "</s>"


class Languages:
    """Adds language tokens to token ids; does not know the text.

    NLLB-200, M2M-100 and mBART-50 write LANGUAGE ids END. mBART, and NLLB-200 with `legacy_behaviour`, write
    ids END LANGUAGE.
    """

    def __init__(self, special: Mapping[str, int], folder: Path) -> None:
        """special: the tokenizer's special tokens. Raises `CheckpointError` for an unknown `src_lang`."""
        self.ids: Mapping[str, int] = MappingProxyType({})
        self._end = list[int]()
        # Like transformers, use English if tokenizer_config.json has no src_lang.
        for pattern, english in (
            (r"([a-z]{3}_[A-Z][a-z]{3})", "eng_Latn"),  # NLLB-200
            (r"([a-z]{2}_[A-Z]{2})", "en_XX"),  # mBART
            (r"__([a-z]{2,3})__", "en"),  # M2M-100
        ):
            found = {match[1]: index for piece, index in special.items() if (match := re.fullmatch(pattern, piece))}
            if END in special and len(found) > len(self.ids):
                self.ids = MappingProxyType(found)
                self._default = english
        if not self.ids:
            return

        path = folder / "tokenizer_config.json"
        config = read_json_object(path) if path.exists() else {}
        self._end = [special[END]]
        is_mbart = self._default == "en_XX" and "af_ZA" not in self.ids  # mBART-50 added Afrikaans
        self._is_last = is_mbart or config.get("legacy_behaviour") is True
        self._default = config.get("src_lang") or self._default
        if not isinstance(self._default, str) or self._default not in self.ids:
            raise CheckpointError(
                f"{path}: unknown src_lang {short_repr(self._default)}; choose one of {', '.join(self.ids)}"
            )

    def wrap_source(self, ids: list[int], language: str | None) -> list[int]:
        """Return the encoder's input for the ids of a text.

        language: None means `src_lang` of tokenizer_config.json, or English.

        Raises `InputError` for a language that the model does not have.
        """
        if not self.ids and language is None:
            return ids
        if not self.ids:
            raise InputError(f"language {language!r}: this model has no language tokens; leave the language out")
        code = self._default if language is None else language
        if code not in self.ids:
            raise InputError(f"language {code!r}: unknown to this model; choose one of {', '.join(self.ids)}")
        token = [self.ids[code]]
        return [*ids, *self._end, *token] if self._is_last else [*token, *ids, *self._end]

    def wrap_output(self, ids: list[int]) -> list[int]:
        """Return the decoder's output for the ids of a text, without the language token, which is forced separately."""
        return [*ids, *self._end]
