"""Tests that a prompt that cannot be prepared fails alone, and that samples share the encoding of a prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from speculative_decoding import GenerationOptions, InputError, Session
from speculative_decoding.server.client_request import ClientRequest
from speculative_decoding.server.decoding_thread import new_lane
from speculative_decoding.server.lane import Lane
from speculative_decoding.server.limits import Limits
from speculative_decoding.server.prompts import client_prompts
from tests.support.tiny import tiny_model
from tests.support.together import Letters


def call_all(lane: Lane) -> None:
    calls, lane.calls = lane.calls, []
    for call in calls:
        call()


@pytest.mark.parametrize(("error", "status"), [(MemoryError("planted"), 500), (InputError("planted"), 400)])
def test_a_failing_planner_fails_one_prompt(error: Exception, status: int, caplog: pytest.LogCaptureFixture) -> None:
    """The decoding thread submits several prompts in a loop; an uncaught exception would lose the others."""
    session = Session(tiny_model(), Letters(), options=GenerationOptions(drafter="none", max_tokens=3))
    lane = new_lane(session, Limits())
    draft_length = session.planner.draft_length
    results = iter([error])

    def fails_once(options: GenerationOptions, slots: int) -> object:
        if (planted := next(results, None)) is not None:
            raise planted
        return draft_length(options, slots)

    session.planner.draft_length = fails_once  # type: ignore[method-assign, assignment]
    items = [client_prompts([(prompt, session.options)])[0] for prompt in ("abc", "fed")]
    clients = [ClientRequest([item]) for item in items]
    for item in items:
        lane.submit(item)
    call_all(lane)
    assert clients[0].error is not None and clients[0].error.status == status
    assert lane.active == [items[1]] and clients[1].error is None


def test_samples_of_a_prompt_are_encoded_once_and_equal_those_of_generate() -> None:
    options = GenerationOptions(drafter="none", max_tokens=6, temperature=1.0, seed=7, num_return_sequences=3)
    session = Session(tiny_model(), Letters())
    expected = [each.text for each in session.generate("fed", **vars(options)).sequences]
    encoded: list[int] = []
    encode_rows = session.model.encode_rows

    def counted(sources: Sequence[Any]) -> Any:
        encoded.append(len(sources))
        return encode_rows(sources)

    session.model.encode_rows = counted  # type: ignore[method-assign]

    async def decode(leaves: bool) -> list[str | None]:
        lane = new_lane(session, Limits())
        client = ClientRequest(client_prompts([("fed", options)]))
        for item in client.items:
            lane.submit(item)
        call_all(lane)
        await client.wait_until_queued()
        if leaves:
            lane.cancel(client.items[1])
            assert lane.is_idle and not lane.active
            return [each.text for each in client.items]
        while lane.active:
            lane.step()
            call_all(lane)
        await client.wait_until_finished()
        return [each.text for each in client.items]

    assert asyncio.run(decode(leaves=False)) == expected and encoded == [1]
    assert asyncio.run(decode(leaves=True)) == ["", "", ""]
