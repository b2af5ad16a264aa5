"""Prompts that cannot be prepared fail by themselves."""

from __future__ import annotations

import pytest

from speculative_decoding import GenerationOptions, InputError, Session
from speculative_decoding.server.client_request import ClientRequest
from speculative_decoding.server.decoding_thread import submit
from speculative_decoding.server.limits import Limits
from speculative_decoding.server.prompts import PromptQueue, client_prompts
from tests.support.tiny import tiny_model
from tests.support.together import Letters


@pytest.mark.parametrize(("error", "status"), [(MemoryError("planted"), 500), (InputError("planted"), 400)])
def test_a_failing_planner_fails_one_prompt(
    error: Exception, status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The decoding thread takes several prompts at once; an exception would lose the others."""
    session = Session(tiny_model(), Letters(), options=GenerationOptions(drafter="none", max_tokens=3))
    queue = PromptQueue(session, Limits())
    draft_length = session.planner.draft_length
    results = iter([error])

    def fails_once(options: GenerationOptions, slots: int) -> object:
        if (planted := next(results, None)) is not None:
            raise planted
        return draft_length(options, slots)

    monkeypatch.setattr(session.planner, "draft_length", fails_once)
    items = [client_prompts([(prompt, session.options)])[0] for prompt in ("abc", "fed")]
    clients = [ClientRequest([item]) for item in items]
    for call in [call for item in items for call in submit(queue, item)]:
        call()
    assert clients[0].error is not None and clients[0].error.status == status
    assert queue.active == [items[1]] and clients[1].error is None
