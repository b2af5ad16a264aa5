"""Transcription with a tiny random Whisper: drafts, batches and streams change nothing; measured values are right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from speculative_decoding.decoding.request import Request
from speculative_decoding.engine import Engine, Event
from speculative_decoding.errors import InputError
from speculative_decoding.models.source import AudioFrames
from speculative_decoding.sampling import History, processed_logits
from speculative_decoding.session import Session
from speculative_decoding.speech.api import new_scheduler
from speculative_decoding.speech.options import TranscriptionOptions
from speculative_decoding.speech.scheduler import Scheduler, Task
from speculative_decoding.speech.segments import Segment, Window
from speculative_decoding.speech.speech_text import SpeechText
from speculative_decoding.speech.transcription import Attempt, Transcription
from speculative_decoding.speech.window_requests import WindowRequests
from tests.support.speech import END, ENGLISH, NO_SPEECH, PREVIOUS, START, TRANSCRIBE, ZERO, Letters, speech_model
from tests.support.subpackages import needs_subpackage
from tests.support.tiny import audio_frames, noisy_copy, tiny_head, tiny_model, tiny_whisper

MODEL = speech_model()
DRAFT = noisy_copy(MODEL)
DRAFT.audio = MODEL.audio
RECORDINGS = [
    0.1 * np.random.default_rng(i).normal(size=size).astype(np.float32)
    for i, size in enumerate((33_600, 9_000, 24_000))
]
GREEDY: dict[str, Any] = {"temperature": 0, "no_speech_threshold": None}


def session(**settings: Any) -> Session:
    return Session(MODEL, Letters(), **settings)


def transcribe(
    audio: NDArray[np.float32] = RECORDINGS[0], *, own: Session | None = None, **options: Any
) -> Transcription:
    return (own or session()).transcribe(audio, **({"drafter": "none"} | GREEDY | options))


@pytest.fixture(scope="module")
def baselines() -> list[Transcription]:
    """Transcribe the recordings without drafts."""
    return [transcribe(audio) for audio in RECORDINGS]


FALLBACK: dict[str, Any] = {"temperature": (0, 0.4, 0.8), "no_speech_threshold": None, "sample_len": 12, "seed": 3}
WORDS: dict[str, Any] = {"temperature": (0.0, 0.7), "logprob_threshold": -0.5, "word_timestamps": True}


@pytest.fixture(scope="module")
def with_words() -> Transcription:
    return transcribe(**WORDS)


def test_tiny_models_write_several_windows_and_segments(baselines: list[Transcription]) -> None:
    for found, audio in zip(baselines, RECORDINGS, strict=True):
        assert len(found.segments) > len(audio) // 9_600
        assert found.seconds == len(audio) // 160 / 100
        assert found.language in ("en", "de")
    assert any(len(segment.text) > 1 for found in baselines for segment in found.segments)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("drafter", ["model", "head", "ngram", "auto"])
def test_drafts_change_no_transcript(drafter: str, with_words: Transcription) -> None:
    draft = tiny_head(MODEL) if drafter == "head" else None if drafter == "ngram" else DRAFT
    found = transcribe(
        own=session(draft_model=draft), drafter="model" if drafter == "head" else drafter, num_draft_tokens=4, **WORDS
    )
    assert len(with_words.segments) > 3
    assert found.stats.drafted_tokens > 0
    check_equal(found, with_words)


@pytest.mark.parametrize("count", [3, "auto"])
def test_a_draft_model_may_read_another_number_of_mel_bins(count: Any, baselines: list[Transcription]) -> None:
    draft = tiny_whisper(seed=5, num_mel_bins=8)
    draft.audio = replace(MODEL.audio, num_mel_bins=8)  # type: ignore[type-var]
    own = session(draft_model=draft)
    found = transcribe(own=own, drafter="model", num_draft_tokens=count)
    check_equal(found, baselines[0])
    assert found.stats.drafted_tokens > 0 or count == "auto"


def test_windows_that_fall_back_have_one_text_in_any_company() -> None:
    """Without a draft, with every draft and length, after other recordings and beside them, in any order and slot."""
    recordings = [audio[:15_000] for audio in RECORDINGS]
    expected = [session().transcribe(audio, drafter="none", **FALLBACK) for audio in recordings]
    temperatures = [{segment.temperature for segment in each.segments} for each in expected]
    assert all(max(each) > 0.5 for each in temperatures), temperatures
    other = session().transcribe(recordings[0], drafter="none", **FALLBACK | {"seed": 4})
    assert other.text != expected[0].text  # otherwise nothing is sampled

    drafts: list[tuple[Any, dict[str, Any]]] = [
        (DRAFT, {"drafter": "model", "num_draft_tokens": 2}),
        (DRAFT, {}),
        (tiny_head(MODEL), {"num_draft_tokens": 5}),
        (None, {"drafter": "ngram", "num_draft_tokens": 3}),
    ]
    for draft, options in drafts:
        own = session(draft_model=draft)
        check_equal(own.transcribe(recordings[1], **FALLBACK | options), expected[1])
        order = (2, 0, 1)
        events = own.transcribe_batch([recordings[number] for number in order], slots=2, **FALLBACK | options)
        found = {event.number: event.result for event in events if event.result is not None}
        for position, number in enumerate(order):
            check_equal(found[position], expected[number])


def check_equal(found: Transcription, expected: Transcription) -> None:
    """Compare everything. Averages may differ in their last bits, because passes have other widths."""
    one, other = found.as_dict(), expected.as_dict()
    for segments in (one["segments"], other["segments"]):
        for segment in segments:
            for value in (segment, *segment.get("words", [])):
                for name in ("avg_logprob", "no_speech_prob", "probability"):
                    if name in value:
                        value[name] = pytest.approx(value[name], abs=1e-4)
    assert one == other


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("slots", "temperature"), [(1, 0.0), (3, (0.0, 0.7))])
def test_chunks_equal_clips_that_do_not_continue_the_text(slots: int, temperature: Any) -> None:
    """Chunks of 0.6 s, the window of this model."""
    options = GREEDY | {"drafter": "none", "word_timestamps": True, "condition_on_previous_text": False}
    options |= {"temperature": temperature, "logprob_threshold": -0.5}
    clips = [each / 10 for start in range(0, 24, 6) for each in (start, start + 6)]
    expected = session().transcribe(RECORDINGS[0], clip_timestamps=clips, **options)
    events = [*session().transcribe_chunks(RECORDINGS[0], slots=slots, **options)]
    result = events[-1].result
    assert result is not None and len(expected.segments) >= 4
    assert [segment for event in events for segment in event.segments] == result.segments
    positions = [event.position for event in events]
    assert positions == sorted(positions) and positions[-1] == result.seconds == expected.seconds
    assert result.stats.generated_tokens == expected.stats.generated_tokens
    assert not any(event.result for event in events[:-1])
    for segments in (result.segments, expected.segments):
        segments[:] = [rounded(segment) for segment in segments]
    check_equal(result, expected)


def rounded(segment: Segment) -> Segment:
    """Times of chunks are sums, which differ in their last bits."""
    words = [replace(word, start=round(word.start, 6), end=round(word.end, 6)) for word in segment.words or ()]
    return replace(segment, start=round(segment.start, 6), end=round(segment.end, 6), words=words)


@pytest.mark.usefixtures("device")
def test_recordings_that_are_transcribed_together_equal_single_ones() -> None:
    options = {"word_timestamps": True, "temperature": (0.0, 0.9)}
    alone = [transcribe(audio, **options) for audio in RECORDINGS]
    events = session().transcribe_batch(
        [*RECORDINGS, RECORDINGS[1]], slots=8, **(GREEDY | {"drafter": "none"} | options)
    )
    found = {event.number: event.result for event in events if event.result is not None}
    assert sorted(found) == [0, 1, 2, 3]
    for number, expected in enumerate([*alone, alone[1]]):
        check_equal(found[number], expected)


def test_clips_end_with_the_recording(baselines: list[Transcription]) -> None:
    """openai-whisper never finishes such a clip."""
    assert transcribe(clip_timestamps="0,99").as_dict() == baselines[0].as_dict()
    assert transcribe(clip_timestamps=[50, 60]).segments == []


def test_a_stream_yields_each_segment_once(baselines: list[Transcription]) -> None:
    events = list(session().transcribe_stream(RECORDINGS[0], drafter="none", **GREEDY))
    assert [segment for event in events for segment in event.segments] == baselines[0].segments
    positions = [event.position for event in events]
    assert positions == sorted(positions) and positions[-1] == baselines[0].seconds
    assert [event.result is not None for event in events] == [False] * (len(events) - 1) + [True]


def test_segments_say_which_of_their_tokens_were_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounds of the engine say the same of the output that the segment is a part of."""
    outputs: dict[Request, list[tuple[int, bool]]] = {}
    step = Engine.step

    def recorded_step(engine: Engine) -> list[Event]:
        events = step(engine)
        for request, round, _ in events:
            drafted = [True] * round.accepted + [False] * (len(round.tokens) - round.accepted)
            outputs.setdefault(request, []).extend(zip(round.tokens, drafted, strict=True))
        return events

    monkeypatch.setattr(Engine, "step", recorded_step)
    found = transcribe(own=session(draft_model=DRAFT), drafter="model", num_draft_tokens=3)
    windows = dict(zip(dict.fromkeys(each.seek for each in found.segments), outputs.values(), strict=True))
    for segment in found.segments:
        pairs, output = [*zip(segment.tokens, segment.from_draft, strict=True)], windows[segment.seek]
        assert any(pairs == output[i : i + len(pairs)] for i in range(len(output)))
    assert {drafted for segment in found.segments for drafted in segment.from_draft} == {False, True}
    assert "from_draft" not in found.segments[0].as_dict()


def test_a_recording_that_cannot_be_read_does_not_stop_the_others() -> None:
    damaged = np.array([0.0, np.nan], np.float32)
    events = list(
        session().transcribe_batch([RECORDINGS[1], damaged, RECORDINGS[1]], slots=2, drafter="none", **GREEDY)
    )
    assert {event.number for event in events if event.result} == {0, 2}
    assert [event.number for event in events if event.error] == [1]
    with pytest.raises(InputError, match="samples must be from -1 to 1"):
        session().transcribe(damaged)


def test_a_model_whose_logits_are_not_finite_fails_for_each_recording() -> None:
    broken = speech_model()
    broken.decoder.norm.weight = mx.full(broken.decoder.norm.weight.shape, mx.nan)
    events = [*Session(broken, Letters()).transcribe_batch(RECORDINGS[:2], slots=2, language="de", **GREEDY)]
    assert [type(event.error) for event in events if event.is_last] == [ArithmeticError] * 2


def requests_of(options: dict[str, Any] | None = None, decoding: dict[str, Any] | None = None) -> WindowRequests:
    assert MODEL.audio is not None
    text = SpeechText(Letters(), MODEL.audio)
    own = session()
    return WindowRequests(
        MODEL,
        text,
        "en",
        TranscriptionOptions(**options or {}),
        own.options_with({"drafter": "none"} | (decoding or {})),
    )


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("is_multilingual", [True, False])
@pytest.mark.parametrize("previous", [[], [3, ZERO + 4, ZERO + 4, 7]], ids=["no previous text", "previous text"])
def test_measured_probabilities_equal_those_of_one_pass(
    previous: list[int], is_multilingual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean log-probability counts the end token and all constraints; the start token predicts silence."""
    assert MODEL.audio is not None
    monkeypatch.setattr(MODEL, "audio", replace(MODEL.audio, is_multilingual=is_multilingual))
    requests = requests_of()
    attempt = Attempt(Window(0, 60, audio_frames(4)), previous, 0.0)
    start = requests.decoder_prompt(attempt)
    prefix = [START, ENGLISH, TRANSCRIBE] if is_multilingual else [START]
    assert start.tokens == ([PREVIOUS, *previous] if previous else []) + prefix
    own = session()
    engine = own.engine(start.options, 1)
    request = engine.submit(attempt.window.audio, start.options, own.planner.draft_length(start.options, 1), start)
    while not request.finish_reason:
        engine.step()
    found = requests.decoded(request)

    tokens = [*start.tokens, *request.tokens]
    encoder_output = MODEL.encode_rows([attempt.window.audio])[0]
    logits = MODEL.logits(MODEL.teacher_forced(mx.array([tokens]), encoder_output))
    silence = mx.softmax(logits[0, len(start.tokens) - len(prefix)])[NO_SPEECH]
    assert found.no_speech_prob == pytest.approx(float(silence), rel=1e-4)
    total = 0.0
    for i in range(len(start.tokens), len(tokens)):
        values = processed_logits(
            logits[:, i - 1 : i], [start.options], History([tokens[:i]], None, [start.constraints])
        )
        total += float(values[0, 0, tokens[i]] - mx.logsumexp(values[0, 0]))
    assert found.avg_logprob == pytest.approx(total / (len(found.tokens) + 1), rel=1e-4)
    assert found.tokens == request.tokens[: len(found.tokens)] and found.tokens[0] >= ZERO


def naive_beam_search(requests: WindowRequests, attempt: Attempt, num_beams: int) -> tuple[list[int], float]:
    """openai-whisper's beam search, one sequence at a time: the tokens and their log-probability per token."""
    start = requests.decoder_prompt(attempt)
    encoder_output = MODEL.encode_rows([attempt.window.audio])[0]
    beams, finished = {tuple(start.tokens): 0.0}, {}
    for _ in range(start.options.max_tokens):
        candidates = {}
        for beam, score in beams.items():
            logits = MODEL.logits(MODEL.teacher_forced(mx.array([beam]), encoder_output))[:, -1:]
            values = processed_logits(logits, [start.options], History([list(beam)], None, [start.constraints]))[0, 0]
            logprobs = np.array(values - mx.logsumexp(values))
            for token in np.argsort(-logprobs)[: num_beams + 1].tolist():
                candidates[(*beam, token)] = score + float(logprobs[token])
        beams = {}
        for beam in sorted(candidates, key=candidates.__getitem__, reverse=True):
            if beam[-1] != END:
                beams[beam] = candidates[beam]
                if len(beams) == num_beams:
                    break
            elif len(finished) < num_beams:
                finished[beam] = candidates[beam]
        if len(finished) == num_beams:
            break
    for beam in beams:
        if len(finished) < num_beams:
            finished[(*beam, END)] = beams[beam]
    first = len(start.tokens)
    best = max(finished, key=lambda beam: finished[beam] / (len(beam) - first - 1))
    return [*best[first:-1]], finished[best] / (len(best) - first)


@needs_subpackage("beam_search")
@pytest.mark.parametrize("length", [None, 2])
def test_beams_equal_a_naive_search(length: int | None) -> None:
    requests = requests_of({"sample_len": length}, {"num_beams": 3})
    own = session()
    ended = 0
    for seed in range(4):
        attempt = Attempt(Window(0, 60, audio_frames(seed)), [7, 3] * (seed % 2), 0.0)
        start = requests.decoder_prompt(attempt)
        engine = own.engine(start.options, 1)
        request = engine.submit(attempt.window.audio, start.options, own.planner.draft_length(start.options, 1), start)
        while not request.finish_reason:
            engine.step()
        tokens, avg_logprob = naive_beam_search(requests, attempt, 3)
        found = requests.decoded(request)
        assert found.tokens == tokens
        assert found.avg_logprob == pytest.approx(avg_logprob, rel=1e-4)
        ended += request.tokens[-1] == END
    assert ended or length


@needs_subpackage("beam_search")
def test_recordings_with_beams_fall_back_to_sampling() -> None:
    options = {"num_beams": 2, "temperature": (0.0, 0.8), "logprob_threshold": 0.0, "no_speech_threshold": None}
    found = list(session().transcribe_batch(RECORDINGS[:2], slots=2, **options))
    results = [event.result for event in found if event.result is not None]
    assert len(results) == 2
    assert all(segment.temperature == 0.8 for result in results for segment in result.segments)


def test_outputs_fit_into_the_positions_of_the_decoder() -> None:
    requests = requests_of()
    window = Window(0, 60, audio_frames(4))
    assert requests.decoder_prompt(Attempt(window, [], 0.0)).options.max_tokens == 35
    longest = requests.decoder_prompt(Attempt(window, [7] * 34, 0.0))
    assert len(longest.tokens) + longest.options.max_tokens == MODEL.max_positions + 1  # type: ignore[operator]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "xx"}, "language: 'xx' is unknown; choose one of the 2 languages of this model: de, en"),
        ({"tempreature": 0}, "tempreature: transcriptions have no such option; did you mean temperature?"),
        ({"beam_size": 5}, "beam_size: transcriptions have no such option; did you mean num_beams?"),
        ({"temperature": []}, "temperature: is empty; give a number, or several in increasing order"),
        (
            {"hallucination_silence_threshold": 2.0},
            "hallucination_silence_threshold: has no effect without word_timestamps; turn them on",
        ),
        ({"initial_prompt": "a <|en|>"}, "initial_prompt: contains the special token <|en|>; remove it"),
        ({"clip_timestamps": "1,x"}, "clip_timestamps: must be numbers with commas, not '1,x'"),
        ({"drafter": "model"}, "drafter: model needs a draft model; name one, or choose ngram"),
    ],
)
def test_unsuitable_options_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        session().transcribe(RECORDINGS[1], **options)
    assert str(error.value) == message


def test_a_model_of_text_cannot_transcribe() -> None:
    with pytest.raises(InputError, match="this model reads text and cannot transcribe"):
        Session(tiny_model(), Letters()).transcribe(RECORDINGS[0])


def test_the_language_is_detected_from_the_first_window_or_given() -> None:
    assert {transcribe(audio).language for audio in RECORDINGS} <= {"en", "de"}
    given = transcribe(language="de")
    assert given.language == "de" and given.as_dict() != transcribe(language="en").as_dict()


def test_scheduler_opens_recordings_when_slots_are_free() -> None:
    opened = []
    own = session()
    decoding = own.options_with({"drafter": "none"})
    scheduler = Scheduler(
        MODEL, Letters(), TranscriptionOptions(**GREEDY), decoding, 2, own.engine, own.planner.draft_length, [6]
    )

    class Noise:
        num_frames = 60

        def window(self, start: int, count: int, length: int) -> AudioFrames:
            return AudioFrames(mx.zeros((length, 6)))

    def open_one() -> Task:
        opened.append(len(opened))
        return Task(Noise(), scheduler.options, decoding)

    done = 0
    for event in scheduler.run([open_one] * 5):
        done += event.result is not None
        assert len(opened) <= done + 3
    assert done == 5


def test_recordings_have_their_own_options_and_can_be_cancelled(baselines: list[Transcription]) -> None:
    rows: list[Any] = [
        {"audio": RECORDINGS[0], "language": "de", "word_timestamps": True},
        {"audio": RECORDINGS[1], "task": "translate", "num_draft_tokens": 3},
        {"audio": RECORDINGS[1], "clip_timestamp": "3"},
        {"audio": RECORDINGS[1], "num_beams": 2},
        {"audio": RECORDINGS[1], "temperature": (0.9, 1.2), "seed": 3},
        {"language": "de"},
    ]
    own = session(draft_model=DRAFT)
    events = [*own.transcribe_batch(rows, slots=2, drafter="model", **GREEDY)]
    found = {event.number: event.result for event in events if event.result}
    for number in (0, 1, 4):
        options = {name: value for name, value in rows[number].items() if name not in ("audio", "num_draft_tokens")}
        check_equal(found[number], transcribe(rows[number]["audio"], **options))
    errors = {event.number: str(event.error) for event in events if event.error}
    assert (
        "clip_timestamp: transcriptions have no such option; did you mean clip_timestamps?" in errors[2]
        and "num_beams" in errors[3]
        and "audio: is missing: this model transcribes speech" in errors[5]
    )

    scheduler = new_scheduler(own, TranscriptionOptions(**GREEDY), {"drafter": "none"}, 2)
    for number, audio in enumerate(RECORDINGS[:2]):
        assert len([*scheduler.start(number, scheduler.open(audio))]) == 1
        assert not [*scheduler.resume(number)]
    scheduler.cancel(0)
    results = []
    while scheduler.running:
        results += [event for event in scheduler.step() if event.result]
    assert [event.number for event in results] == [1]
    check_equal(results[0].result, baselines[1])
