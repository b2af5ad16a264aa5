"""Tests the order of turns and the notification of clients, with a scheduler whose outputs end on request."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from speculative_decoding import InputError
from speculative_decoding.decoding.results import GenerationStats
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.server.client_request import ClientRequest
from speculative_decoding.server.lane import Lane
from speculative_decoding.server.live_streams import ClientStream
from speculative_decoding.server.transcription_format import ClientRecording
from speculative_decoding.speech.live.update import LiveUpdate
from speculative_decoding.speech.options import TranscriptionOptions
from speculative_decoding.speech.scheduler import TranscriptionEvent
from speculative_decoding.speech.transcription import Transcription

SLOTS, EXTRA = 2, 1


class Outputs:
    """A scheduler that decodes nothing. `end` ends the output of an item that has a slot.

    Attributes:
        problem: The error of the next item.
        failed: The error of the next output.
        next: The progress that the next round gives.
    """

    def __init__(self) -> None:
        self.problem: Exception | None = None
        self.failed: Exception | None = None
        self.next: list[Any] = []
        self.paused = []
        self.with_slot: list[int] = []
        self.cancelled: list[int] = []

    @property
    def running(self) -> int:
        return len(self.with_slot)

    @property
    def waiting(self) -> int:
        return len(self.paused)

    @property
    def free_turns(self) -> int:
        return SLOTS + EXTRA - len(self.with_slot)

    @property
    def is_idle(self) -> bool:
        return not (self.with_slot or self.paused)

    def open_stream(self, options: Any) -> Any:
        return SimpleNamespace(append=lambda samples: None, finish=lambda: None)

    def start(self, number: int, item: Any) -> list[Any]:
        if self.problem is not None:
            raise self.problem
        self.paused.append(number)
        return []

    def resume(self, number: int) -> list[Any]:
        self.paused.remove(number)
        if self.failed is not None:
            return [TranscriptionEvent(number, [], 0.0, 0.0, None, error=self.failed)]
        self.with_slot.append(number)
        return []

    def decode_round(self) -> Iterator[Any]:
        found, self.next = self.next, []
        for each in found:
            if isinstance(each, Exception):
                raise each
            yield each

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)
        for numbers in (self.paused, self.with_slot):
            if number in numbers:
                numbers.remove(number)

    def end(self, number: int) -> None:
        self.with_slot.remove(number)
        self.paused.append(number)


def submit(work: Lane, client: str) -> ClientRecording:
    item = ClientRecording(cast(Any, SimpleNamespace(speech=None)), TranscriptionOptions(), GenerationOptions(), client)
    item.client = cast(Any, ClientRequest([item]))
    work.submit(item)
    run(work)
    return item


def run(work: Lane) -> None:
    work.step()
    calls, work.calls = work.calls, []
    for call in calls:
        call()


def test_a_next_output_waits_for_the_first_outputs_that_began_before_it_wanted_a_slot() -> None:
    outputs = Outputs()
    work = Lane(cast(Any, outputs), EXTRA)
    long, first, second = range(3)
    submit(work, "long")
    assert outputs.with_slot == [long]
    newcomer = submit(work, "a")
    assert outputs.with_slot == [long, first]
    outputs.end(long)
    work.step()
    work.step()
    assert outputs.with_slot == [first] and work.waiting == 1  # even though a slot is free
    submit(work, "b")
    assert outputs.with_slot == [first, second]
    work.cancel(newcomer)
    work.step()
    assert outputs.with_slot == [second, long]  # `long` does not wait for items that arrived after it


@pytest.mark.parametrize("stage", ["start", "output"])
def test_a_recording_that_cannot_be_transcribed_fails_alone(stage: str) -> None:
    outputs = Outputs()
    work = Lane(cast(Any, outputs), EXTRA)
    good = submit(work, "good")
    setattr(outputs, "problem" if stage == "start" else "failed", InputError("planted", "initial_prompt"))
    error = submit(work, "bad").client.error
    assert error is not None and error.message == "prompt: planted"
    assert outputs.with_slot == [0] and work.active == [good] and good.client.error is None
    assert not outputs.paused and (work.decoding, work.waiting, work.finished) == (1, 0, 0)


def test_logits_that_are_not_finite_end_only_their_item(caplog: pytest.LogCaptureFixture) -> None:
    outputs = Outputs()
    work = Lane(cast(Any, outputs), EXTRA)
    streams = [ClientStream({}, wake=lambda: None) for _ in range(2)]
    for each in streams:
        each.client = cast(Any, ClientRequest([each]))
        work.submit(each)
    good = LiveUpdate(" a", "", 1.0, GenerationStats(), number=1)
    outputs.next = [good._replace(number=0, is_last=True, error=ArithmeticError("planted")), good]
    with caplog.at_level(logging.ERROR):
        run(work)
    error = streams[0].client.error
    assert error is not None and error.code == "not_finite" and "planted" in caplog.text
    assert work.active == [streams[1]] and work.finished == 1


def test_live_speech_has_a_slot_at_once_although_recordings_have_all() -> None:
    outputs = Outputs()
    work = Lane(cast(Any, outputs), EXTRA)
    for client in "abc":
        submit(work, client)
    submit(work, "late")
    assert outputs.with_slot == [0, 1, 2] and work.waiting == 1
    stream = ClientStream({}, wake=lambda: None)
    stream.client = cast(Any, ClientRequest([stream]))
    work.submit(stream)
    run(work)
    assert outputs.with_slot == [0, 1, 2, 4]
    outputs.end(4)
    run(work)
    assert outputs.with_slot == [0, 1, 2, 4]


def test_a_cancelled_item_is_dropped_whether_it_waits_or_has_a_slot() -> None:
    outputs = Outputs()
    work = Lane(cast(Any, outputs), EXTRA)
    items = [submit(work, client) for client in "abcd"]
    for item in (items[0], items[3], items[0]):
        work.cancel(item)
    assert outputs.cancelled == [0, 3] and work.active == items[1:3] and not outputs.paused
    run(work)
    assert outputs.with_slot == [1, 2] and (work.decoding, work.waiting) == (2, 0)


def test_what_a_round_has_finished_before_it_fails_reaches_its_client() -> None:
    outputs = Outputs()
    work = Lane(cast(Any, outputs), EXTRA)
    items = [submit(work, client) for client in "ab"]
    result = Transcription("a", [], "en", 1.0, GenerationStats())
    outputs.next = [TranscriptionEvent(0, [], 1.0, 1.0, "en", result), MemoryError("planted")]
    with pytest.raises(MemoryError):
        work.step()
    assert work.active == items[1:] and len(work.calls) == 1
    work.calls[0]()
    assert items[0].client.unfinished == 0 and items[0].client.error is None
