"""Drafts change nothing in live text, and several streams together write the same text as separately."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from speculative_decoding import GenerationOptions, InputError
from speculative_decoding.engine import Engine
from speculative_decoding.rows.scheduling import drive
from speculative_decoding.session import Session
from speculative_decoding.speech.api import new_scheduler
from speculative_decoding.speech.live import stream as live_stream
from speculative_decoding.speech.live.update import LiveUpdate
from speculative_decoding.speech.options import TranscriptionOptions
from speculative_decoding.speech.scheduler import Scheduler
from tests.support.speech import Letters, noise, speech_model
from tests.support.subpackages import needs_subpackage
from tests.support.tiny import noisy_copy, tiny_model

MODEL = speech_model(seed=12)
STEP = 0.1  # seconds; the window of the tiny model has 0.6
OPTIONS: dict[str, Any] = {"language": "en", "no_speech_threshold": None, "sample_len": 16}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "prompt, translated": {"initial_prompt": "abc", "task": "translate", "language": "de"},
    "without previous text, language detected": {"condition_on_previous_text": False, "language": None},
}
SECONDS = 1.2  # of speech; the window is cut twice


def chunks(seed: int, seconds: float = SECONDS) -> list[NDArray[np.float32]]:
    samples = noise(seed, seconds)
    return [samples[start : start + 1600] for start in range(0, len(samples), 1600)]


def live(seed: int = 2, session: Session | None = None, **options: Any) -> list[LiveUpdate]:
    session = session or Session(MODEL, Letters())
    found = session.transcribe_live(chunks(seed), every=STEP, reads_ahead=False, **OPTIONS | options)
    return [*found]


def seen(found: Sequence[LiveUpdate]) -> list[tuple[str, str, float, str | None, bool]]:
    """What a user sees."""
    return [(each.final, each.pending, each.seconds, each.language, each.is_last) for each in found]


def calls(found: Sequence[LiveUpdate]) -> int:
    return sum(each.stats.target_calls for each in found)


@pytest.mark.parametrize("setting", SETTINGS)
def test_drafts_change_nothing_and_save_calls(setting: str) -> None:
    expected = live(drafter="none", **SETTINGS[setting])
    assert sum(bool(each.final) for each in expected) > 2 and calls(expected) > 100
    assert calls(expected) == sum(each.stats.generated_tokens for each in expected)
    others: list[dict[str, Any]] = [{}, {"drafter": "ngram"}, {"draft_text": ["abc", "x" * 500]}]
    for drafts in [{"num_draft_tokens": 15}, *(others if setting == "default" else [])]:
        found = live(**SETTINGS[setting] | drafts)
        assert seen(found) == seen(expected)
        assert calls(found) < calls(expected)
        from_last = sum(each.stats.accepted_by_kind["text"] for each in found)  # the last hypothesis
        assert from_last > calls(expected) / 6


@pytest.mark.usefixtures("device")
def test_a_draft_model_changes_nothing() -> None:
    session = Session(MODEL, Letters(), draft_model=noisy_copy(MODEL))
    assert seen(live(session=session)) == seen(live())


def test_a_given_text_is_a_draft_from_the_first_hypothesis() -> None:
    alone = live()[0]
    given = live(draft_text=alone.pending)[0]
    assert given.stats.accepted_by_kind["text"] > 0 == alone.stats.accepted_by_kind["text"]
    assert given.stats.target_calls < alone.stats.target_calls


def test_the_language_is_detected_again_until_some_text_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = ["en", "de"] * 20
    detected = iter(codes)
    monkeypatch.setattr(live_stream, "detected_language", lambda *_: next(detected))
    found = live(language=None)
    first = next(number for number, each in enumerate(found) if each.final)
    assert first > 0 and [each.language for each in found[: first + 1]] == codes[: first + 1]
    assert {each.language for each in found[first:]} == {codes[first]} != {codes[first + 1]}


def scheduler_of(live_slots: int, slots: int = 1) -> Scheduler:
    return new_scheduler(Session(MODEL, Letters()), TranscriptionOptions(**OPTIONS), {}, slots, live_slots)


def run(scheduler: Scheduler, found: dict[int, list[Any]]) -> None:
    """Decode everything that is due, and add the events to those of their numbers."""
    for event in drive(scheduler, ()):
        found.setdefault(event.number, []).append(event)


@pytest.mark.usefixtures("device")
def test_streams_beside_a_recording_write_what_each_writes_alone() -> None:
    own: list[dict[str, Any]] = [{}, {"language": "de"}, {}]
    scheduler = scheduler_of(live_slots=len(own))
    streams = [scheduler.open_stream(options, STEP) for options in own]
    found: dict[int, list[Any]] = {}
    for number, stream in enumerate(streams):
        assert not [*scheduler.start(number, stream)]
    assert scheduler.is_idle and scheduler.wants_more
    audio = noise(5, SECONDS)
    found[9] = [*scheduler.submit((9, lambda: scheduler.open(audio)))]
    assert not scheduler.wants_more
    sounds = [chunks(i) for i in range(len(own))]
    for number, parts in enumerate(zip(*sounds, strict=True), 1):
        for stream, samples in zip(streams, parts, strict=True):
            stream.append(samples)
            if number == len(sounds[0]):
                stream.finish()
        run(scheduler, found)
    assert found.pop(9)[-1].result.text == Session(MODEL, Letters()).transcribe(audio, **OPTIONS).text
    alone = [live(i, **options) for i, options in enumerate(own)]
    # `live` finishes after the last hypothesis, `found` with it
    texts, expected = (
        [("".join(each.final for each in updates), updates[-1].is_last) for updates in all]
        for all in ([found[number] for number in range(len(own))], alone)
    )
    assert texts == expected and all(is_last and text for text, is_last in texts)


def test_a_cancelled_stream_frees_its_slot_and_does_not_disturb_others() -> None:
    scheduler = scheduler_of(live_slots=2)
    streams = [scheduler.open_stream(every=STEP) for _ in range(2)]
    for number, stream in enumerate(streams):
        assert not [*scheduler.start(number, stream)]
        stream.append(noise(3, 0.3))
    assert (len(scheduler.paused), scheduler.running) == (2, 2)
    assert not [*scheduler.step()]
    assert (len(scheduler.paused), scheduler.running) == (0, 2)
    for _ in range(2):
        scheduler.cancel(1)
    assert scheduler.running == 1
    for stream in streams:
        stream.finish()
    found: dict[int, list[Any]] = {}
    run(scheduler, found)
    assert [*found] == [0] and found[0][-1].is_last and scheduler.is_idle


def test_a_stream_waits_until_it_is_due_and_takes_no_slot_of_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[int] = []
    new_engine = Session.engine

    def recorded(session: Session, options: GenerationOptions, slots: int) -> Engine:
        engines.append(slots)
        return new_engine(session, options, slots)

    monkeypatch.setattr(Session, "engine", recorded)
    scheduler = scheduler_of(live_slots=3)
    stream = scheduler.open_stream(every=STEP)
    assert not [*scheduler.start(0, stream)]
    assert (scheduler.is_idle, scheduler.paused, scheduler.free_turns) == (True, [], 1)
    stream.append(noise(3, STEP))
    assert (scheduler.is_idle, scheduler.paused, scheduler.free_turns) == (False, [0], 1)
    assert not [*scheduler.resume(0)]
    stream.append(noise(4, STEP))  # it is due again, but still being decoded
    assert (scheduler.running, scheduler.paused, scheduler.free_turns) == (1, [], 1)
    assert [*scheduler.start(1, scheduler.open(noise(5, SECONDS)))]
    assert (scheduler.running, scheduler.paused, scheduler.free_turns) == (1, [1], 1)
    assert not [*scheduler.resume(1)]
    assert (scheduler.running, scheduler.paused, scheduler.free_turns) == (2, [], 0)
    assert engines == [3, 1]
    other = scheduler.open_stream(every=STEP)
    assert not [*scheduler.start(2, other)]
    for number in range(3):
        scheduler.cancel(number)
    for each in (stream, other):
        each.append(noise(4, STEP))
    assert (scheduler.is_idle, scheduler.paused, scheduler.free_turns) == (True, [], 1)


def test_reading_ahead_writes_the_text_of_what_was_heard_together() -> None:
    """A list of chunks arrives at once, or in parts, as the thread happens to be; all of it is heard."""
    session = Session(MODEL, Letters())
    found = [*session.transcribe_live(iter(chunks(2)), every=STEP, **OPTIONS)]
    assert found[-1].is_last and found[-1].seconds == pytest.approx(SECONDS) and found[-1].pending == ""
    assert sum(each.is_last for each in found) == 1


def test_bytes_are_16_bit_samples_wherever_they_are_divided() -> None:
    data = (np.concatenate(chunks(2)) * 32768).astype("<i2").tobytes()
    session = Session(MODEL, Letters())
    whole, parts = (
        [*session.transcribe_live(each, every=10, reads_ahead=False, **OPTIONS)]
        for each in ([data], [data[start : start + 1999] for start in range(0, len(data), 1999)])
    )
    assert seen(parts) == seen(whole) and whole[-1].seconds == SECONDS


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 0.5}, "temperature: has no effect on live speech"),
    ({"word_timestamps": True}, "word_timestamps: has no effect on live speech"),
    ({"clip_timestamps": "1,2"}, "clip_timestamps: has no effect on live speech"),
    ({"num_beams": 2}, "num_beams: must be 1 for live speech"),
    ({"every": 0}, "every: must be"),
    ({"language": "Klingon"}, "language: 'Klingon' is unknown"),
    ({"delta": "x"}, "delta: must be"),
    ({"drafter": "model"}, "drafter: model needs a draft model"),
    ({"wrong": 1}, "wrong: transcriptions have no such option"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_options_without_effect_are_refused_before_anything_is_heard(options: dict[str, Any], message: str) -> None:
    def never() -> Any:
        raise AssertionError("was read")
        yield

    with pytest.raises(InputError, match=message):
        Session(MODEL, Letters()).transcribe_live(never(), **options)


def test_a_stream_refuses_options_without_effect() -> None:
    with pytest.raises(InputError, match="word_timestamps: has no effect on live speech"):
        scheduler_of(live_slots=1).open_stream({"word_timestamps": True})
    with pytest.warns(match="top_k: has no effect at temperature 0"):
        Session(MODEL, Letters()).transcribe_live([], top_k=3)


@needs_subpackage("beam_search")
def test_streams_are_decoded_without_the_beams_of_recordings() -> None:
    own = Session(MODEL, Letters(), None, GenerationOptions(num_beams=2))
    scheduler = new_scheduler(own, TranscriptionOptions(), {}, live_slots=1)
    assert scheduler.live_decoding is not None
    assert (scheduler.decoding.num_beams, scheduler.decoding.drafter) == (2, "none")
    assert (scheduler.live_decoding.num_beams, scheduler.live_decoding.drafter) == (1, "ngram")


def test_nothing_is_read_before_the_first_update_is_wanted() -> None:
    """So that no thread reads on for updates that are never used."""
    wanted = threading.Event()

    def source() -> Iterator[NDArray[np.float32]]:
        assert wanted.wait(60)
        yield from chunks(2)

    threads = threading.active_count()
    updates = Session(MODEL, Letters()).transcribe_live(source(), every=STEP, **OPTIONS)
    assert threading.active_count() == threads
    wanted.set()
    assert next(updates).seconds > 0


def test_a_text_model_is_refused() -> None:
    with pytest.raises(InputError, match="cannot transcribe"):
        Session(tiny_model(), Letters()).transcribe_live([])


@pytest.mark.parametrize("chunk", ["text", 3, np.zeros((2, 9)), np.array([9.5], np.float32)])
def test_chunks_that_are_no_sound_are_refused(chunk: Any) -> None:
    with pytest.raises(InputError, match="chunks|audio"):
        live_updates: Callable[..., Any] = Session(MODEL, Letters()).transcribe_live
        [*live_updates([noise(1, 0.2), chunk], every=STEP, **OPTIONS)]


def test_no_sound_has_no_text() -> None:
    assert seen([*Session(MODEL, Letters()).transcribe_live([], **OPTIONS)]) == [("", "", 0.0, "en", True)]


def test_logits_that_are_not_finite_end_the_stream() -> None:
    model = speech_model(seed=6)
    model.decoder.positions.weight = model.decoder.positions.weight * mx.array(float("nan"))
    with pytest.raises(InputError, match="not finite"):
        live(session=Session(model, Letters()))
