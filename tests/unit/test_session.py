"""Arguments of the methods of a session: wrong ones are named in one line. tests/integration decodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from speculative_decoding import GenerationOptions, InputError, Session, generate, load
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.sampling.options import option_specs
from tests.support.tiny import noisy_copy, tiny_model
from tests.support.together import Letters
from tests.typing.typed_calls import right_calls, wrong_calls

MODEL = tiny_model()
SESSION = Session(MODEL, Letters(), noisy_copy(MODEL))


def test_calls_that_mypy_accepts_run() -> None:
    right_calls(MODEL, Letters(), noisy_copy(MODEL))


def test_calls_that_mypy_rejects_raise() -> None:
    calls = wrong_calls(MODEL, Letters(), SESSION)
    assert len(calls) > 10
    for call in calls:
        with pytest.raises((InputError, TypeError)):
            call()


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((), {}, ".*missing 1 required positional argument: 'prompt'"),
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
    alone = Session(MODEL, Letters())
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
        ({"slots": 0}, "slots: must be a whole number >= 1, not 0"),
        ({"max_memory_gb": -1}, "max_memory_gb: must be a number above 0, not -1"),
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


ANY: Any = SESSION  # untyped, so that mypy accepts the wrong calls below
TARGET: Any = BUNDLED / "t5-web-docs"


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: ANY.generate("abc", seed=10**5000), "seed: must be a whole number, 0 to 4294967295, not that int"),
        (lambda: ANY.generate("abc", on_round=5), "on_round: must be a function of a Round, not 5"),
        (lambda: ANY.generate(b"abc"), "prompts: must be a list of texts, not b'abc'"),
        (lambda: ANY.generate([5, "a"]), "prompt 0: prompt: must be text, not 5"),
        (lambda: ANY.stream([5, "a"]), "prompt: must be text, not [5, 'a']"),
        (lambda: ANY.batch("abc"), "prompts: must be a list of texts, not 'abc'"),
        (lambda: ANY.batch([{"prompt": "abc", 5: 3}]), "5: unknown option"),
        (lambda: ANY.score("abc", [1.5]), "target: must be a list, each item a whole number >= 0, not [1.5]"),
        (lambda: generate(MODEL, Letters(), "abc", draft_model="t5-small"), "draft_model: must be a model, as"),
        (lambda: Session(MODEL, Letters(), options={"seed": 1}), "options: must be GenerationOptions(...)"),
        (lambda: Session(MODEL, ANY.slots), "tokenizer: must be a tokenizer, as load gives, not 8"),
        (
            lambda: Session(MODEL, Letters(), MODEL, draft_vocabulary=SimpleNamespace(ids=(1, 2))),
            "draft_vocabulary: must be a DraftVocabulary, not namespace(ids=(1, 2))",
        ),
        (lambda: load(5), "a model must be a folder or a name, not int"),
        (lambda: load(TARGET, dtype=np.float16), "dtype: must be one of float32, bfloat16, float16, not <class"),
        (lambda: load(TARGET, quantize=4, group_size=0), "group_size: must be one of 32, 64, 128, not 0"),
        (lambda: load(TARGET, gguf_file=5), "gguf_file '5': no such file, here or in"),
    ],
    ids=range(16),
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
    shown = repr(Session(MODEL, Letters(), noisy_copy(MODEL), GenerationOptions(seed=3), slots=2))
    assert shown == "<Session: target T5, draft T5, options {'seed': 3}, 2 slots>"
    assert "no draft model, options {}" in repr(Session(MODEL, Letters()))
