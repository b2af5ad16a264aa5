"""The order in which recordings get slots, with a scheduler whose outputs end when the test says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.server import recordings
from speculative_decoding.server.limits import Limits
from speculative_decoding.server.recordings import ClientRecording, RecordingQueue
from speculative_decoding.speech.options import TranscriptionOptions


class Outputs:
    """A scheduler that decodes nothing. `end` ends the output of a recording that has a slot."""

    audio = SimpleNamespace(window_frames=3000)

    def __init__(self) -> None:
        self.paused: list[int] = []
        self.with_slot: list[int] = []

    @property
    def running(self) -> int:
        return len(self.with_slot)

    def task(self, recording: Any, options: Any) -> None: ...

    def start(self, number: int, task: None) -> list[Any]:
        self.paused.append(number)
        return []

    def resume(self, number: int) -> list[Any]:
        self.paused.remove(number)
        self.with_slot.append(number)
        return []

    def decode_round(self) -> list[Any]:
        return []

    def seek(self, number: int) -> int:
        return 0

    def cancel(self, number: int) -> None:
        self.with_slot.remove(number)

    def end(self, number: int) -> None:
        self.with_slot.remove(number)
        self.paused.append(number)


def test_a_next_output_waits_for_the_first_outputs_that_began_before_it_wanted_a_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outputs = Outputs()
    monkeypatch.setattr(recordings, "new_scheduler", lambda *_: outputs)
    session: Any = SimpleNamespace(model=SimpleNamespace(audio=None))
    work = RecordingQueue(session, Limits(slots=2))

    def submit(client: str) -> ClientRecording:
        item = ClientRecording(cast(Any, None), TranscriptionOptions(), GenerationOptions(), client)
        item.client = cast(Any, SimpleNamespace(on_queued=None))
        work.submit(item)
        work.step()
        return item

    long, first, second = range(3)
    submit("long")
    assert outputs.with_slot == [long]
    newcomer = submit("a")
    assert outputs.with_slot == [long, first]
    outputs.end(long)
    work.step()
    work.step()
    assert outputs.with_slot == [first] and work.waiting == 1  # although a slot is free
    submit("b")
    assert outputs.with_slot == [first, second]
    work.cancel(newcomer)
    work.step()
    assert outputs.with_slot == [second, long]  # the second newcomer came later, so it holds nothing back
