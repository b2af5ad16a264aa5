"""Codes of one language in different tokenizers are found."""

from __future__ import annotations

import pytest

from speculative_decoding.loading.language_codes import M2M100, MBART50, NLLB
from speculative_decoding.loading.language_map import (
    SHORT,
    effective_languages,
    language_of,
    language_tag,
    language_tags,
    languages_named,
    matching_language,
    tag_language,
)
from speculative_decoding.loading.tokenizer import Vocabulary

WHISPER = ("en", "de", "no", "nn", "jw", "yue", "zh", "tl", "he")


@pytest.mark.parametrize(
    ("code", "codes", "found"),
    [
        ("eng_Latn", MBART50, "en_XX"),
        ("deu_Latn", M2M100, "de"),
        ("de_DE", NLLB, "deu_Latn"),
        ("zh_CN", NLLB, "zho_Hans"),
        ("zho_Hant", M2M100, "zh"),
        ("zh", NLLB, "zho_Hans"),
        ("zho_Hant", NLLB, "zho_Hant"),
        ("kas_Deva", NLLB, "kas_Deva"),
        ("ar_AR", NLLB, "arb_Arab"),  # NLLB has several kinds of Arabic; the standard one has the macrolanguage's code
        ("no", NLLB, "nob_Latn"),
        ("tl_XX", M2M100, "tl"),
        ("jv", WHISPER, "jw"),
        ("iw", M2M100, "he"),
        ("en-US", M2M100, "en"),
        ("EN", MBART50, "en_XX"),
        ("deu_Latn", ("en", "fr"), None),
        ("xx", NLLB, None),
    ],
)
def test_the_same_language_is_found(code: str, codes: list[str], found: str | None) -> None:
    assert matching_language(code, codes) == found


def test_tags_name_the_language_and_tell_its_scripts_apart() -> None:
    for codes in (NLLB, MBART50, M2M100):
        languages = {(language_of(code).code, language_of(code).script) for code in codes}
        assert len({language_tag(code) for code in codes}) >= len(languages)
        assert all(language_of(code).includes(language_of(language_tag(code))) for code in codes)
    expected = {"eng_Latn": "en", "English": "en", "de_DE": "de-DE", "zho_Hant": "zh-Hant", "rus_Cyrl": "ru"}
    assert {code: language_tag(code) for code in expected} == expected


def test_almost_every_language_of_mbart_and_m2m_is_one_of_nllb() -> None:
    assert {code for code in MBART50 if matching_language(code, NLLB) is None} == set()
    missing = {code for code in M2M100 if matching_language(code, NLLB) is None}
    assert missing == {"br", "fy", "ns"}  # NLLB lacks Breton and Frisian, and M2M writes Northern Sotho in its own way
    for codes in (MBART50, M2M100, NLLB):
        assert all(matching_language(code, codes) == code for code in codes)


def test_short_codes_are_not_short_forms_of_others() -> None:
    assert all(len(short) == 2 and SHORT.get(short, short) == short for short in SHORT.values())


def test_tags_are_pieces_that_name_an_output_language() -> None:
    pieces = {1: "</s>", 2: "<2de>", 3: ">>deu<<", 4: "▁<2pt_BR>", 5: "<2>", 6: "<2de>x", 7: ">>deu_Latn<<", 8: "<s>"}
    assert [tag_language(piece) for piece in pieces.values()] == [
        *(None, "de", "deu", "pt_BR", None, None, "deu_Latn", None)
    ]
    assert language_tags(Vocabulary({piece: token for token, piece in pieces.items()})) == {
        "de": "<2de>",
        "deu": ">>deu<<",
        "pt_BR": "<2pt_BR>",
        "deu_Latn": ">>deu_Latn<<",
    }


@pytest.mark.parametrize(
    ("prefix", "languages"),
    [
        ("translate English to German: ", ("en", "de")),
        ("Translate from French into English: ", ("fr", "en")),
        ("translate it to German: ", (None, "de")),
        ("en to de: ", ("en", "de")),
        ("grammar: ", (None, None)),
    ],
)
def test_a_prefix_names_languages(prefix: str, languages: tuple[str | None, str | None]) -> None:
    assert languages_named(prefix) == languages


def test_chosen_languages_precede_those_of_the_prefix_and_of_the_model() -> None:
    prefix, own = "translate it to German: ", ("en", "fr")
    assert effective_languages("es", "it", prefix, own) == ("es", "it")
    assert effective_languages(None, None, prefix, own) == ("en", "de")
    assert effective_languages(None, None, "", own) == own
    assert effective_languages(None, None, "", (None, None)) == (None, None)
