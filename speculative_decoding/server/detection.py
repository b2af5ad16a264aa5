"""Detects the languages of clients' texts with py3langid. This module is independent of the served model."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection
from importlib import util
from typing import TYPE_CHECKING, Any

from ..loading.language_map import language_of, matching_language
from .errors import ServerError

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

CHARACTERS = 2000  # number of a text's characters that are read; each takes about 0.1 us
MIN_CONFIDENCE = 1.0  # in percent, for all but the first language in a response
NO_EVIDENCE = 0.05  # for a text such as "ok" or "12", the probability of every language is below this
NEUTRAL = "en"  # the detected language of such a text, if it is among the candidates

Detection = dict[str, Any]  # LibreTranslate's format: `language`, and `confidence` in percent


class Detector:
    """Detects languages. The first use takes half a second and 75 MB of memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._identifier: LanguageIdentifier | None = None
        self._codes: dict[str, str] = {}  # label of py3langid -> language code

    @property
    def is_installed(self) -> bool:
        return util.find_spec("py3langid") is not None

    def require_installed(self, field: str) -> None:
        """Raise a `ServerError` for a field if py3langid is not installed."""
        if not self.is_installed:
            way_out = "pip install py3langid on the server, or name the language"
            problem = f"languages cannot be detected without py3langid; {way_out}"
            raise ServerError.of_field(field, problem, status=501)

    def detect(self, text: str, codes: Collection[str]) -> list[Detection]:
        """Return the most likely languages of a text, the likeliest first. Thread-safe.

        The confidence is a language's probability among all languages of py3langid, not only among the candidates. It
        is therefore low if the text is in none of the candidate languages.

        codes: The codes of the candidate languages.
        """
        text = text[:CHARACTERS]
        written: dict[str, list[str]] = {}  # code without a script -> candidate codes
        for code in codes:
            written.setdefault(language_of(code).code, []).append(code)
        own = {code: min(each, key=len) for code, each in written.items()}  # for example, ace rather than ace-Latn
        if len(chinese := written.get("zh", [])) > 1:  # py3langid does not distinguish between scripts
            own["zh"] = matching_language(chinese_code(text), chinese) or own["zh"]
        probabilities = dict.fromkeys(own, 0.0)
        labels = self._loaded().rank(text)
        for label, probability in labels if labels[0][1] > NO_EVIDENCE else ():
            if (code := self._codes[label]) in own:
                probabilities[code] += 100 * probability
        ranked = sorted(own, key=lambda code: (-probabilities[code], code != NEUTRAL))
        likely = [code for code in ranked if code == ranked[0] or probabilities[code] >= MIN_CONFIDENCE]
        return [{"confidence": round(probabilities[code], 1), "language": own[code]} for code in likely]

    def _loaded(self) -> LanguageIdentifier:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        with self._lock:
            if self._identifier is None:
                self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
                self._codes = {label: language_of(label).code for label in self._identifier.labels}
            return self._identifier


def chinese_code(text: str) -> str:
    """Return zh-Hans or zh-Hant, based on the numbers of characters that only GB 2312 or only Big5 contains."""
    found: Counter[tuple[bool, bool]] = Counter(
        (is_in("gb2312", each), is_in("big5", each)) for each in text if "\u4e00" <= each <= "\u9fff"
    )
    return "zh-Hant" if found[False, True] > found[True, False] else "zh-Hans"


def is_in(charset: str, character: str) -> bool:
    try:
        character.encode(charset)
    except UnicodeEncodeError:
        return False
    return True
