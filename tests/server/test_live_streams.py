"""Tests live speech in the decoding thread, together with recordings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from speculative_decoding import GenerationOptions, Session
from speculative_decoding.server.client_request import ClientItem
from speculative_decoding.server.decoding_thread import new_lane
from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.lane import Lane
from speculative_decoding.server.limits import Limits
from speculative_decoding.server.live_streams import ClientStream
from speculative_decoding.server.realtime_audio import PCM
from speculative_decoding.server.transcription_format import ClientRecording
from speculative_decoding.speech.live.resampler import Resampler
from speculative_decoding.speech.options import TranscriptionOptions
from speculative_decoding.speech.recording import open_audio
from tests.support.speech import Letters, noise, speech_model

MODEL = speech_model(0)
PIECE_SECONDS = 1.12  # the length of two windows
SHORT: dict[str, Any] = {"sample_len": 12}
FIRST: dict[str, Any] = {**SHORT, "logprob_threshold": None, "compression_ratio_threshold": None}  # without fallbacks


class Client:
    """Records the progress and errors that the decoding thread reports for an item."""

    def __init__(self, item: ClientItem) -> None:
        item.client = cast(Any, self)
        self.updates: list[Any] = []
        self.error: ServerError | None = None

    def on_queued(self) -> None: ...

    def on_progress(self, item: ClientItem, progress: Any) -> None:
        item.add(progress)
        self.updates.append(progress)

    def fail(self, error: ServerError) -> None:
        self.error = error


def session(drafter: str = "none") -> Session:
    return Session(MODEL, Letters(), None, GenerationOptions(drafter=drafter, num_draft_tokens=3))


def pieces(seed: int, count: int = 2) -> list[NDArray[np.int16]]:
    """Return speech at 24 kHz."""
    samples = np.random.default_rng(seed).normal(scale=3000, size=(count, int(PIECE_SECONDS * PCM.rate)))
    return [*samples.astype(np.int16)]


def expected(speech: list[NDArray[np.int16]], **options: Any) -> list[str]:
    """Return the final text of each hypothesis from `transcribe_live`."""
    resampler = Resampler(PCM.rate)
    chunks = [*map(resampler.append, speech), resampler.finish()]
    return [update.final for update in session().transcribe_live(chunks, reads_ahead=False, **SHORT, **options)]


def call_all(lane: Lane) -> None:
    calls, lane.calls = lane.calls, []
    for call in calls:
        call()


def submit(lane: Lane, item: ClientItem) -> Client:
    client = Client(item)
    lane.submit(item)
    call_all(lane)
    return client


def run(lane: Lane) -> None:
    while not lane.is_idle:
        lane.step()
        call_all(lane)


def stream(**options: Any) -> ClientStream:
    return ClientStream(SHORT | options, wake=lambda: None)


def test_texts_do_not_depend_on_other_clients() -> None:
    """Texts also do not depend on drafts, or on how much speech has arrived before the decoding thread starts."""
    lane = new_lane(session("ngram"), Limits(slots=3))
    own: list[dict[str, Any]] = [{}, {"language": "en"}, {"initial_prompt": "fed cab"}]
    items = [stream(**options) for options in own]
    items[0].append(pieces(0)[0].tobytes())
    clients = [submit(lane, item) for item in items]
    run(lane)
    audio = noise(1, 0.5)
    recording = ClientRecording(open_audio(audio, [6]), TranscriptionOptions(**FIRST), session().options)
    listener = submit(lane, recording)
    for number in range(2):
        for seed, item in enumerate(items):
            if (seed, number) != (0, 0):
                item.append(pieces(seed)[number].tobytes())
        run(lane)
    assert lane.decoding == 3 and all(item.waiting_seconds < 1 for item in items)
    for item in items:
        item.finish()
    run(lane)
    for seed, (client, options) in enumerate(zip(clients, own, strict=True)):
        assert [update.final for update in client.updates] == expected(pieces(seed), **options)
        assert client.updates[-1].is_last and sum(bool(update.final) for update in client.updates) > 2
    assert listener.updates[-1].result.text == session().transcribe(audio, **FIRST).text
    assert lane.decoding == lane.waiting == 0 == len(lane.active)
    assert [item.finish_reason for item in items] == ["stop"] * 3
    assert items[0].stats is not None and items[0].stats.drafted_by_kind["text"] > 0


def test_a_cancelled_stream_frees_its_slot_even_while_it_is_decoded() -> None:
    lane = new_lane(session(), Limits(slots=1))
    gone, early = stream(), stream()
    gone.append(pieces(0)[0].tobytes())
    client = submit(lane, gone)
    lane.step()
    updates = len(client.updates)
    lane.cancel(early)  # before it is submitted
    for _ in range(2):
        lane.cancel(gone)
    run(lane)
    assert (lane.decoding, lane.active, len(client.updates)) == (0, [], updates)


def test_a_prompt_that_cannot_be_encoded_names_its_field() -> None:
    lane = new_lane(session(), Limits())
    item = stream(initial_prompt="<|en|>")
    error = submit(lane, item).error
    assert error is not None and error.param == "session.audio.input.transcription.prompt"
    assert lane.decoding == 0 and lane.is_idle


def test_a_stream_that_starts_while_its_client_ends_it_has_all_of_the_speech(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoding thread may start the stream at any time."""
    order: list[str] = []
    opened = SimpleNamespace(append=lambda samples: order.append("speech"), finish=lambda: order.append("end"))
    scheduler: Any = SimpleNamespace(open_stream=lambda options: opened, start=lambda number, stream: ())
    item = stream()
    item.append(pieces(0)[0].tobytes())
    pass_on = ClientStream._pass_on

    def starting(own: ClientStream, *samples: Any, **given: Any) -> None:
        own.start(scheduler, 0)
        pass_on(own, *samples, **given)

    monkeypatch.setattr(ClientStream, "_pass_on", starting)
    item.finish()
    assert order == ["speech", "speech", "end"]
