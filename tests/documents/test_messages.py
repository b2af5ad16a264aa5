"""In ICU messages, exactly the text that ICU displays is decoded, and the syntax is copied."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from speculative_decoding.documents.messages import ARGUMENT, SYNTAX, message_parts, write_message
from speculative_decoding.documents.pieces import Piece
from tests.documents.decoders import document_with
from tests.documents.properties import parts_in, require_properties

# Message -> its texts according to MessagePattern of ICU 72.1 (PyICU 2.17)
RECORDED: list[tuple[str, list[str]]] = json.loads((Path(__file__).parent / "icu_messages.json").read_text("utf-8"))
MESSAGES = [message for message, _ in RECORDED]
# ICU refuses the last four; the others have no arguments with branches
OTHERS = [
    "{a, number}",
    "plural, {name}",
    "{n, plural}",
    "{n, plural, }",
    "{n, plural, one # file}",
    "{n, plural, other {x}",
]


def texts_of(message: str) -> list[str]:
    """Return the texts of a message without its syntax."""
    found = [""]
    for part in message_parts(message):
        if part.type == SYNTAX:
            found.append("")
        else:
            found[-1] += message[part.start : part.end]
    return [text for text in found if text]


def syntax_of(message: str) -> list[str]:
    """Return the syntax and the arguments of a message."""
    return [message[part.start : part.end] for part in message_parts(message) if part.type in (SYNTAX, ARGUMENT)]


@pytest.mark.parametrize(("message", "texts"), RECORDED)
def test_texts_are_those_of_icu(message: str, texts: list[str]) -> None:
    assert texts_of(message) == texts
    assert "".join(message[part.start : part.end] for part in message_parts(message)) == message


@pytest.mark.parametrize("text", OTHERS)
def test_other_texts_are_no_messages(text: str) -> None:
    assert message_parts(text) == []


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_has_the_properties_of_documents(message: str) -> None:
    require_properties(message.replace("\n", " ") + "\n")
    require_properties(json.dumps({"text": message}) + "\n", "jsonl")


MODELS: list[Callable[[str], str]] = [
    lambda text: "x",
    lambda text: text.replace("#", "").replace("{", "(").replace("}", ")").upper(),
    lambda text: f"L'{text}' {{",
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("message", [each for each in MESSAGES if "'" not in each])
def test_syntax_survives_whatever_a_model_does(message: str, model: Callable[[str], str]) -> None:
    line = json.dumps({"text": message}) + "\n"
    written = json.loads(document_with(line, model, "jsonl"))["text"]
    assert syntax_of(written) == syntax_of(message)


# Displayed text -> the branch that ICU displays as this text
WRITTEN = [
    ("it's", "it's"),
    ("l'", "l''"),
    ("a''b", "a'''b"),
    ("don't # x", "don't # x"),
    ("'#", "''#"),
    ("a { b", "a '{' b"),
    ("'}'", "'''}'''"),
]


@pytest.mark.parametrize(("text", "written"), WRITTEN)
def test_an_apostrophe_never_begins_a_quotation(text: str, written: str) -> None:
    assert write_message(text) == written


def test_apostrophes_are_doubled_as_in_the_source() -> None:
    line = json.dumps({"text": "It''s {n, plural, one {one o''clock} other {# o''clock}}"}) + "\n"
    outputs = {"It's": "C'est", "one o'clock": "l'heure", "o'clock": "l'heure"}
    written = document_with(line, outputs.__getitem__, "jsonl")
    assert json.loads(written)["text"] == "C''est {n, plural, one {l''heure} other {# l''heure}}"


def test_each_branch_of_a_message_is_a_piece() -> None:
    line = '{"text": "{n, plural,\\n  one {# file. Open it.}\\n  other {# files}\\n}"}\n'
    pieces = [part.text for part in parts_in(line, "jsonl") if isinstance(part, Piece)]
    assert pieces == ["file.", "Open it.", "files"]


def test_a_message_with_thousands_of_tags_takes_linear_time() -> None:
    message = "{n, plural, other {#}}" + "<a href='x={url}'>here</a> " * 20_000
    arguments = [message[part.start : part.end] for part in message_parts(message) if part.type == ARGUMENT]
    assert arguments == ["#", *["<a href='x={url}'>"] * 20_000]


TAGS = [  # a tag is a single argument if it consists of text and arguments
    ("<a href={url}>page</a>", ["<a href={url}>"]),
    ("go <a b={x}{y}>on</a> <i>{z}</i>.", ["<a b={x}{y}>", "{z}"]),
    ("<a x={n, plural, other {b}}>", []),
]


@pytest.mark.parametrize(("text", "arguments"), TAGS)
def test_a_tag_with_an_argument_is_one(text: str, arguments: list[str]) -> None:
    message = "{n, plural, other {one}} " + text
    parts = message_parts(message)
    assert [message[part.start : part.end] for part in parts if part.type == ARGUMENT] == arguments
    assert "".join(message[part.start : part.end] for part in parts) == message
