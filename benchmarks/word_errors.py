"""Counts the errors of a transcript, after openai-whisper's normalizer of English."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from speculative_decoding.errors import InputError


def word_errors(found: Sequence[str], expected: Sequence[str]) -> int:
    """Return the smallest number of insertions, deletions and substitutions of words."""
    errors = [*range(len(expected) + 1)]
    for word in found:
        diagonal, errors[0] = errors[0], errors[0] + 1
        for i, other in enumerate(expected, 1):
            substituted = diagonal + (word != other)
            diagonal = errors[i]
            errors[i] = min(substituted, diagonal + 1, errors[i - 1] + 1)
    return errors[-1]


def normalizer(file: Path | None) -> Any:
    """Return openai-whisper's normalizer of English. file: its table of spellings. Raises `InputError`."""
    if file is None:
        way_out = "give whisper/normalizers/english.json of openai-whisper, or normalizer.json of a Whisper's folder"
        raise InputError("--normalizer: is missing", way_out=way_out)
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    try:
        return EnglishTextNormalizer(json.loads(file.read_text(encoding="utf-8")))  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise InputError(f"--normalizer {file}: cannot be read ({error}); name another file") from error
