"""Batches and languages of every family, compared with Hugging Face's outputs."""

from __future__ import annotations

from typing import Any

import pytest

from speculative_decoding import batch_generate, generate
from speculative_decoding.drafters import NgramDrafter
from speculative_decoding.models.bart import FAMILIES as BART_LIKE
from speculative_decoding.models.bart import OPENNMT
from speculative_decoding.models.source import AudioFrames
from tests.parity.test_gemma import NAMES as GEMMA_LIKE
from tests.parity.test_scoring import Numbers, text_of
from tests.parity.test_t5 import GOLDENS, load_golden, sources_of
from tests.support.operations import uncompiled
from tests.support.tiny import noisy_copy, revised, run, tokens_of

WHISPERS = ("whisper", "whisper-en", "whisper-v3", "whisper-distilled")
FOLDERS = {folder.name: folder for folder in GOLDENS}


OTHERS = {*BART_LIKE, *GEMMA_LIKE, *WHISPERS} - {OPENNMT}  # which test_ctranslate2.py compares with CTranslate2


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", sorted({*FOLDERS} - OTHERS))
def test_greedy_ids_of_t5_match_hugging_face(name: str) -> None:
    model, golden = load_golden(FOLDERS[name])
    for source, expected, length in zip(
        sources_of(golden), golden["greedy_ids"], golden["greedy_lengths"], strict=True
    ):
        assert tokens_of(run(model, source, max_tokens=int(length))) == expected[:length].tolist()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", sorted(OTHERS))
def test_batch_rows_match_hugging_face_with_drafts(name: str) -> None:
    """Sources of different lengths share two slots. Coupled samples equal those of single requests."""
    model, golden = load_golden(FOLDERS[name])
    sources = sources_of(golden)
    prompts = [source if isinstance(source, AudioFrames) else text_of(source) for source in sources]
    lengths = [min(length, 16) for length in golden["greedy_lengths"].tolist()]
    greedy = [ids[:length].tolist() for ids, length in zip(golden["greedy_ids"], lengths, strict=True)]
    with_texts: list[Any] = [
        {"prompt": prompt, "draft_text": ["", text_of(revised(ids))]}
        for prompt, ids in zip(prompts, greedy, strict=True)
    ]
    noisy: dict[str, Any] = {"temperature": 1.0, "seed": 3, "acceptance": "coupled", "max_tokens": 8}
    complete: dict[str, Any] = {"max_tokens": max(lengths)}
    shared: dict[str, Any] = {"allow_long_prompt": True}
    draft = {"num_draft_tokens": 4, "draft_model": noisy_copy(model, 0.03)}
    copies = {"ngram": NgramDrafter(min_chance=0.0)}
    with uncompiled():
        sampled = [generate(model, Numbers(), prompt, drafter="none", **noisy, **shared).tokens for prompt in prompts]
        for given, drafts, expected, options in (
            (prompts, {"drafter": "model"} | draft, greedy, complete),
            (with_texts, {"drafter": "text", "num_draft_tokens": 4}, greedy, complete),
            (with_texts, {"drafter": "auto"} | draft | copies, sampled, noisy),
        ):
            found = batch_generate(model, Numbers(), given, slots=2, **drafts, **shared, **options)
            assert {each.index: each.result and each.result.tokens for each in found} == dict(enumerate(expected))
