"""Splits a text into the words by which sources are compared."""

from __future__ import annotations

import re

# Scripts without spaces between words, where each character counts as a word: Thai, Lao, Myanmar, Khmer, kana,
# Chinese characters
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+|[^\w\s]")


def words_of(text: str) -> list[str]:
    """Return the words and punctuation marks of a text, without case. White space only separates words."""
    return WORD.findall(text.casefold())
