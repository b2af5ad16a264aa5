"""Requests for translations, and the language pairs of a model."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from speculative_decoding import GenerationOptions, InputError
from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.limits import Limits
from speculative_decoding.server.translation import (
    parse_translation_request,
    translation_languages,
    translation_prefixes,
    translation_prompt,
)

PREFIXES = {("en", "de"): "to German: ", ("de", "en"): ""}
TOKENS = MappingProxyType({"deu_Latn": 5, "eng_Latn": 6, "fra_Latn": 7})
LIMITS = Limits(max_prompts=6, max_output_tokens=20)


def session(**languages: int) -> Any:
    return SimpleNamespace(tokenizer=SimpleNamespace(languages=languages))


def parse(is_form: bool = False, **fields: Any) -> Any:
    service: Any = SimpleNamespace(session=session(), limits=LIMITS, options=GenerationOptions(max_tokens=5))
    given = {"q": "The end.", "source": "en", "target": "de"} | fields
    return parse_translation_request(given, service, PREFIXES, is_form=is_form)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"format": "html"}, "format", "must be text"),
    ({"source": "auto"}, "source", "automatic detection is not supported"),
    ({"source": ""}, "source", "must be"),
    ({"target": "fr"}, "target", "must be a supported pair (de:en, en:de), not en:fr"),
    ({"q": ""}, "q", "must be"),
    ({"q": []}, "q", "1 to 6 texts, not 0"),
    ({"q": ["a"] * 7}, "q", "1 to 6 texts, not 7"),
    ({"alternatives": "0"}, "alternatives", "must be 0"),
    ({"sources": "en"}, "sources", "did you mean source?"),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED, ids=str)
def test_refused_fields_are_named(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ServerError) as error:
        parse(**fields)
    assert (error.value.status, error.value.param) == (400, param)
    assert error.value.message.startswith(f"{param}: ") and words in error.value.message


def test_fields_without_effect_are_accepted() -> None:
    assert parse(format="", alternatives="", api_key="x") == parse(format="text", alternatives=0) == parse()
    assert parse(is_form=True, alternatives="0") == parse() and len(parse(q=["a"] * 6)[1]) == 6


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_each_line_is_a_prompt_and_line_breaks_and_blank_lines_are_kept(line_break: str) -> None:
    text = line_break.join(["", "one", "  ", "", "two", ""])
    parts, prompts = parse(q=[text, " ", "three"])
    assert ["".join(each) for each in parts] == [text, " ", "three"]
    assert [prompt for prompt, _ in prompts] == ["to German: one", "to German: two", "to German: three"]
    assert {options.max_tokens for _, options in prompts} == {LIMITS.max_output_tokens}


def test_pairs_come_from_the_models_config_and_from_flags() -> None:
    tasks = {"translation_en_to_fr": {"prefix": "to French: "}, "summarization": {"prefix": "s: "}, "translation_x": 3}
    found = translation_prefixes({"task_specific_params": tasks}, ["en:de=German: ", "de:en="])
    assert found == {("en", "fr"): "to French: ", ("en", "de"): "German: ", ("de", "en"): ""}
    assert translation_prefixes({"task_specific_params": 3}, []) == {}


def test_a_malformed_flag_is_refused() -> None:
    with pytest.raises(InputError, match="^translate: must be SOURCE:TARGET=PREFIX"):
        translation_prefixes({}, ["en:de"])


def test_models_with_language_tokens_translate_between_all_of_them() -> None:
    own = session(**TOKENS)
    first, *others = translation_languages(own, {})
    assert first == {"code": "deu_Latn", "name": "deu_Latn", "targets": ["eng_Latn", "fra_Latn"]} and len(others) == 2
    languages = {"src_lang": "eng_Latn", "tgt_lang": "deu_Latn"}
    assert translation_prompt(own, {}, "a", "eng_Latn", "deu_Latn") == ("a", languages)
    assert translation_prompt(own, PREFIXES, "a", "en", "de") == ("to German: a", {})
    with pytest.raises(InputError, match="source: 'eng_latn' is an unknown language; did you mean .*eng_Latn"):
        translation_prompt(own, {}, "a", "eng_latn", "deu_Latn")


def test_other_models_translate_the_pairs_that_have_a_prefix() -> None:
    assert translation_languages(session(), PREFIXES) == [
        {"code": "de", "name": "de", "targets": ["en"]},
        {"code": "en", "name": "en", "targets": ["de"]},
    ]
    with pytest.raises(InputError, match=r"supported pair \(none\), not en:de"):
        translation_prompt(session(), {}, "a", "en", "de")
