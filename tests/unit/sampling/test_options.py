"""GenerationOptions: limits, conflicts, suggestions, and the entry points that show them."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any, get_type_hints

import pytest

from speculative_decoding import GenerationOptions, InputError, Session, batch_generate, generate, load, stream_generate
from speculative_decoding.sampling.keywords import OptionKeywords, SpeechKeywords
from speculative_decoding.sampling.options import (
    ACCEPTANCE,
    FOR_SPEECH,
    MAX_TOKENS,
    OPTIONS_BY_OTHER_NAME,
    TAKES_DELTA,
    option_specs,
)
from speculative_decoding.subpackages import has_subpackage
from tests.unit.sampling.test_values import examples

NAMES = [each.name for each in fields(GenerationOptions)]
# What the limits of an option need beside it.
TOGETHER: dict[str, dict[str, Any]] = {
    "min_tokens": {"max_tokens": MAX_TOKENS},
    "num_return_sequences": {"temperature": 1.0},
}


def kept(name: str, given: Any) -> Any:
    return getattr(GenerationOptions(**{name: given} | TOGETHER.get(name, {})), name)


@pytest.mark.parametrize("name", NAMES)
def test_values_up_to_the_limits_are_kept_and_those_beyond_are_named(name: str) -> None:
    spec = option_specs()[name]
    good, bad = examples(spec.type)
    if name == "num_beams" and not has_subpackage("beam_search"):
        good = [1]
    assert good and bad
    for value in good:
        found = kept(name, value)
        assert found == (tuple(value) if isinstance(value, list) else value)
        assert type(found) in (type(value), tuple, float)
    none: list[Any] = [] if spec.default is None else [None]
    for value in bad + none:
        with pytest.raises(InputError) as error:
            kept(name, value)
        text = str(error.value)
        assert text.startswith(f"{name}: must be {spec.type.expected}, not ") and "\n" not in text
        assert len(text) < 250
    assert none or kept(name, None) is None


def test_values_in_errors_are_short_and_spelled_as_in_json() -> None:
    with pytest.raises(InputError, match="^seed: must be a whole number, 0 to 4294967295, not 'x{56}\\.\\.\\.$"):
        GenerationOptions(seed="x" * 999)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="^max_tokens: must be a whole number, 1 to 1048576, not true$"):
        GenerationOptions(max_tokens=True)


def test_options_are_frozen_and_keyword_only() -> None:
    with pytest.raises(FrozenInstanceError):
        GenerationOptions().seed = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        GenerationOptions(1.0)  # type: ignore[misc]
    assert hash(GenerationOptions(stop=["a"], decoder_prefix=[1])) == hash(
        GenerationOptions(stop=("a",), decoder_prefix=(1,))
    )


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("max_new_tokens", "max_tokens"),  # the name in another library
        ("sampling", "temperature, top_k, top_p, min_p, repetition_penalty, seed"),
        ("temprature", "temperature"),
        ("topk", "top_k"),
        ("num_drafts", "num_draft_tokens"),
    ],
)
def test_an_unknown_option_gets_a_suggestion(given: str, meant: str) -> None:
    for change in (GenerationOptions().override, GenerationOptions().override_for_row):
        with pytest.raises(InputError) as error:
            change({given: 3})
        assert str(error.value) == f"{given}: unknown option; did you mean {meant}?"


def test_suggestions_are_options_of_something() -> None:
    of_speech = {"sample_len", "language", "vad"}  # the tests of speech/ check them
    known = {*NAMES, "baseline", *of_speech}
    assert {each for meant in OPTIONS_BY_OTHER_NAME.values() for each in meant} <= known
    assert not OPTIONS_BY_OTHER_NAME.keys() & set(NAMES) - {
        "src_lang",
        "max_tokens",
    }  # transcriptions have other names for them


def test_an_unknown_option_without_a_similar_name_gets_the_list_of_options() -> None:
    with pytest.raises(InputError, match="^zzzz: unknown option; there are temperature, .*, timed$"):
        GenerationOptions().override({"zzzz": 1})


@pytest.mark.parametrize("rule", [name for name, facts in ACCEPTANCE.items() if TAKES_DELTA not in facts])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_the_rules_that_take_a_delta_accept_one(rule: str, temperature: float) -> None:
    with pytest.raises(
        InputError, match=f"^delta: relaxes acceptance rejection only, not {rule}; leave one of them out$"
    ):
        GenerationOptions(temperature=temperature, acceptance=rule, delta=0.1)


# (other options, an option without effect beside them, the reason, options that give it an effect)
WITHOUT_EFFECT: list[tuple[dict[str, Any], dict[str, Any], str, dict[str, Any]]] = [
    ({}, {"top_k": 5}, "at temperature 0", {"temperature": 0.5}),
    ({}, {"acceptance": "coupled"}, "at temperature 0", {"temperature": 0.5}),
    ({"drafter": "none"}, {"num_draft_tokens": 3}, "with drafter none", {"drafter": "model"}),
    ({"num_draft_tokens": 0}, {"drafter": "model"}, "with num_draft_tokens 0", {"num_draft_tokens": 3}),
    ({"num_draft_tokens": 0}, {"delta": 0.2}, "with num_draft_tokens 0", {"num_draft_tokens": 3}),
    ({"drafter": "model"}, {"max_ngram_size": 4}, "with drafter model", {"drafter": "auto"}),
    ({"drafter": "none"}, {"max_ngram_size": 4}, "with drafter none", {"drafter": "ngram"}),
]


@pytest.mark.parametrize(("others", "option", "why", "otherwise"), WITHOUT_EFFECT, ids=str)
def test_an_option_without_effect_is_refused(
    others: dict[str, Any], option: dict[str, Any], why: str, otherwise: dict[str, Any]
) -> None:
    (name,) = option
    for base, given in ((GenerationOptions(), {**others, **option}), (GenerationOptions(**others), option)):
        with pytest.raises(InputError, match=f"^{name}: has no effect {why}.*; leave one of them out$"):
            base.override(given).require_effect(given)
    assert getattr(GenerationOptions().override({**others, **otherwise, **option}), name) == option[name]


def test_explicit_defaults_and_inherited_options_are_not_conflicts() -> None:
    for name in NAMES:
        assert GenerationOptions().override({name: option_specs()[name].default}) == GenerationOptions()
    session = GenerationOptions(temperature=1.0, top_k=5, drafter="model", num_draft_tokens=7)
    assert session.override({"temperature": 0.0}).top_k == 5
    assert session.override({"drafter": "none"}).num_draft_tokens == 7
    # Both disable drafting, so they do not conflict.
    assert GenerationOptions().override({"drafter": "none", "num_draft_tokens": 0}).num_draft_tokens == 0


def test_a_row_may_override_only_the_options_of_a_row() -> None:
    fixed = {
        "drafter": "auto",
        "max_ngram_size": 3,
        "strict": True,
        "allow_long_prompt": True,
        "timed": True,
        "num_beams": 4,
    }
    assert {name for name in NAMES if not option_specs()[name].per_row} == fixed.keys()
    base = GenerationOptions(temperature=1.0, drafter="auto")
    for name, value in fixed.items():
        with pytest.raises(InputError, match=f"^{name}: is the same for all rows of a batch; give it for all of them$"):
            base.override_for_row({name: value})
    own = {"temperature": 0.5, "seed": 3, "num_draft_tokens": 2, "acceptance": "block", "stop": ["a"], "max_tokens": 9}
    row = base.override_for_row(own)
    assert {name: getattr(row, name) for name in own} == own | {"stop": ("a",)} and row.drafter == "auto"
    with pytest.raises(InputError, match="top_k: has no effect at temperature 0"):
        GenerationOptions().override_for_row({"top_k": 3}).require_effect(["top_k"])


def test_options_determine_which_guarantees_hold() -> None:
    greedy, coupled = GenerationOptions(), GenerationOptions(temperature=1.0)
    sampled = GenerationOptions(temperature=1.0, acceptance="rejection")
    assert [each.is_greedy for each in (greedy, coupled, sampled)] == [True, False, False]
    assert [each.is_comparable for each in (greedy, coupled, sampled)] == [True, True, False]
    assert all(each.is_lossless for each in (greedy, coupled, sampled))
    lossy = GenerationOptions(temperature=1.0, delta=0.1)
    assert not lossy.is_lossless and not lossy.is_comparable
    assert GenerationOptions(repetition_penalty=1.1).has_penalty and not sampled.has_penalty


def test_coupled_is_the_rule_unless_a_delta_or_a_name_asks_for_another() -> None:
    assert GenerationOptions().rule == "coupled"
    assert GenerationOptions(delta=0.1).rule == "rejection"
    assert GenerationOptions().override({"delta": 0.1}).rule == "rejection"
    assert GenerationOptions(delta=0.1).override({"delta": 0}).rule == "coupled"
    for name in ACCEPTANCE:
        assert GenerationOptions(acceptance=name).rule == name


ENTRY_POINTS: dict[str, tuple[Callable[..., Any], list[str]]] = {  # and their other keywords
    "generate": (generate, ["on_round", "draft_model", "ngram", "draft_vocabulary", "draft_tokenizer"]),
    "stream_generate": (stream_generate, ["on_round", "draft_model", "ngram", "draft_vocabulary", "draft_tokenizer"]),
    "batch_generate": (
        batch_generate,
        ["slots", "max_memory_gb", "draft_model", "ngram", "draft_vocabulary", "draft_tokenizer"],
    ),
    "Session.generate": (Session.generate, ["on_round"]),
    "Session.stream": (Session.stream, ["on_round"]),
    "Session.rounds": (Session.rounds, ["on_round"]),
    "Session.batch": (Session.batch, ["slots", "max_memory_gb"]),
}


@pytest.mark.parametrize(("function", "others"), ENTRY_POINTS.values(), ids=ENTRY_POINTS)
def test_every_entry_point_shows_every_option_with_type_and_default(
    function: Callable[..., Any], others: list[str]
) -> None:
    shown = {
        name: each
        for name, each in inspect.signature(function).parameters.items()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert [*shown] == NAMES + others
    hints = get_type_hints(GenerationOptions)
    page = pydoc.plain(pydoc.render_doc(function))
    for name in NAMES:
        assert shown[name].annotation == hints[name]
        assert shown[name].default == option_specs()[name].default
        assert f"{name}: " in page and "Annotated" not in page and "OptionSpec(" not in page
    assert all(each.default is not inspect.Parameter.empty for each in shown.values())
    assert (
        "temperature: float = 0.0" in page and "max_tokens: int = 100" in page and "strict: bool | None = None" in page
    )
    assert function.__doc__ and function.__doc__.split("\n")[0] in page


def test_type_checkers_know_every_option_with_its_type() -> None:
    types = {name: spec.annotation for name, spec in option_specs().items()}
    assert get_type_hints(OptionKeywords) == types
    for_speech = {name: types[name] for name, spec in option_specs().items() if FOR_SPEECH in spec.marks}
    assert get_type_hints(SpeechKeywords) == for_speech


def test_every_option_is_documented_and_load_shows_its_options() -> None:
    page = GenerationOptions.__doc__ or ""
    for name in NAMES:
        assert f"    {name}: " in page or f"{name}, " in page or f", {name}: " in page
        assert option_specs()[name].help
    assert [*inspect.signature(load).parameters][:4] == ["path_or_name", "draft", "drafter", "num_draft_tokens"]
    assert inspect.signature(load).parameters["num_draft_tokens"].default == option_specs()["num_draft_tokens"].default
