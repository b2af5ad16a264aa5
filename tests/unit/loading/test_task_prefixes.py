"""Prefixes of tasks in config.json, and which one tells a model two languages."""

from __future__ import annotations

from typing import Any

import pytest

from speculative_decoding import InputError
from speculative_decoding.loading.task_prefixes import (
    chosen_prefix,
    matching_pair,
    only_languages,
    task_prefixes,
    translation_prefixes,
)

# The file of google-t5/t5-base, without fields of generation
T5_BASE: dict[str, Any] = {
    "task_specific_params": {
        "summarization": {"early_stopping": True, "num_beams": 4, "prefix": "summarize: "},
        "translation_en_to_de": {"max_length": 300, "prefix": "translate English to German: "},
        "translation_en_to_fr": {"max_length": 300, "prefix": "translate English to French: "},
        "translation_en_to_ro": {"max_length": 300, "prefix": "translate English to Romanian: "},
    }
}
TASKS = task_prefixes(T5_BASE)
BOTH_WAYS = {
    "translation_en_to_de": "to German: ",
    "translation_de_to_en": "to English: ",
    "translation_en_XX_to_x": "",
}


def test_all_tasks_with_a_prefix_are_read() -> None:
    assert dict(TASKS) == {name: task["prefix"] for name, task in T5_BASE["task_specific_params"].items()}
    assert [*translation_prefixes(TASKS)] == [("en", "de"), ("en", "fr"), ("en", "ro")]


@pytest.mark.parametrize(
    "tasks",
    [
        None,
        3,
        [],
        {"translation_en_to_de": 3},
        {"translation_en_to_de": {"prefix": None}},
        {"summarization": {"prefix": " "}},  # facebook/bart-large-cnn
        {"summarization": {"length_penalty": 2.0}},
    ],
)
def test_other_files_have_no_prefixes(tasks: object) -> None:
    assert dict(task_prefixes({"task_specific_params": tasks})) == {} == dict(task_prefixes({}))


@pytest.mark.parametrize(
    ("prefixes", "pair"),
    [
        ({"translation_en_to_de": ""}, ("en", "de")),
        ({"translation_pt-BR_to_zh_Hant": "", "summarization": ""}, ("pt-BR", "zh_Hant")),
        ({"translation_en_to_de": "", "translation_de_to_en": ""}, (None, None)),
        ({"translation_en_to_de": " "}, (None, None)),
        ({"translation_en_to_de": "to German: "}, (None, None)),
        ({"summarization": ""}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_a_single_pair_without_a_prefix_fixes_the_languages(prefixes: dict[str, str], pair: tuple[str, str]) -> None:
    config = {"task_specific_params": {name: {"prefix": prefix} for name, prefix in prefixes.items()}}
    assert only_languages(task_prefixes(config)) == pair
    assert only_languages(task_prefixes(config, has_languages=True)) == (None, None)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("en", "fr", "^tgt_lang: this model only translates en to de, not en to fr; choose one of these pairs, or lea"),
        ("de", None, "^src_lang: this model only translates en to de, not de; choose"),
    ],
)
def test_fixed_languages_need_no_prefix(source: str, target: str | None, message: str) -> None:
    tasks = {"translation_en_to_de": ""}
    assert chosen_prefix(tasks, "en", "de") == chosen_prefix(tasks, None, "German") == ""
    with pytest.raises(InputError, match=message):
        chosen_prefix(tasks, source, target)


@pytest.mark.parametrize(
    ("source", "target", "name"),
    [
        ("en", "de", "German"),
        ("eng_Latn", "deu_Latn", "German"),
        ("English", "German", "German"),
        ("en-GB", "fr_XX", "French"),
        ("EN", "ron", "Romanian"),
        (None, "de", "German"),
        (None, "fra_Latn", "French"),
    ],
)
def test_any_name_of_a_language_chooses_its_prefix(source: str | None, target: str, name: str) -> None:
    assert chosen_prefix(TASKS, source, target) == f"translate English to {name}: "


def test_one_language_is_enough_if_it_decides() -> None:
    assert chosen_prefix(BOTH_WAYS, "de", None) == chosen_prefix(BOTH_WAYS, None, "en") == "to English: "


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("en", None, "^tgt_lang: is missing; choose one of de, fr, ro$"),
        (
            "en",
            "it",
            "^tgt_lang: this model has prefixes for en to de, en to fr, en to ro, not for en to it; choose one",
        ),
        (
            "de",
            "en",
            "^tgt_lang: this model has prefixes for .*, not for de to en; choose one of these pairs, or leave",
        ),
        ("fr", None, "^src_lang: this model has prefixes for .*, not for fr"),
        (None, "en", "^tgt_lang: this model has prefixes for .*, not for en;"),
    ],
)
def test_languages_without_a_prefix_are_refused(source: str | None, target: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        chosen_prefix(TASKS, source, target)


def test_a_pair_needs_both_languages() -> None:
    pairs = [("en", "de"), ("de", "fr")]
    assert matching_pair(pairs, "eng", "ger") == ("en", "de") and matching_pair(pairs, "en", "fr") is None
