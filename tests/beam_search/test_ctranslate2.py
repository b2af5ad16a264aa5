"""Beams of models in CTranslate2 folders, compared with CTranslate2 and with the models that were converted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import checkpoints, generate
from tests.parity.test_ctranslate2 import CORRECTIONS, FAMILIES, opened, original, without_end
from tests.parity.test_scoring import Numbers, text_of
from tests.support.ctranslate2_cases import CASES, write

OPTIONS: dict[str, Any] = {"num_beams": 4, "drafter": "none"}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", [name for name in CASES if "beams" in CASES[name]])
def test_best_of_four_beams_equals_ctranslate2(name: str, tmp_path: Path) -> None:
    """CTranslate2 stops when there are as many finished outputs as beams, which is `early_stopping`."""
    case = CASES[name]
    model = opened(write(name, tmp_path))
    end = [model.config.eos_token_ids[0]] if checkpoints.read_config(tmp_path)["add_source_eos"] else []
    prefix = case["prefix"]
    for source, expected in zip(case["sources"], case["beams"], strict=True):
        result = generate(
            model, Numbers(), text_of(source + end), decoder_prefix=text_of(prefix), max_tokens=16 - len(prefix),
            length_penalty=1.0, early_stopping=True, **OPTIONS,
        )  # fmt: skip
        assert without_end(model, result.tokens) == expected[len(prefix) :]
    assert any(beams != greedy for beams, greedy in zip(case["beams"], case["outputs"], strict=True))


@pytest.mark.parametrize("name", [name for name in FAMILIES if "prefix" in CASES[name]])
def test_beams_equal_those_of_the_converted_model(name: str, tmp_path: Path) -> None:
    found, expected = opened(write(name, tmp_path, CORRECTIONS.get(name))), original(name)
    expected.generation_config = found.generation_config
    prefix = text_of(CASES[name]["prefix"])
    for source in CASES[name]["sources"][1:4]:
        results = [
            generate(model, Numbers(), text_of(source), decoder_prefix=prefix, max_tokens=12, **OPTIONS)
            for model in (found, expected)
        ]
        assert results[0].tokens == results[1].tokens and results[0].score == pytest.approx(results[1].score, abs=1e-4)
