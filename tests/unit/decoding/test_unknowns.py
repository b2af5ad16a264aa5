"""Unknown tokens of outputs are shown as the source tokens by which CTranslate2's `replace_unknowns` replaces them.

The pieces of a source are its ids, and a text shows the ids of an output (tests/parity/test_scoring.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import batch_generate, generate
from speculative_decoding.loading.unknown_tokens import UnknownToken
from speculative_decoding.models.bart import BART
from speculative_decoding.models.base import EncoderDecoder
from tests.parity.test_ctranslate2 import opened
from tests.parity.test_scoring import Numbers, text_of
from tests.support.ctranslate2_cases import CASES, write
from tests.support.subpackages import needs_subpackage
from tests.support.tiny import noisy_copy

REPLACED = [name for name, case in CASES.items() if "replaced" in case]
UNKNOWN = 0
OPTIONS: dict[str, Any] = {"max_tokens": 16}


class Pieces(Numbers):
    """A `ReplacingTokenizer`. The end token has no text."""

    unknown_id = UNKNOWN

    def __init__(self, end: int) -> None:
        self.end = end

    def source_pieces(self, text: str) -> dict[int, str]:
        return dict(enumerate(text.split()))

    def decode(self, tokens: Sequence[int]) -> str:
        shown = (token.piece if isinstance(token, UnknownToken) else str(token) for token in tokens)
        return "".join(f"{piece} " for piece in shown if piece != str(self.end))


def replacing(name: str, folder: Path) -> EncoderDecoder:
    model = opened(write(name, folder))
    assert isinstance(model, BART) and not model.replaces_unknowns
    model.replaces_unknowns = True
    return model


def ids_of(text: str) -> list[int]:
    return [int(piece) for piece in text.split()]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", REPLACED)
def test_the_text_of_unknown_tokens_equals_ctranslate2(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = replacing(name, tmp_path)
    tokenizer = Pieces(model.config.eos_token_ids[0])
    for source, output, expected in zip(case["sources"], case["outputs"], case["replaced"], strict=True):
        result = generate(model, tokenizer, text_of(source), drafter="none", **OPTIONS)
        assert ids_of(result.text) == expected
        assert [token for token in result.tokens if token != tokenizer.end] == output


@pytest.mark.usefixtures("device")
def test_drafts_and_batches_do_not_change_the_text(tmp_path: Path) -> None:
    case = CASES["no scale"]
    model = replacing("no scale", tmp_path)
    tokenizer = Pieces(model.config.eos_token_ids[0])
    prompts = [text_of(source) for source in case["sources"]]
    drafts: dict[str, Any] = {"drafter": "model", "draft_model": noisy_copy(model, 0.03), "num_draft_tokens": 3}
    found = batch_generate(model, tokenizer, prompts, slots=2, **drafts, **OPTIONS)
    texts = {each.index: ids_of(each.result.text) for each in found if each.result is not None}
    assert texts == dict(enumerate(case["replaced"]))


@needs_subpackage("beam_search")
@pytest.mark.parametrize("name", [name for name in REPLACED if name != "multi-query"])
def test_the_text_of_the_best_of_four_beams_equals_ctranslate2(name: str, tmp_path: Path) -> None:
    """CTranslate2 stops when there are as many finished outputs as beams, which is `early_stopping`.

    For multi-query attention, its beams replace a first token by another one than its greedy decoding.
    """
    case = CASES[name]
    model = replacing(name, tmp_path)
    tokenizer = Pieces(model.config.eos_token_ids[0])
    beams: dict[str, Any] = {"num_beams": 4, "length_penalty": 1.0, "early_stopping": True, "drafter": "none"}
    for source, expected in zip(case["sources"], case["replaced_beams"], strict=True):
        assert ids_of(generate(model, tokenizer, text_of(source), **beams, **OPTIONS).text) == expected


def test_nothing_is_replaced_unless_the_model_asks_for_it(tmp_path: Path) -> None:
    case = CASES["no scale"]
    model = opened(write("no scale", tmp_path))
    tokenizer = Pieces(model.config.eos_token_ids[0])
    for source, output in zip(case["sources"], case["outputs"], strict=True):
        assert ids_of(generate(model, tokenizer, text_of(source), drafter="none", **OPTIONS).text) == output


def test_ids_without_a_text_are_not_replaced(tmp_path: Path) -> None:
    case = CASES["no scale"]
    model = replacing("no scale", tmp_path)
    result = generate(model, Pieces(model.config.eos_token_ids[0]), case["sources"][3], drafter="none", **OPTIONS)
    assert ids_of(result.text) == case["outputs"][3]


def test_attention_is_averaged_over_the_heads_that_config_json_names(tmp_path: Path) -> None:
    """The recorded replacements differ if another layer or other heads are used."""
    case = CASES["alignment"]
    model = replacing("alignment", tmp_path)
    assert (model.config.alignment_layer, model.config.alignment_heads) == (0, 3)
    tokenizer = Pieces(model.config.eos_token_ids[0])
    for fields in ({"alignment_layer": 1}, {"alignment_heads": 1}, {"alignment_heads": 0}):
        other = replacing("alignment", tmp_path)
        other.config = replace(other.config, **fields)
        texts = [generate(other, tokenizer, text_of(each), drafter="none", **OPTIONS).text for each in case["sources"]]
        assert [*map(ids_of, texts)] != case["replaced"], fields
