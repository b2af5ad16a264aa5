"""Tests the language pairs of a model, and the codes that clients use."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from speculative_decoding import InputError
from speculative_decoding.loading import language_codes
from speculative_decoding.loading.language_map import matching_language
from speculative_decoding.server.languages import Languages, client_codes, english_name, given_prefixes

PREFIXES = MappingProxyType({("en", "de"): "to German: ", ("de", "en"): ""})
TOKENS = MappingProxyType({"deu_Latn": 5, "eng_Latn": 6, "zho_Hans": 7, "zho_Hant": 8})


def languages(tokens: Any = MappingProxyType({}), prefixes: Any = MappingProxyType({})) -> Languages:
    tokenizer: Any = SimpleNamespace(languages=tokens)
    return Languages(tokenizer, prefixes)


def test_pairs_come_from_flags() -> None:
    assert given_prefixes(["en:de=German: ", "de:en="]) == {("en", "de"): "German: ", ("de", "en"): ""}
    with pytest.raises(InputError, match="^translate: must be SOURCE:TARGET=PREFIX"):
        given_prefixes(["en:de"])


@pytest.mark.parametrize("name", ["MBART", "MBART50", "NLLB", "M2M100", "WMT21"])
def test_each_code_for_clients_means_one_language_of_the_model(name: str) -> None:
    codes = getattr(language_codes, name)
    found = client_codes(codes)
    assert len({*found.values()}) == len(codes)
    assert all(matching_language(code, codes) == own for own, code in found.items())


def test_models_with_language_tokens_translate_between_all_of_them() -> None:
    own = languages(TOKENS)
    first, *others = own.listed
    assert first == {"code": "de", "name": "German", "targets": ["de", "en", "zh", "zh-Hant"]} and len(others) == 3
    assert others[-1]["name"] == "Chinese (Hant)"
    for source in ("en", "eng_Latn", "en-US", "EN", "English"):
        assert own.pair(source, "zh-TW") == ("", {"src_lang": "eng_Latn", "tgt_lang": "zho_Hant"})
    assert own.target("deu_Latn") == "de" and own.into("de") == ["de", "en", "zh", "zh-Hant"]
    with pytest.raises(InputError, match="source: 'fra_Latn' is an unknown language; did you mean .*eng_Latn"):
        own.pair("fra_Latn", "de")


def test_a_pair_with_a_prefix_has_precedence() -> None:
    own = languages(TOKENS, PREFIXES)
    assert own.pair("en", "de") == ("to German: ", {}) and own.pair("en", "zh")[1]["tgt_lang"] == "zho_Hans"
    assert [each["code"] for each in own.listed] == ["de", "en", "zh", "zh-Hant"]


def test_other_models_translate_the_pairs_that_have_a_prefix() -> None:
    own = languages(prefixes={**PREFIXES, ("en", "ro"): "to Romanian: "})
    assert own.listed == [
        {"code": "de", "name": "German", "targets": ["de", "en"]},
        {"code": "en", "name": "English", "targets": ["de", "en", "ro"]},
        {"code": "ro", "name": "Romanian", "targets": ["ro"]},
    ]
    assert [*own.targets] == ["de", "en", "ro"]  # the candidates for detection
    assert own.pair("eng_Latn", "de-AT") == ("to German: ", {}) and own.into("ron_Latn") == ["en", "ro"]
    with pytest.raises(InputError, match="target: must be one of ro, not 'en'"):
        languages(prefixes={("en", "ro"): ""}).into("en")
    with pytest.raises(InputError, match=r"supported pair \(de:en, en:de, en:ro\), not de:ro"):
        own.pair("de", "ro")
    with pytest.raises(InputError, match=r"supported pair \(none\), not en:de"):
        languages().pair("en", "de")
    with pytest.raises(InputError, match="target: must be one of none, not 'de'"):
        languages().target("de")
    with pytest.raises(InputError, match="target: must be a language, not a text of 999 characters"):
        own.pair("en", "a" * 999)


def test_a_language_without_a_known_name_is_called_by_its_code() -> None:
    assert [english_name(code) for code in ("fra_Latn", "zh-Hant", "kab")] == ["French (Latn)", "Chinese (Hant)", "kab"]


# Codes that clients may send for the languages of NLLB. Without a script, the likely script of CLDR applies. zt and pb
# are codes of LibreTranslate
NAMES = {
    **dict.fromkeys(("zh", "ZH", "zh-Hans", "zh_CN", "zh-CN", "zh-SG", "zho", "chi", "cmn", "Chinese"), "zho_Hans"),
    **dict.fromkeys(("zt", "zh-Hant", "zh-TW", "zh_HK", "zh-Hant-TW", "zho_Hant"), "zho_Hant"),
    **dict.fromkeys(("pb", "pt-BR", "pt_BR", "pt-PT", "pt", "por", "Portuguese"), "por_Latn"),
}
CODES = ("zho_Hant", "por_Latn", "zho_Hans", "eng_Latn")


@pytest.mark.parametrize("codes", [CODES, CODES[::-1]], ids=["Hant first", "Hans first"])
@pytest.mark.parametrize(("name", "own"), NAMES.items())
def test_codes_mean_the_same_in_any_order_of_the_models_languages(name: str, own: str, codes: tuple[str, ...]) -> None:
    found = languages(dict.fromkeys(codes, 5))
    client = {"zho_Hans": "zh", "zho_Hant": "zh-Hant", "por_Latn": "pt"}[own]
    assert found.pair("en", name)[1]["tgt_lang"] == own == found.pair(name, "en")[1]["src_lang"]
    assert found.target(name) == client and [each["code"] for each in found.listed] == ["en", "pt", "zh", "zh-Hant"]


@pytest.mark.parametrize("name", ["MBART", "MBART50", "NLLB", "M2M100", "WMT21"])
def test_each_listed_target_is_listed_as_a_language(name: str) -> None:
    """LibreTranslate's own web page looks up the names of targets in the list."""
    listed = languages(getattr(language_codes, name)).listed
    codes = [each["code"] for each in listed]
    assert len({*codes}) == len(codes)
    for each in listed:
        assert each["code"] in each["targets"] and {*each["targets"]} <= {*codes}


SAME = [
    *(("zh", "zh-Hans"), ("zt", "zho_Hant"), ("zh_TW", "zt"), ("pb", "pt"), ("Portuguese", "pt-BR"), ("en", "EN")),
]
DIFFERENT = [("zh", "zt"), ("zh-TW", "zh-CN"), ("zho_Hans", "zh-Hant"), ("en", "zh"), ("xx", "xx")]


@pytest.mark.parametrize(("source", "target"), [*SAME, *DIFFERENT])
def test_names_are_the_same_language_only_in_the_same_script(source: str, target: str) -> None:
    own = languages(dict.fromkeys(CODES, 5))
    assert own.is_same(source, target) is own.is_same(target, source) is ((source, target) in SAME)


def test_a_prefix_from_a_language_to_itself_is_used() -> None:
    own = languages(prefixes={("en", "en"): "grammar: ", ("zh", "zt"): "traditional: "})
    assert not own.is_same("en", "en") and own.pair("en", "en") == ("grammar: ", {})
    assert own.is_same("zh", "zh") and not own.is_same("zh", "zt")


def test_a_text_may_be_in_another_script_than_the_target() -> None:
    """Otherwise, a text in simplified characters would count as a text in the target language."""
    pairs = languages(prefixes={("en", "zh"): "", ("en", "zt"): "", ("en", "pt"): "", ("en", "pb"): ""})
    assert pairs.into("zh-Hant") == ["en", "zh", "zt"] == pairs.into("zh")
    assert pairs.into("pb") == ["en", "pb"] and pairs.into("pt") == ["en", "pt"]
