"""Names of languages: those that files, models and people use for the same language are one language."""

from __future__ import annotations

import pytest

from speculative_decoding import InputError
from speculative_decoding.loading.language_codes import M2M100, MBART50, NLLB
from speculative_decoding.loading.language_map import language_of
from speculative_decoding.memory.languages import choose_languages, closeness
from speculative_decoding.models.speech_languages import CODES

SAME = [
    ("en", "en-US", "EN-GB", "en_XX", "eng_Latn", "__en__", "eng", "English", "english", "en-ZZ"),
    ("de", "deu_Latn", "ger", "de-AT", "German"),
    ("zh-TW", "zh_Hant", "zho_Hant", "zh-HK", "zh-Hant-TW"),
    ("zh-CN", "zho_Hans", "zh-SG", "zh"),
    ("he", "iw", "heb_Hebr"),
    ("no", "nb-NO", "nob_Latn"),
    ("sr-Cyrl", "srp_Cyrl"),
]
DIFFERENT = [
    ("en", "de"),
    ("zh-TW", "zh-CN"),
    ("zho_Hans", "zh_Hant"),
    ("sr-Latn", "srp_Cyrl"),
    ("nn", "nb"),
    ("", "en"),
]


@pytest.mark.parametrize("names", SAME, ids=lambda names: names[0])
def test_names_of_a_language_fit_each_other(names: tuple[str, ...]) -> None:
    assert all(closeness(one, other) for one in names for other in names)


@pytest.mark.parametrize("one, other", DIFFERENT)
def test_names_of_different_languages_do_not_fit(one: str, other: str) -> None:
    assert closeness(one, other) == closeness(other, one) == 0


def test_the_same_name_fits_best_and_the_same_region_better_than_another() -> None:
    assert closeness("en-GB", "en-GB") > closeness("en-GB", "eng-GB") > closeness("en-GB", "en-US") > 0


def test_codes_of_models_differ_unless_their_languages_do_not() -> None:
    """Of NLLB's 202 languages, only members of a macrolanguage with the same script share a code."""
    assert len({language_of(code)[:2] for code in NLLB}) >= 195
    for codes in (M2M100, MBART50):
        assert len({language_of(code)[:2] for code in codes}) == len(codes)
    assert all(language_of(name) == language_of(code) for name, code in CODES.items())


def test_two_languages_and_that_of_the_sources_need_no_flags() -> None:
    assert choose_languages(["de-DE", "en-US", "en-GB"], None, None, "en") == ("en-GB", "de-DE")
    assert choose_languages(["de-DE", "en-US"], None, None, "DE") == ("de-DE", "en-US")
    assert choose_languages(["de-DE", "en-US"], "eng_Latn", None, None) == ("eng_Latn", "de-DE")
    assert choose_languages(["de-DE", "en-US"], None, "eng_Latn", "en") == ("de-DE", "eng_Latn")
    assert choose_languages(["fr", "de-DE", "en-US"], "fr", "en", "de") == ("fr", "en")


@pytest.mark.parametrize(
    "found, wanted, message",
    [
        (
            ["de", "en"],
            (None, None, None),
            "memory: does not say which of its languages de, en is that of the sources; ",
        ),
        (["de", "en", "fr"], (None, None, "en"), "memory: has texts in de, en, fr; name src_lang and tgt_lang"),
        (["de", "en", "fr"], ("en", None, "en"), "memory: has texts in de, en, fr; name src_lang and tgt_lang"),
        (["de", "en"], ("fr", "de", None), "memory: has no texts in fr, only in de, en; name another src_lang"),
        (
            ["de", "en"],
            ("en", "Klingon", None),
            "memory: has no texts in Klingon, only in de, en; name another tgt_lang",
        ),
        ([], (None, None, None), "memory: has texts in no language"),
        ([f"a{i}-x" for i in range(30)], (None, None, None), "... (30 languages)"),
    ],
)
def test_other_files_need_names_and_one_line_lists_the_languages(
    found: list[str], wanted: tuple[str | None, str | None, str | None], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        choose_languages(found, *wanted)
    assert message in str(caught.value) and "\n" not in str(caught.value)
