"""Tests language detection."""

from __future__ import annotations

from typing import Any

import pytest

from speculative_decoding.loading.language_codes import NLLB
from speculative_decoding.server import detection
from speculative_decoding.server.detection import Detector
from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.languages import client_codes

ALL = [*client_codes(NLLB).values()]


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector()


SENTENCES = {
    "en": "The house is small.",
    "de": "Das Haus ist klein.",
    "fr": "La maison est petite.",
    "es": "La casa es pequeña.",
    "pl": "Dom jest mały.",
    "uk": "Будинок маленький.",
    "he": "הבית קטן.",
    "ar": "البيت صغير.",
    "hi": "घर छोटा है।",
    "zh": "房子很小。",
    "ja": "家は小さいです。",
    "ko": "집이 작아요.",
}


@pytest.mark.parametrize("code", SENTENCES)
def test_a_sentence_is_in_its_language(detector: Detector, code: str) -> None:
    first, *others = detector.detect(SENTENCES[code], ALL)
    assert first["language"] == code and 50 < first["confidence"] <= 100
    assert all(1 <= each["confidence"] <= first["confidence"] for each in others)


def test_only_the_models_languages_are_found_and_others_have_a_low_confidence(detector: Detector) -> None:
    (found,) = detector.detect(SENTENCES["de"], ["en", "zh-Hant"])
    assert found["language"] in ("en", "zh-Hant") and found["confidence"] < 2
    assert detector.detect(SENTENCES["zh"], ["en", "zh-Hant"])[0]["language"] == "zh-Hant"
    assert detector.detect(SENTENCES["de"], ["eng_Latn", "deu_Latn"])[0]["language"] == "deu_Latn"


CHINESE = {
    "安全地注册和管理域名享受透明价格。": "zh",
    "房子很小。": "zh",  # the same in both scripts
    "国": "zh",
    "他說這本書很有意思。": "zh-Hant",
    "安全地註冊和管理網域名稱享受透明價格。": "zh-Hant",
    "O preço é transparente e o registro do domínio é seguro.": "pt",
}


@pytest.mark.parametrize(("text", "code"), CHINESE.items())
def test_a_text_is_detected_alike_for_all_targets(detector: Detector, text: str, code: str) -> None:
    """The result equals that of /detect, whatever the order of the codes. The target's code is the last one."""
    codes = ["en", "pt", "zh", "zh-Hant"]
    for target in codes:
        others = [each for each in codes if each != target]
        assert detector.detect(text, [*others, target])[0]["language"] == code
    assert detector.detect(text, codes)[0]["language"] == code
    assert detector.detect(text, ["zho_Hans", "por_Latn"])[0]["language"] == {"pt": "por_Latn"}.get(code, "zho_Hans")


@pytest.mark.parametrize("text", ["", "12", "ok"])
def test_a_text_without_evidence_is_english_if_possible_without_confidence(detector: Detector, text: str) -> None:
    assert detector.detect(text, ALL) == [{"language": "en", "confidence": 0.0}]
    assert detector.detect(text, ["de", "fr"]) == [{"language": "de", "confidence": 0.0}]


def test_only_the_beginning_of_a_text_is_read(detector: Detector) -> None:
    beginning = SENTENCES["de"] * 200
    assert detector.detect(beginning + SENTENCES["zh"] * 10**5, ALL) == detector.detect(beginning, ALL)


def test_without_the_detector_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    Detector().require_installed("source")
    missing: Any = type("util", (), {"find_spec": staticmethod(lambda name: None)})
    monkeypatch.setattr(detection, "util", missing)
    with pytest.raises(
        ServerError, match="^source: languages cannot be detected without py3langid; pip install"
    ) as error:
        Detector().require_installed("source")
    assert error.value.status == 501
