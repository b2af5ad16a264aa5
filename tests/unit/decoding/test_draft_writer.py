"""What a draft model of another vocabulary reads, and how its text becomes the target's ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import pytest

from speculative_decoding import InputError, Session
from speculative_decoding.decoding.draft_writer import PromptReader, TextModel, settled
from speculative_decoding.drafters.base import RequestView
from speculative_decoding.loading.pair import DraftPrompt
from speculative_decoding.loading.tokenizer import Tokenizer, Vocabulary
from speculative_decoding.sampling import GenerationOptions
from tests.support.tiny import OneLanguage, tiny_model
from tests.support.tokenizers import FOLDERS, loaded


class Words(OneLanguage):
    """A tokenizer whose words may be tags, such as <2de>."""

    def __init__(self, *tags: str, special: bool = False) -> None:
        self._words = ["<pad>", "</s>", *tags]
        self._hidden = 2 + len(tags) * special

    @property
    def vocabulary(self) -> Vocabulary:  # type: ignore[override]
        return Vocabulary({word: i for i, word in enumerate(self._words)})

    def encode(self, text: str, language: str | None = None) -> list[int]:
        for word in text.split():
            if word not in self._words:
                self._words.append(word)
        return [*map(self._words.index, text.split()), 1]

    def decode(self, tokens: Any) -> str:
        return " ".join(self._words[token] for token in tokens if token >= self._hidden)


def reader_of(target: Tokenizer, draft: Tokenizer, prompt_prefixes: Sequence[str] = (), **prompt: Any) -> PromptReader:
    models = (TextModel(tiny_model(), each) for each in (target, draft))
    return PromptReader(*models, DraftPrompt(**prompt), prompt_prefixes)


def read(reader: PromptReader, target: Tokenizer, text: str, **options: Any) -> tuple[str, str | None, str | None]:
    chosen = GenerationOptions(**options)
    source = target.encode(text, chosen.src_lang) if target.languages else target.encode(text)
    return reader.read(RequestView(chosen, source, [0]))


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ({}, "translate: a b", "translate: a b"),
        ({"prefix": ""}, "a b", "a b"),
        ({"prefix": "to German: "}, "a b", "to German: a b"),
        ({"prefix": "", "prompt_prefixes": ["translate: "]}, "translate: a b", "a b"),
        ({"prefix": "fr: ", "prompt_prefixes": ["other: ", "translate: "]}, "translate: a b", "fr: a b"),
        ({"prompt_prefixes": ["translate: "]}, "translate: a b", "translate: a b"),
    ],
)
def test_the_prefix_of_the_draft_replaces_that_of_the_target(prompt: dict[str, Any], text: str, expected: str) -> None:
    target = Words()
    assert read(reader_of(target, Words(), **prompt), target, text) == (expected, None, None)


@pytest.mark.parametrize(
    ("target", "draft", "options", "expected"),
    [
        ("nllb", "m2m_100", {"src_lang": "eng_Latn", "tgt_lang": "deu_Latn"}, ("en", "de")),
        ("m2m_100", "nllb", {"src_lang": "en", "tgt_lang": "de"}, ("eng_Latn", "deu_Latn")),
        ("mbart50", "nllb", {"tgt_lang": "de_DE"}, (None, "deu_Latn")),
        ("nllb", "mbart50", {"src_lang": "eng_Latn", "tgt_lang": "deu_Latn"}, ("en_XX", "de_DE")),
    ],
)
def test_languages_are_mapped_between_tokenizers(
    target: str, draft: str, options: dict[str, str], expected: tuple[str, str]
) -> None:
    own, other = loaded(FOLDERS[target]), loaded(FOLDERS[draft])
    assert read(reader_of(own, other), own, "Hello world", **options) == ("Hello world", *expected)


def test_a_language_tag_of_the_target_becomes_the_language_or_the_tag_of_the_draft() -> None:
    tagged, pair, nllb = Words("<2de>", "<2fr>"), Words(), loaded(FOLDERS["nllb"])
    german = "deu_Latn"
    for target in (tagged, Words("<2de>", "<2fr>", special=True)):  # the tag may be dropped from decoded text
        assert read(reader_of(target, pair), target, "<2de> a b") == ("a b", None, None)
        assert read(reader_of(target, nllb), target, "<2de> a b")[::2] == ("a b", german)
        assert read(reader_of(target, Words(">>deu<<")), target, "<2de> a b") == (">>deu<< a b", None, None)
    assert read(reader_of(nllb, tagged), nllb, "a b", tgt_lang=german) == ("<2de> a b", None, None)
    assert read(reader_of(nllb, tagged, prefix="<2fr> "), nllb, "a b", tgt_lang=german) == ("<2fr> a b", None, None)
    assert read(reader_of(pair, tagged, tgt_lang="fr"), pair, "a b") == ("<2fr> a b", None, None)


def test_the_fixed_languages_of_the_target_are_those_of_the_draft() -> None:
    target, nllb, tagged = Words(), loaded(FOLDERS["nllb"]), Words("<2de>", "<2fr>")
    for draft, expected in ((nllb, ("a b", "eng_Latn", "deu_Latn")), (tagged, ("<2de> a b", None, None))):
        reader = reader_of(target, draft)
        reader._target.model.task_prefixes = MappingProxyType({"translation_en_to_de": ""})
        reader.check(GenerationOptions())
        assert read(reader, target, "a b") == expected
    other = reader_of(target, nllb)
    other._target.model.task_prefixes = MappingProxyType({"translation_en_to_xx": ""})
    with pytest.raises(InputError, match="draft_tgt_lang: the draft model has no language xx"):
        other.check(GenerationOptions())


def test_a_language_that_cannot_be_derived_is_named() -> None:
    nllb, mbart, plain = loaded(FOLDERS["nllb"]), loaded(FOLDERS["mbart50"]), Words()
    nothing = GenerationOptions()
    with pytest.raises(InputError, match=r"draft_tgt_lang: is missing; choose one of the draft model's \d+ languages"):
        reader_of(plain, nllb).check(nothing)
    some = next(iter(nllb.languages))
    reader_of(plain, nllb, tgt_lang=some).check(nothing)
    reader_of(mbart, nllb).check(nothing)  # each request names its languages
    reader_of(Words("<2de>"), nllb).check(nothing)  # or its prompt does
    with pytest.raises(InputError, match="draft_tgt_lang: 'de' is an unknown language"):
        reader_of(plain, nllb, tgt_lang="de").check(nothing)
    with pytest.raises(InputError, match="draft_src_lang: de has no effect: the draft model has no such language"):
        reader_of(plain, Words(), src_lang="de").check(nothing)
    with pytest.raises(InputError, match="draft_tgt_lang: the draft model has no language yue_Hant"):
        reader_of(nllb, mbart).check(GenerationOptions(tgt_lang="yue_Hant"))
    with pytest.raises(InputError, match="draft_src_lang: the draft model has no language yue_Hant"):
        reader_of(nllb, mbart).check(GenerationOptions(src_lang="yue_Hant", tgt_lang="deu_Latn"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("Ha", ""),
        ("Das Ha", "Das"),
        ("Das Haus ", "Das Haus"),
        ("Das\nHaus", "Das"),
        (
            "これは日本語の文章で、空白がないため、単語の境界がわかりません",
            "これは日本語の文章で、空白がないため、単語の境",
        ),
    ],
)
def test_a_word_that_may_be_incomplete_is_held_back(text: str, expected: str) -> None:
    """Of a script without spaces, some characters are."""
    assert settled(text) == expected


def test_settings_that_have_no_effect_are_refused() -> None:
    model, words = tiny_model(), Words()
    for name in ("prefix", "src_lang", "tgt_lang"):
        for draft in (None, tiny_model()):
            with pytest.raises(InputError, match=f"draft_{name}: 'x' has no effect without a draft model of another v"):
                Session(model, words, draft, draft_prompt=DraftPrompt(**{name: "x"}))


@pytest.mark.parametrize("name", ["prefix", "src_lang", "tgt_lang"])
def test_settings_of_wrong_types_are_named(name: str) -> None:
    with pytest.raises(InputError, match=f"^draft_{name}: must be text.*, not 3$"):
        DraftPrompt(**{name: 3})  # type: ignore[arg-type]


def test_a_prefix_that_is_no_text_is_refused_before_weights_load() -> None:
    with pytest.raises(InputError, match="^draft_prefix: "):
        reader_of(Words(), Words(), prefix="\ud800").check(GenerationOptions())


def test_a_draft_of_another_vocabulary_needs_its_tokenizer() -> None:
    target, draft = tiny_model(), tiny_model()
    target.pieces, draft.pieces = (Vocabulary({piece: 0}).pieces for piece in "ab")
    way_out = "token 0 is 'b', in the target it is 'a'; give its draft_tokenizer to draft its text, or choose another"
    with pytest.raises(InputError, match=re.escape(way_out)):
        Session(target, Words(), draft)
    assert Session(target, Words(), draft, draft_tokenizer=Words()).drafts_text
    assert not Session(target, Words(), tiny_model(), draft_tokenizer=Words()).drafts_text
