"""The language tokens of NLLB-200, M2M-100 and mBART: around a source, and in front of its translation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ..checkpoints.files import read_json_object
from ..errors import CheckpointError, InputError
from ..sampling.options import short

# The code within a special token, and the code of English, which transformers takes where nothing says a language:
# eng_Latn (NLLB-200), en_XX (mBART), __en__ (M2M-100).
FORMS = ((r"([a-z]{3}_[A-Z][a-z]{3})", "eng_Latn"), (r"([a-z]{2}_[A-Z]{2})", "en_XX"), (r"__([a-z]{2,3})__", "en"))
ONLY_IN_MBART50 = "af_ZA"
END = "</s>"


class Languages:
    """Which tokens stand around a source in a language. Knows ids, no text.

    NLLB-200, M2M-100 and mBART-50: the language in front, the end behind. mBART, and NLLB-200 with `legacy_behaviour`:
    the end behind, then the language.
    """

    def __init__(self, special: Mapping[str, int], folder: Path) -> None:
        """special: the tokenizer's special tokens. Raises `CheckpointError` for a `src_lang` that is none of them."""
        self.ids: Mapping[str, int] = MappingProxyType({})
        self._end = list[int]()
        for form, english in FORMS:
            found = {match[1]: index for piece, index in special.items() if (match := re.fullmatch(form, piece))}
            if END in special and len(found) > len(self.ids):
                self.ids, self._default = MappingProxyType(found), english
        if not self.ids:
            return
        path = folder / "tokenizer_config.json"
        config = read_json_object(path) if path.exists() else {}
        self._end = [special[END]]
        is_mbart = self._default == "en_XX" and ONLY_IN_MBART50 not in self.ids
        self._is_last = is_mbart or config.get("legacy_behaviour") is True
        self._default = config.get("src_lang") or self._default
        if not isinstance(self._default, str) or self._default not in self.ids:
            raise CheckpointError(f"{path}: src_lang {short(self._default)} is none of this tokenizer's languages")

    def around_source(self, ids: list[int], language: str | None) -> list[int]:
        """The ids of a text -> of a source in this language; None: in tokenizer_config.json's `src_lang`, or English.

        Raises `InputError` for a language that the model does not have.
        """
        if not self.ids and language is None:
            return ids
        code = self._default if language is None else language
        if code not in self.ids:
            known = ", ".join(self.ids) or "it has no tokens for languages"
            raise InputError(f"language {code!r} is none of this model's: {known}")
        first = [self.ids[code]]
        return [*ids, *self._end, *first] if self._is_last else [*first, *ids, *self._end]

    def around_output(self, ids: list[int]) -> list[int]:
        """The ids of a text -> of an output, without the language's token, which is forced in front of it."""
        return [*ids, *self._end]
