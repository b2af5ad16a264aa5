"""The bundled pair on real text. All 600 prompts: `python -m speculative_decoding.verify`."""

from __future__ import annotations

import pytest

from speculative_decoding import SamplingParams, generate
from speculative_decoding.generate import GenerationResult
from speculative_decoding.loading import load, manifest
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.tokenizer import Tokenizer
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.verify import PROMPTS, first_divergence

PAIR = ("t5-web-docs", "t5-web-docs-draft")
TEXTS = [line for path in sorted(PROMPTS.glob("*.txt")) for line in path.read_text(encoding="utf-8").split("\n")[:5]]


@pytest.fixture(scope="module")
def pair() -> tuple[EncoderDecoder, EncoderDecoder, Tokenizer]:
    (target, tokenizer), (draft, _) = (load(BUNDLED / name) for name in PAIR)
    return target, draft, tokenizer


@pytest.mark.parametrize("name", PAIR)
def test_the_bundled_folders_are_whole(name: str) -> None:
    assert manifest.verify(BUNDLED / name) == 7


def test_there_are_600_prompts() -> None:
    assert sum(len(path.read_text(encoding="utf-8").rstrip("\n").split("\n")) for path in PROMPTS.glob("*.txt")) == 600


@pytest.fixture(scope="module")
def regular_results(pair: tuple[EncoderDecoder, EncoderDecoder, Tokenizer]) -> list[GenerationResult]:
    return [generate(pair[0], pair[2], text, max_tokens=40) for text in TEXTS]


@pytest.mark.parametrize("num_draft", [1, 5])
def test_speculation_changes_nothing(
    pair: tuple[EncoderDecoder, EncoderDecoder, Tokenizer], regular_results: list[GenerationResult], num_draft: int
) -> None:
    target, draft, tokenizer = pair
    for text, regular in zip(TEXTS, regular_results, strict=True):
        speculative = generate(target, tokenizer, text, draft_model=draft, num_draft=num_draft, max_tokens=40)
        assert speculative.tokens == regular.tokens and speculative.text == regular.text
        assert speculative.stats.target_calls < regular.stats.target_calls


@pytest.mark.parametrize("acceptance", ["rejection", "coupled"])
def test_strict_changes_nothing_in_bfloat16(acceptance: str) -> None:
    (target, tokenizer), (draft, _) = (load(BUNDLED / name, dtype="bfloat16") for name in PAIR)
    for seed, text in enumerate(TEXTS[::5]):
        temperature = 1.0 if acceptance == "coupled" else 0.0
        options = {"sampling": SamplingParams(temperature, seed=seed), "acceptance": acceptance, "max_tokens": 25}
        regular = generate(target, tokenizer, text, strict=True, **options)
        speculative = generate(target, tokenizer, text, draft_model=draft, strict=True, **options)
        assert speculative.tokens == regular.tokens


def test_a_divergence_is_reported_with_its_gap(pair: tuple[EncoderDecoder, EncoderDecoder, Tokenizer]) -> None:
    target, _, tokenizer = pair
    prompt, tokens = TEXTS[0], generate(target, tokenizer, TEXTS[0]).tokens
    assert first_divergence(target, tokenizer, prompt, tokens, tokens, {}) is None
    other = [*tokens[:3], tokens[3] + 1, *tokens[4:]]
    difference = first_divergence(target, tokenizer, prompt, tokens, other, {})
    assert difference is not None and difference.position == 3 and (difference.logit_gap or 0) > 0
    for words in ("at token 3", f"{tokens[3]} ", f"{other[3]} ", "logit gap"):
        assert words in difference.text(tokenizer)
    cut = first_divergence(target, tokenizer, prompt, tokens, tokens[:-1], {})
    assert cut is not None and (cut.position, cut.regular, cut.speculative) == (len(tokens) - 1, tokens[-1], None)
    assert "the end with it" in cut.text(tokenizer)
