"""The bundled pair on some prompts. `python -m speculative_decoding.verify` runs all 600."""

from __future__ import annotations

from typing import Any

import pytest

from speculative_decoding import GenerationResult, Session, generate, load
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


@pytest.fixture(scope="module")
def baseline_results(pair: Session) -> list[GenerationResult]:
    return [generate(pair.model, pair.tokenizer, text, drafter="none", max_tokens=40) for text in TEXTS]


@pytest.mark.parametrize("num_draft_tokens", [1, 5])
def test_speculative_output_equals_the_baseline(
    pair: Session, baseline_results: list[GenerationResult], num_draft_tokens: int
) -> None:
    for text, baseline in zip(TEXTS, baseline_results, strict=True):
        speculative = pair.generate(text, num_draft_tokens=num_draft_tokens, max_tokens=40)
        assert speculative.tokens == baseline.tokens and speculative.text == baseline.text
        assert speculative.stats.target_calls < baseline.stats.target_calls


def test_strict_output_equals_the_baseline_in_bfloat16() -> None:
    target, draft = (BUNDLED / name for name in PAIR)
    session = load(target, draft=draft, dtype="bfloat16")
    for seed, text in enumerate(TEXTS[:: len(TEXTS) // 2 + 1]):  # test_generate.py compares bits
        options: dict[str, Any] = {"temperature": float(seed), "seed": seed, "strict": True, "max_tokens": 5}
        baseline = session.generate(text, drafter="none", **options)
        assert session.generate(text, **options).tokens == baseline.tokens
