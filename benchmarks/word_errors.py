"""Counts the word errors in a transcript that openai-whisper's English normalizer has normalized."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from speculative_decoding.errors import InputError
from speculative_decoding.speech.live.agreement import edit_distances


def word_errors(found: Sequence[str], expected: Sequence[str]) -> int:
    """Return the smallest number of word insertions, deletions and substitutions that turn one text into the other."""
    return edit_distances(found, expected)[-1]


def normalizer(file: Path | None) -> Any:
    """Return openai-whisper's English normalizer. file: its spelling table. Raises `InputError`."""
    if file is None:
        way_out = "give whisper/normalizers/english.json of openai-whisper, or normalizer.json of a Whisper's folder"
        raise InputError("--normalizer: is missing", way_out=way_out)
    try:
        spellings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--normalizer {file}: cannot be read ({error}); name another file") from error
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    return EnglishTextNormalizer(spellings)  # type: ignore[no-untyped-call]
