"""Errors as records: each front end shows its own name for the options that they mention."""

import ast
import copy
import inspect
import pickle
from difflib import SequenceMatcher
from pathlib import Path

import pytest

from speculative_decoding import GenerationOptions, InputError, Session, errors, load
from speculative_decoding.cli import console_commands
from speculative_decoding.cli.main import prompt_parser
from speculative_decoding.cli.verify import verify_parser
from speculative_decoding.errors import MAX_MISSPELT, Message, Name, UnknownOption, similar_names
from speculative_decoding.loading.lookup import similar_model
from tests.support.paths import ROOT
from tests.support.subpackages import needs_subpackage

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


def test_only_placeholders_are_replaced() -> None:
    error = InputError(Message("{value} without {word_timestamps}", value=TRICKY), "stop", TRICKY)
    assert error.message(str.upper) == f"STOP: {TRICKY} without WORD_TIMESTAMPS; {TRICKY}"
    expected = f"{TRICKY}: STOP: {TRICKY} without WORD_TIMESTAMPS; {TRICKY}"
    assert error.at(TRICKY).message(str.upper) == expected
    assert InputError(TRICKY).message(str.upper) == TRICKY


@needs_subpackage("speech")  # defines `force`, which messages of runs/ mention
def test_each_placeholder_has_a_value_or_is_an_option() -> None:
    paths = {*(ROOT / "speculative_decoding").rglob("*.py")} - {Path(errors.__file__)}
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    options = {*inspect.signature(load).parameters, *inspect.signature(Session).parameters}
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).startswith(("A[", "Annotated[")):
            options.add(ast.unparse(node.target))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".add_argument"):
            options |= {ast.unparse(each).strip("'-").replace("-", "_") for each in node.args}
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "Message"]
    for call in calls:
        values = {keyword.arg for keyword in call.keywords}
        template = call.args[0]
        assert isinstance(template, ast.Constant), f"not a literal: {ast.unparse(call)}"
        placeholders = set(errors.PLACEHOLDER.findall(template.value))
        assert not set("{}") & set(errors.PLACEHOLDER.sub("", template.value)), ast.unparse(call)
        assert values <= placeholders and placeholders - values <= options, ast.unparse(call)
        assert not values & options, f"hides an option: {ast.unparse(call)}"
    assert len(calls) > 99


def test_a_command_line_names_a_flag_only_if_it_has_it() -> None:
    main, verify = prompt_parser().name_of, verify_parser("verify").name_of
    assert main("slots") == "slots" and verify("slots") == "--slots" and verify("prompts") == "FILE"  # positional
    assert main("prompt") == "prompt" and main("on_round") == "on_round"  # prompts are also read from standard input
    assert main("src_lang") == "--source-language"


def test_an_error_can_be_sent_to_another_process() -> None:
    for error in (InputError(Message("a {b} {c}", c=Name("d")), "e", "f"), UnknownOption("e", "f")):
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
    assert similar_model(name, ["t5-web-docs"]) is None
