"""The bundled pair on some prompts. `python -m speculative_decoding.verify` runs all 600."""

from __future__ import annotations

import pytest

from speculative_decoding import Session, generate
from speculative_decoding.loading import manifest
from speculative_decoding.loading.load import BUNDLED

PROMPTS = BUNDLED.parent / "data"
PAIR = ("t5-web-docs", "t5-web-docs-draft")
TEXTS = [line for path in sorted(PROMPTS.glob("*.txt")) for line in path.read_text(encoding="utf-8").split("\n")[:2]]


@pytest.mark.parametrize(("name", "files"), [*((name, 7) for name in PAIR), ("t5-web-docs-head", 2)])
def test_the_bundled_folders_are_complete(name: str, files: int) -> None:
    assert manifest.verify(BUNDLED / name) == files


def test_there_are_600_prompts() -> None:
    assert sum(len(path.read_text(encoding="utf-8").rstrip("\n").split("\n")) for path in PROMPTS.glob("*.txt")) == 600


def test_speculative_output_equals_the_baseline(pair: Session) -> None:
    for text in TEXTS:
        baseline = generate(pair.model, pair.tokenizer, text, drafter="none", max_tokens=40)
        speculative = pair.generate(text, num_draft_tokens=5, max_tokens=40)
        assert speculative.tokens == baseline.tokens and speculative.text == baseline.text
        assert speculative.stats.target_calls < baseline.stats.target_calls
