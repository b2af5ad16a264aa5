"""Tests the start and the end of the decoding thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from speculative_decoding import GenerationOptions, InputError, Session
from speculative_decoding.draft_length.adaptive import LONGEST
from speculative_decoding.loading.tokenizer import Vocabulary
from speculative_decoding.server.decoding_thread import DecodingThread, warm_up
from speculative_decoding.server.limits import Limits
from tests.support.tiny import tiny_model
from tests.support.together import Letters


def ending(open_session: Callable[[], AbstractContextManager[Session]], *, stops: bool = False) -> list[Any]:
    """Run a decoding thread. Returns the sessions and errors that it reports."""
    found: list[Any] = []

    async def run() -> None:
        thread = DecodingThread(open_session, Limits())
        ended = asyncio.Event()

        def on_ready(session: Session) -> None:
            found.append(session)
            if stops:
                thread.stop()

        def on_end(error: Exception | None) -> None:
            found.append(error)
            ended.set()

        thread.start(on_ready, on_end)
        await ended.wait()
        if not stops:
            thread.stop()

    asyncio.run(run())
    return found


@pytest.mark.parametrize("error", [InputError("planted"), OSError("planted")])
def test_an_error_while_the_models_are_loaded_ends_the_thread(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """User errors are printed in one line. All other errors are logged with a traceback."""

    def fails() -> Any:
        raise error

    assert ending(fails) == [error]
    assert ("Traceback" in caplog.text) == isinstance(error, OSError)


def test_a_stopped_thread_ends_without_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """The log also explains at the start why drafts may change a token."""
    session = Session(tiny_model(), Letters(), options=GenerationOptions(drafter="none", max_tokens=2))
    session.planner.exactness_note = lambda options, slots=1: "planted"  # type: ignore[method-assign]
    assert ending(lambda: nullcontext(session), stops=True) == [session, None]
    assert "planted" in caplog.text


def test_all_draft_lengths_are_compiled_even_if_the_draft_model_writes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = tiny_model(), tiny_model(seed=8)
    target.pieces, draft.pieces = (Vocabulary({piece: 0}).pieces for piece in "ab")
    options = GenerationOptions(num_draft_tokens="auto")
    session = Session(target, Letters(), draft, options, draft_tokenizer=Letters())
    monkeypatch.setattr(session.planner, "prepare", lambda *_: None)
    widths: dict[int, set[int]] = {id(target): set(), id(draft): set()}
    decode = type(target).decode

    def recorded(self: Any, tokens: Any, cache: Any) -> Any:
        widths[id(self)].add(tokens.shape[1])
        return decode(self, tokens, cache)

    monkeypatch.setattr(type(target), "decode", recorded)
    warm_up(session, 2)
    costs = session.planner.widths(session.options_with({}), 2).costs(1)
    assert widths[id(target)] >= {costs.padded_width(1 + length) for length in range(LONGEST + 1)} and widths[id(draft)]
