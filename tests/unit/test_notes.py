"""Notes name the caller's line. Python shows each once for each line, and the command line each time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from speculative_decoding import Session
from speculative_decoding.cli.common import run
from tests.support.tiny import tiny_model
from tests.support.together import Letters

TEXT = Session(tiny_model(), Letters())


@pytest.fixture(autouse=True)
def usual_filters() -> Iterator[None]:
    """Filter warnings as a Python process does that got no -W."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        yield


CALLS: dict[str, Callable[[], Any]] = {
    "generate": lambda: TEXT.generate("abc", max_tokens=2, top_k=5),
    "stream": lambda: list(TEXT.stream("abc", max_tokens=2, top_k=5)),
    "rounds": lambda: list(TEXT.rounds("abc", max_tokens=2, top_k=5)),
    "batch": lambda: list(TEXT.batch(["abc"], max_tokens=2, top_k=5)),
    "row of a batch": lambda: list(TEXT.batch([{"prompt": "abc", "max_tokens": 2, "top_k": 5}])),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_note_names_the_line_of_the_caller(name: str) -> None:
    call = CALLS[name]
    with warnings.catch_warnings(record=True) as caught:
        for _ in range(2):
            call()
    (found,) = caught
    assert (found.filename, found.lineno) == (__file__, call.__code__.co_firstlineno)
    globals().get("__warningregistry__", {}).clear()


def test_another_line_gets_the_same_note() -> None:
    with warnings.catch_warnings(record=True) as caught:
        list(TEXT.stream("abc", max_tokens=2, top_p=0.5))
        list(TEXT.stream("abc", max_tokens=2, top_p=0.5))
    assert [str(each.message) for each in caught] == [
        "top_p: has no effect at temperature 0; leave one of them out"
    ] * 2


def test_the_command_line_shows_the_notes_of_each_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # restored afterwards

    def decode_twice() -> int:
        for _ in range(2):
            TEXT.generate("abc", max_tokens=2, top_k=5)
        return 0

    assert run("main.py", decode_twice) == 0
    assert capsys.readouterr().err.count("main.py: note: top_k: has no effect at temperature 0") == 2
    warnings.simplefilter("ignore")  # -W ignore
    assert run("main.py", decode_twice) == 0
    assert not capsys.readouterr().err
