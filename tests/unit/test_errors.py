"""Errors as records: each front end shows its own name for the options that they mention."""

import copy
import pickle
from difflib import SequenceMatcher

import pytest

from speculative_decoding import GenerationOptions, InputError
from speculative_decoding.cli import console_commands
from speculative_decoding.cli.main import prompt_parser
from speculative_decoding.cli.verify import verify_parser
from speculative_decoding.errors import MAX_MISSPELT, Name, UnknownOption, similar_names
from speculative_decoding.loading.lookup import nearest

TRICKY = "num_draft_tokens {0} %s {word_timestamps} --top-k drafter"  # looks like names and placeholders


def caught(call: object) -> InputError:
    with pytest.raises(InputError) as error:
        call()  # type: ignore[operator]
    return error.value


def test_a_message_has_the_names_of_its_front_end() -> None:
    error = caught(lambda: GenerationOptions(num_return_sequences=3))
    assert error.field == "num_return_sequences"
    expected = "{}: 3 would return one text 3 times at {} 0; give {} >= 3, or a {} above 0"
    assert str(error) == expected.format("num_return_sequences", "temperature", "num_beams", "temperature")
    flags = ["--num-return-sequences", "--temperature", "--num-beams", "--temperature"]
    assert error.message(prompt_parser().name_of) == expected.format(*flags)


def test_only_marked_names_are_replaced() -> None:
    error = InputError((TRICKY, " without ", Name("word_timestamps")), "stop", TRICKY)
    assert error.message(str.upper) == f"STOP: {TRICKY} without WORD_TIMESTAMPS; {TRICKY}"
    assert error.at("line 3").message(str.upper) == f"line 3: STOP: {TRICKY} without WORD_TIMESTAMPS; {TRICKY}"
    assert InputError(TRICKY).message(str.upper) == TRICKY


def test_a_command_line_names_a_flag_only_if_it_has_it() -> None:
    main, verify = prompt_parser().name_of, verify_parser("verify").name_of
    assert main("slots") == "slots" and verify("slots") == "--slots" and verify("prompts") == "FILE"  # positional
    assert main("prompt") == "prompt" and main("on_round") == "on_round"  # prompts are also read from standard input
    assert main("src_lang") == "--source-language"


def test_an_error_can_be_sent_to_another_process() -> None:
    for error in (InputError(("a ", Name("b")), "c", "d"), UnknownOption("e", "f")):
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(other) is type(error) and other.message(str.upper) == error.message(str.upper)


@pytest.mark.parametrize("name", ["a" * (MAX_MISSPELT + 1), "language" * 150_000, "temperature" + " " * MAX_MISSPELT])
def test_a_long_name_is_compared_with_no_other(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to compare two names grows with the product of their lengths."""
    assert similar_names("temprature", ["temperature"]) == ["temperature"]
    monkeypatch.setattr(SequenceMatcher, "ratio", lambda _: pytest.fail("compared"))
    assert similar_names(name, ["temperature"]) == []
    caught(lambda: GenerationOptions().override({name: 1}))
    caught(lambda: console_commands.find(f"/{name}"))
    assert nearest(name, ["t5-web-docs"]) is None
