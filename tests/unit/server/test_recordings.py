"""Slots of recordings: how many there are, and who gets them."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from typing import Any

from speculative_decoding import GenerationOptions, Session
from speculative_decoding.server.client_request import ClientRequest
from speculative_decoding.server.limits import Limits
from speculative_decoding.server.recordings import RecordingWork, ServedRecording
from speculative_decoding.speech.mel import open_audio
from tests.support.speech import Letters, noise, speech_model

MODEL = speech_model()
FIRST = {"no_speech_threshold": None, "logprob_threshold": None, "compression_ratio_threshold": None, "sample_len": 8}


class AtOnce:
    """Reads frames when they are asked for, as `ReadingThreads`."""

    def run(self, client: str, steps: Generator[None, None, None]) -> Future[None]:
        future: Future[None] = Future()
        for _ in steps:
            pass
        future.set_result(None)
        return future


def work(slots: int) -> RecordingWork:
    session = Session(MODEL, Letters(), options=GenerationOptions(drafter="none"))
    reading: Any = AtOnce()
    return RecordingWork(session, Limits(slots=slots), reading, lambda: None)


def submitted(work: RecordingWork, seed: int, seconds: float, address: str = "x") -> ServedRecording:
    item = ServedRecording(open_audio(noise(seed, seconds), 6), FIRST, address)
    ClientRequest([item])
    work.submit(item)()
    return item


def test_a_newcomer_gets_a_slot_in_the_next_round() -> None:
    """Even if all slots are busy, since one more is kept for first outputs."""
    found = work(2)
    long = [submitted(found, seed, 9.0) for seed in range(4)]
    found.step()
    assert (found.decoding, found.waiting) == (3, 1)  # two slots, and a newcomer
    most = 0
    while found.decoding + found.waiting == 4 and not all(item in found._numbers for item in long):
        found.step()
        assert found.decoding <= 3
    while found.decoding > 2:  # its first output ends
        found.step()
    for _ in range(20):
        found.step()
        most = max(most, found.decoding)
    assert most == 2 and found.waiting == 2
    newcomer = submitted(found, 9, 0.5)
    found.step()
    assert newcomer in found._numbers and found.decoding == 3
    while newcomer in found.active:
        found.step()
    assert all(item in found.active for item in long)


def test_turns_are_shared_by_clients() -> None:
    """A client with one long recording gets as many outputs as one with three."""
    found = work(1)
    mine = submitted(found, 0, 60.0, "one")
    others = [submitted(found, seed, 60.0, "many") for seed in range(1, 4)]
    for _ in range(400):
        found.step()
    assert mine in found.active and all(item in found.active for item in others)
    had = [found._scheduler._paused.get(found._numbers[item]) for item in (mine, *others)]
    running = {one.number: one for one in [*found._scheduler._decoding.values(), *filter(None, had)]}
    mine_seek, *seeks = (running[found._numbers[item]].transcriber.seek for item in (mine, *others))
    assert mine_seek > 2 * max(seeks) and min(seeks) > 0, (mine_seek, seeks)


def test_a_cancelled_recording_frees_its_slot() -> None:
    found = work(1)
    items = [submitted(found, seed, 3.0) for seed in range(3)]
    found.step()
    for item in items:
        found.cancel(item)
        found.cancel(item)
    found.step()
    assert found.is_idle and found.decoding == found.waiting == 0 and not found._items
