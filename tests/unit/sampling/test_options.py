"""GenerationOptions: accepted values from Python, JSON and the command line, errors, and entry points."""

from __future__ import annotations

import inspect
import json
import math
import pydoc
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any, get_type_hints

import numpy as np
import pytest

from speculative_decoding import GenerationOptions, InputError, Session, batch_generate, generate, load, stream_generate
from speculative_decoding.draft_length import FixedLength
from speculative_decoding.drafters import NgramDrafter
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.rooms import has_room
from speculative_decoding.sampling.options import ACCEPTANCE, MAX_TOKENS, OTHER_NAMES, option_specs
from speculative_decoding.sampling.values import Bool, Int, ListOf, Number, Text, Union
from tests.support.tiny import EOS, OneLanguage, noisy_copy, tiny_model
from tests.typing.typed_calls import right_calls, wrong_calls

NAMES = [each.name for each in fields(GenerationOptions)]
NAN, INF = math.nan, math.inf
SWITCH: tuple[list[Any], list[Any]] = [True, False], [1, 0, "yes", None]
COUNT = [0, -1, 2.0, 2.5, True, "2", None]  # not a positive integer

# For each option: valid values, including its limits, and invalid values.
LIMITS: dict[str, tuple[list[Any], list[Any]]] = {
    "temperature": ([0, 1e-10, 0.1, 1, 1e9, np.float32(0.5)], [-1e-9, 1e-39, 1e11, NAN, INF, 10**400, True, "1", None]),
    "top_k": ([0, 1, 10**9, np.int64(5)], [-1, 2.5, 2.0, True, "5", None]),
    "top_p": ([1e-9, 0.5, 1, 1.0], [0, 0.0, -0.1, 1.1, NAN, True, None]),
    "min_p": ([0, 0.5, 1], [-0.1, 1.1, NAN, "0.1"]),
    "repetition_penalty": ([1e-9, 1, 50, None], [0, 1e-30, 1e39, -1.0, NAN, INF]),
    "no_repeat_ngram_size": ([0, 1, 64, None], [-1, 65, 2.0, True, "2"]),
    "min_tokens": ([0, 100, None], [-1, 2.5, MAX_TOKENS + 1, True, "2"]),
    "seed": ([0, 2**32 - 1], [-1, 2**32, 0.5, True, None]),
    "max_tokens": ([1, MAX_TOKENS], [*COUNT, MAX_TOKENS + 1, 10**30]),  # memory is reserved for max_tokens
    "src_lang": (["eng_Latn", None], ["", 5, True, ["de"]]),
    "tgt_lang": (["de", None], ["", 5, True, ["de"]]),
    "stop": ([[], ["a"], ("a", "b")], ["a", [""], [1], None, 5, b"a", {"a": 1}]),
    "eos_token_ids": ([[], [0, 5], (7,)], [5, [-1], [True], ["5"], [1.0], "5", None]),
    "decoder_prefix": (["", "a b", [], [3, 4]], [None, 5, [-1], [0.5], ["a"], True, {3: 4}, b"a"]),
    "num_beams": ([1, 2, 128] if has_room("beam_search") else [1], [*COUNT, 129]),
    "length_penalty": ([-10, 0, 0.6, 10, None], [-10.1, 11, NAN, INF, True, "1"]),
    "early_stopping": ([True, False, "never", None], [1, 0, "true", "always", ""]),
    "num_return_sequences": ([1], [*COUNT, 1025]),
    "drafter": (["model", "ngram", "auto", "none", NgramDrafter(), None], ["Model", "", 5, True, ["model"]]),
    "num_draft_tokens": (
        [0, 1, 64, "auto", FixedLength(3)],
        [-1, 65, 2.5, 2.0, True, "5", "fast", "", None, [3]],
    ),
    "acceptance": (["rejection", "block", "coupled", None], ["typical", "", 1]),
    "delta": ([0, 0.5, 1], [-0.1, 1.1, NAN, None, True]),
    "max_ngram_size": ([1, 2, 10**9], COUNT),
    "strict": ([True, False, None], [1, 0, "yes"]),
    "allow_long_prompt": SWITCH,
    "logprobs": SWITCH,
    "timed": SWITCH,
}


def kept(name: str, given: Any) -> Any:
    return getattr(GenerationOptions(**{name: given}), name)


def test_every_option_has_its_limits_tested() -> None:
    assert [*LIMITS] == NAMES


@pytest.mark.parametrize("name", LIMITS)
def test_values_up_to_the_limits_are_kept_and_those_beyond_are_named(name: str) -> None:
    good, bad = LIMITS[name]
    for value in good:
        found = kept(name, value)
        assert found is value or found == (tuple(value) if isinstance(value, list | tuple) else value)
        if isinstance(found, int | float):  # plain numbers of the default's type
            default = option_specs()[name].default
            assert type(found) is type(default) or name == "num_draft_tokens" or default is None
    for value in bad:
        if name == "drafter" and value is None:
            continue
        with pytest.raises(InputError) as error:
            kept(name, value)
        text = str(error.value)
        assert text.startswith(f"{name}: must be {option_specs()[name].type.expected}, not ") and "\n" not in text
        assert len(text) < 250


@pytest.mark.parametrize("name", NAMES)
def test_json_values_give_the_same_results_as_python_values(name: str) -> None:
    good, bad = LIMITS[name]
    for value in good + bad:
        if (
            isinstance(value, str | bool | int | float | list | None) and value == value
        ):  # representable in JSON, so not NaN
            try:
                expected: Any = kept(name, value)
            except InputError as error:
                expected = str(error)
            try:
                found: Any = kept(name, json.loads(json.dumps(value)))
            except InputError as error:
                found = str(error)
            assert found == expected


WORDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "temperature": ({"0": 0.0, "0.7": 0.7, "1e-3": 0.001}, ["-1", "nan", "inf", "1e999", "hot", ""]),
    "top_k": ({"0": 0, "50": 50}, ["-1", "2.5", "five", ""]),
    "top_p": ({"1": 1.0, ".5": 0.5}, ["0", "1.1", "nan"]),
    "seed": ({"4294967295": 2**32 - 1}, ["4294967296", "-1", "1.0"]),
    "num_draft_tokens": ({"0": 0, "64": 64, "auto": "auto"}, ["65", "-1", "5.0", "fast", ""]),
    "drafter": ({"ngram": "ngram", "none": "none"}, ["None", "draft", ""]),
    "acceptance": ({"block": "block"}, ["Block", ""]),
    "stop": ({"a b": "a b"}, [""]),  # a repeated flag: one value at a time
    "eos_token_ids": ({"5": 5}, ["-1", "x", "1.5"]),
    "decoder_prefix": ({"a": "a", "": "", "12": "12"}, []),
}


@pytest.mark.parametrize("name", WORDS)
def test_command_line_arguments_are_parsed(name: str) -> None:
    good, bad = WORDS[name]
    value = option_specs()[name].type
    for word, expected in good.items():
        found = value.parse(word)
        assert found == expected and type(found) is type(expected)
    for word in bad:
        with pytest.raises((ValueError, TypeError, OverflowError)):
            value.parse(word)


def test_errors_describe_the_expected_value() -> None:
    assert Int(1).expected == "a whole number >= 1" and Int(0, 64).expected == "a whole number, 0 to 64"
    assert Number(0).expected == "a number >= 0" and Number(0, 1).expected == "a number, 0 to 1"
    assert Number(1e-10, 1e10, or_zero=True).expected == "0 or a number, 1e-10 to 1e+10"
    assert Number(0, exclusive=True).expected == "a number above 0"
    assert Number(0, 1, exclusive=True).expected == "a number above 0, at most 1"
    assert Text(("a", "b")).expected == "one of a, b" and Text().expected == "text that is not empty"
    assert ListOf(Text()).expected == "a list, each text that is not empty" and Bool().expected == "true or false"
    assert Union((Int(0), Text(("auto",))), or_object=True).expected == "a whole number >= 0 or one of auto"
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
        ("max_new_tokens", "max_tokens"),
        ("temprature", "temperature"),
        ("topk", "top_k"),
        ("do_sample", "temperature"),
        ("num_drafts", "num_draft_tokens"),
        ("eos_token_id", "eos_token_ids"),
        ("sampling", "temperature, top_k, top_p, min_p, repetition_penalty, seed"),
        ("output_prefix", "decoder_prefix"),
        ("num_draft", "num_draft_tokens"),
        ("source_language", "src_lang"),
        ("target_language", "tgt_lang"),
        ("prefix", "decoder_prefix"),
        ("confidence_threshold", "num_draft_tokens"),
        ("min_ngram_size", "max_ngram_size"),
    ],
)
def test_an_unknown_option_gets_a_suggestion(given: str, meant: str) -> None:
    for change in (GenerationOptions().override, GenerationOptions().override_for_row):
        with pytest.raises(InputError) as error:
            change({given: 3})
        assert str(error.value) == f"{given}: unknown option; did you mean {meant}?"


def test_suggestions_are_options_of_something() -> None:
    known = {*NAMES, "baseline", "sample_len", "language"}  # the last two belong to speech/, whose tests check them
    assert {each for meant in OTHER_NAMES.values() for each in meant} <= known
    assert not OTHER_NAMES.keys() & set(NAMES) - {"src_lang", "max_tokens"}  # transcriptions have other names for them


def test_an_unknown_option_without_a_similar_name_gets_the_list_of_options() -> None:
    with pytest.raises(InputError, match="^zzzz: unknown option; there are temperature, .*, timed$"):
        GenerationOptions().override({"zzzz": 1})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"acceptance": "block", "delta": 0.1}, "delta: relaxes acceptance rejection only, not block"),
        ({"acceptance": "coupled", "delta": 0.1}, "delta: relaxes acceptance rejection only, not coupled"),
    ],
)
def test_conflicting_options_are_refused(options: dict[str, Any], named: str) -> None:
    for temperature in (0.0, 1.0):
        with pytest.raises(InputError) as error:
            GenerationOptions(temperature=temperature, **options)
        assert str(error.value).startswith(named)


# (other options, an option without effect beside them, the reason, options that give it an effect)
WITHOUT_EFFECT: list[tuple[dict[str, Any], dict[str, Any], str, dict[str, Any]]] = [
    *(
        ({}, {name: value}, "at temperature 0", {"temperature": 0.5})
        for name, value in {
            "top_k": 5,
            "top_p": 0.9,
            "min_p": 0.1,
            "acceptance": "coupled",
        }.items()
    ),
    *(
        ({"drafter": "none"}, {name: value}, "with drafter none", {"drafter": "model"})
        for name, value in {"num_draft_tokens": 3, "delta": 0.2}.items()
    ),
    *(
        ({"num_draft_tokens": 0}, {name: value}, "with num_draft_tokens 0", {"num_draft_tokens": 3})
        for name, value in {"drafter": "model", "delta": 0.2}.items()
    ),
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
    with pytest.raises(InputError, match="delta: relaxes acceptance rejection only, not coupled"):
        GenerationOptions(acceptance="coupled").override({"delta": 0.1})


MODEL = tiny_model()
ENTRY_POINTS: dict[str, tuple[Callable[..., Any], list[str]]] = {  # and their other keywords
    "generate": (generate, ["on_round", "draft_model", "ngram", "draft_vocabulary"]),
    "stream_generate": (stream_generate, ["on_round", "draft_model", "ngram", "draft_vocabulary"]),
    "batch_generate": (batch_generate, ["slots", "max_memory_gb", "draft_model", "ngram", "draft_vocabulary"]),
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


def test_every_option_is_documented_and_load_shows_its_options() -> None:
    page = GenerationOptions.__doc__ or ""
    for name in NAMES:
        assert f"    {name}: " in page or f"{name}, " in page or f", {name}: " in page
        assert option_specs()[name].help
    assert [*inspect.signature(load).parameters][:4] == ["path_or_name", "draft", "drafter", "num_draft_tokens"]
    assert inspect.signature(load).parameters["num_draft_tokens"].default == option_specs()["num_draft_tokens"].default


class Ids(OneLanguage):
    """A tokenizer for tests: the id of "a" is 2, the id of "b" is 3 and so on."""

    def encode(self, text: str, language: str | None = None) -> list[int]:
        return [*(ord(letter) - ord("a") + 2 for letter in text), EOS]

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(ord("a") + token - 2) for token in tokens if token >= 2)


SESSION = Session(MODEL, Ids(), noisy_copy(MODEL))  # type: ignore[arg-type]


def test_calls_that_mypy_accepts_run() -> None:
    right_calls(MODEL, Ids(), noisy_copy(MODEL))  # type: ignore[arg-type]


def test_calls_that_mypy_rejects_raise() -> None:
    calls = wrong_calls(MODEL, Ids(), SESSION)  # type: ignore[arg-type]
    assert len(calls) > 10
    for call in calls:
        with pytest.raises((InputError, TypeError)):
            call()


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((), {}, ".*missing 1 required positional argument: 'prompt'"),
        ((), {"temperature": 1.0}, ".*missing 1 required positional argument: 'prompt'"),
        (("a",), {"prompt": "b"}, ".*got multiple values for argument 'prompt'"),
        (("a", {"temperature": 1.0}), {}, ".*takes 2 positional arguments but 3 were given"),
    ],
)
def test_positional_arguments_are_checked(arguments: tuple[Any, ...], keywords: dict[str, Any], message: str) -> None:
    for function in (SESSION.generate, SESSION.stream):
        with pytest.raises(TypeError, match=f"^{message}$"):
            function(*arguments, **keywords)
    assert SESSION.generate(prompt="abc", max_tokens=3).tokens == SESSION.generate("abc", max_tokens=3).tokens


def test_a_drafter_chosen_by_the_session_gives_no_warning() -> None:
    alone = Session(MODEL, Ids())  # type: ignore[arg-type]
    assert SESSION.options_with({}).drafter == SESSION.options_with({"num_draft_tokens": 0}).drafter == "auto"
    assert SESSION.options_with({"drafter": "none", "num_draft_tokens": 0}).drafter == "none"
    assert (
        alone.options_with({}).drafter
        == alone.options_with({"drafter": None, "num_draft_tokens": 0}).drafter
        == "ngram"
    )
    assert alone.options_with({}).num_draft_tokens == option_specs()["num_draft_tokens"].default == "auto"
    with pytest.warns(UserWarning, match="num_draft_tokens: has no effect with drafter none"):
        alone.options_with({"drafter": "none", "num_draft_tokens": 3})
    with pytest.warns(UserWarning, match="max_ngram_size: has no effect with drafter none"):
        alone.options_with({"max_ngram_size": 3, "drafter": "none"})
    with pytest.warns(UserWarning, match="drafter: has no effect with num_draft_tokens 0"):
        SESSION.options_with({"drafter": "model", "num_draft_tokens": 0})


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        *(({"slots": slots}, "slots: must be a whole number >= 1, not") for slots in (0, -1, 2.5, "2", True)),
        ({"max_memory_gb": -1}, "max_memory_gb: must be a number above 0, not -1"),
        ({"max_memory_gb": "x"}, "max_memory_gb: must be a number above 0, not 'x'"),
        ({"num_draft_tokens": object()}, "num_draft_tokens: must be a whole number, auto or a DraftLength, not"),
        ({"drafter": object()}, "drafter: must be"),
    ],
    ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", str(value)),  # addresses differ between pytest-xdist workers
)
def test_keywords_of_batch_are_checked(keywords: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as error:
        for result in SESSION.batch(["abc"], **keywords):
            raise InputError(result.error or "accepted")
    assert str(error.value).startswith(named)


def test_an_invalid_prompt_gets_an_error_and_the_others_get_text() -> None:
    prompts: list[Any] = [{"prompt": "abc", "nope": 1}, {}, {"prompt": 5}, 7, "", {"prompt": "abc", "seed": 1}]
    found = {each.index: each for each in SESSION.batch(prompts, max_tokens=3)}
    assert (found[0].error or "").startswith("nope: unknown option")
    assert found[1].error == "prompt: is missing; give each row a prompt"
    assert found[4].error is None and found[4].result is not None and found[4].result.tokens == []
    assert [found[i].error for i in (2, 3)] == [f"prompt: must be text, not {given}" for given in (5, 7)]
    assert found[5].error is None and found[5].result is not None and len(found[5].result.tokens) == 3


ANY: Any = SESSION  # untyped, so that mypy accepts the wrong calls below
TARGET: Any = BUNDLED / "t5-web-docs"


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: ANY.generate("abc", max_tokens=1.5), "max_tokens: must be a whole number, 1 to 1048576, not 1.5"),
        (lambda: ANY.generate("abc", seed=10**5000), "seed: must be a whole number, 0 to 4294967295, not that int"),
        (
            lambda: ANY.generate("abc", temperature=10**5000),
            "temperature: must be 0 or a number, 1e-10 to 1e+10, not",
        ),
        (
            lambda: ANY.generate("abc", stop={"go": 1}),
            "stop: must be a list, each text that is not empty",
        ),
        (
            lambda: ANY.generate("abc", sampling={"temperature": 1}),
            "sampling: unknown option; did you mean ",
        ),
        (lambda: ANY.generate("abc", on_round=5), "on_round: must be a function of a Round, not 5"),
        (lambda: ANY.generate(b"abc"), "prompts: must be a list of texts, not b'abc'"),
        (lambda: ANY.generate(None), "prompts: must be a list of texts, not None"),
        (lambda: ANY.generate({"prompt": "abc"}), "prompts: must be a list of texts, not {'prompt': 'abc'}"),
        (lambda: ANY.generate([5, "a"]), "prompt 0: prompt: must be text, not 5"),
        (lambda: ANY.stream([5, "a"]), "prompt: must be text, not [5, 'a']"),
        (lambda: ANY.batch("abc"), "prompts: must be a list of texts, not 'abc'"),
        (lambda: ANY.batch([{"prompt": "abc", 5: 3}]), "5: unknown option"),
        (lambda: ANY.score("abc", 5), "target: must be a list, each a whole number >= 0, not 5"),
        (lambda: ANY.score("abc", [1.5]), "target: must be a list, each a whole number >= 0, not [1.5]"),
        (lambda: generate(MODEL, Ids(), "abc", draft_model="t5-small"), "draft_model: must be a model, as"),
        (
            lambda: Session(MODEL, Ids(), options={"seed": 1}),
            "options: must be GenerationOptions(...)",
        ),
        (lambda: Session(MODEL, ANY.slots), "tokenizer: must be a tokenizer, as load gives, not 8"),
        (lambda: load(5), "a model must be a folder or a name, not int"),
        (lambda: load(TARGET, dtype=np.float16), "dtype: must be one of float32, bfloat16, float16, not <class"),
        (lambda: load(TARGET, quantize=4.0), "quantize: must be one of 4, 8, not 4.0"),
        (lambda: load(TARGET, quantize=4, group_size=0), "group_size: must be one of 32, 64, 128, not 0"),
        (lambda: load(TARGET, gguf_file=5), "gguf_file '5': no such file, here or in"),
    ],
    ids=range(23),
)
def test_invalid_arguments_are_named_in_one_line(call: Callable[[], Any], named: str) -> None:
    with pytest.raises(InputError) as error:
        for each in call():
            raise InputError(each.error)
    assert str(error.value).startswith(named) and "\n" not in str(error.value) and len(str(error.value)) < 450


def test_numpy_numbers_and_sets_are_accepted() -> None:
    expected = ANY.generate("abc", max_tokens=3, seed=5, temperature=0.5, stop=["zz"], eos_token_ids=[4, 5]).tokens
    numbers: Any = {"max_tokens": np.int64(3), "seed": np.uint8(5), "temperature": np.float64(0.5)}
    again = ANY.generate("abc", stop={"zz"}, eos_token_ids=np.array([4, 5]), **numbers)
    assert len(again.tokens) == len(expected) <= 3
    assert ANY.score("abc", np.array([5, 6])).tokens == [5, 6]
    assert len([*ANY.batch(("abc", "b"), slots=np.int64(2), max_tokens=2)]) == 2


def test_the_repr_of_a_session_is_one_line() -> None:
    shown = repr(Session(MODEL, Ids(), noisy_copy(MODEL), GenerationOptions(seed=3), slots=2))
    assert shown == "<Session: target T5, draft T5, options {'seed': 3}, 2 slots>"
    assert "no draft model, options {}" in repr(Session(MODEL, Ids()))
