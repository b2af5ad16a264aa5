"""Folders of tokenizers, with the outputs that tools/goldens recorded from Hugging Face."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from speculative_decoding.loading.tokenizer import Tokenizer, load_tokenizer
from tests.support.paths import GOLDENS

# One of each family, and layouts whose files are easily misread
FOLDERS = {path.name: path for kind in ("tokenizers", "hard_tokenizers") for path in sorted((GOLDENS / kind).iterdir())}
loaded = cache(load_tokenizer)


def require_equal(tokenizer: Tokenizer, folder: Path) -> None:
    """Compare with golden.json: ids of sources and outputs, texts, and languages."""
    golden = json.loads((folder / "golden.json").read_text(encoding="utf-8"))
    for each in golden["texts"]:
        text, ids, output_ids, text_of_ids = [each[key] for key in KEYS] if isinstance(each, dict) else each
        language = each["language"] if isinstance(each, dict) else None
        assert tokenizer.encode(text, language) == ids
        assert output_ids is None or tokenizer.encode_output(text) == output_ids
        assert tokenizer.decode(ids) == text_of_ids
    for ids, text in golden.get("decoded", ()):
        assert tokenizer.decode(ids) == text
    if "languages" in golden:
        assert tokenizer.languages == golden["languages"]
        assert {*tokenizer.languages.values()} <= tokenizer.vocabulary.pieces.keys()
    if golden.get("language") is not None:
        language, ids = golden["language"]
        assert tokenizer.encode(golden["texts"][3][0], language) == ids


KEYS = ("text", "ids", "output_ids", "text_of_ids")
