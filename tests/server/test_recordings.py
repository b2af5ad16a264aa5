"""The order in which recordings get slots, with a scheduler whose outputs end when the test says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from speculative_decoding import InputError
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.server.client_request import ClientRequest
from speculative_decoding.server.recordings import ClientRecording, RecordingQueue
from speculative_decoding.speech.options import TranscriptionOptions
from speculative_decoding.speech.scheduler import TranscriptionEvent


class Outputs:
    """A scheduler that decodes nothing. `end` ends the output of a recording that has a slot."""

    def __init__(self) -> None:
        self.problem: Exception | None = None  # of the next recording
        self.failed: Exception | None = None  # of the next output
        self.paused: list[int] = []
        self.with_slot: list[int] = []

    @property
    def running(self) -> int:
        return len(self.with_slot)

    def start(self, number: int, task: Any) -> list[Any]:
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

    def decode_round(self) -> list[Any]:
        return []

    def cancel(self, number: int) -> None:
        for numbers in (self.paused, self.with_slot):
            if number in numbers:
                numbers.remove(number)

    def end(self, number: int) -> None:
        self.with_slot.remove(number)
        self.paused.append(number)


def submit(work: RecordingQueue, client: str) -> ClientRecording:
    item = ClientRecording(cast(Any, SimpleNamespace(speech=None)), TranscriptionOptions(), GenerationOptions(), client)
    item.client = cast(Any, ClientRequest([item]))
    work.submit(item)
    for call in work.step():
        call()
    return item


def test_a_next_output_waits_for_the_first_outputs_that_began_before_it_wanted_a_slot() -> None:
    outputs = Outputs()
    work = RecordingQueue(cast(Any, outputs), slots=2)
    long, first, second = range(3)
    submit(work, "long")
    assert outputs.with_slot == [long]
    newcomer = submit(work, "a")
    assert outputs.with_slot == [long, first]
    outputs.end(long)
    work.step()
    work.step()
    assert outputs.with_slot == [first] and work.waiting == 1  # although a slot is free
    submit(work, "b")
    assert outputs.with_slot == [first, second]
    work.cancel(newcomer)
    work.step()
    assert outputs.with_slot == [second, long]  # the second newcomer came later, so it holds nothing back


@pytest.mark.parametrize("stage", ["start", "output"])
def test_a_recording_that_cannot_be_transcribed_fails_alone(stage: str) -> None:
    outputs = Outputs()
    work = RecordingQueue(cast(Any, outputs), slots=2)
    good = submit(work, "good")
    setattr(outputs, "problem" if stage == "start" else "failed", InputError("planted", "initial_prompt"))
    error = submit(work, "bad").client.error
    assert error is not None and error.message == "prompt: planted"
    assert outputs.with_slot == [0] and work.active == [good] and good.client.error is None
    assert not outputs.paused and (work.decoding, work.waiting, work.finished) == (1, 0, 0)
