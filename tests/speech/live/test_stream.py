"""A stream with a perfect recogniser writes each word once, however the audio arrives and the windows are cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from speculative_decoding.decoding.results import GenerationStats
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.speech.live.stream import LiveStream
from speculative_decoding.speech.live.update import LiveUpdate, Piece
from speculative_decoding.speech.options import TranscriptionOptions
from speculative_decoding.speech.segments import DecodedWindow, Window
from speculative_decoding.speech.speech_text import SpeechText
from speculative_decoding.speech.transcription import Attempt
from speculative_decoding.speech.window_requests import WindowRequests
from tests.support.speech import ZERO, Letters, noise, speech_model

AUDIO = speech_model().audio
assert AUDIO is not None
AUDIO = replace(AUDIO, window_frames=3000)
TEXT = SpeechText(Letters(), AUDIO)
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789. "  # by token
NAMES = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliett"]


class Spoken(NamedTuple):
    """A word, when it is spoken in frames, and whether it ends a segment."""

    text: str
    start: int
    end: int
    ends_segment: bool


def spoken(seconds: int, per_segment: int) -> list[Spoken]:
    """Return two words per second. Each segment ends with a full stop."""
    return [
        Spoken(
            f" {NAMES[i % 7]}{NAMES[i % 10]}{'.' if (i + 1) % per_segment == 0 else ''}", 50 * i, 50 * i + 40, is_end
        )
        for i in range(2 * seconds)
        for is_end in [(i + 1) % per_segment == 0]
    ]


@dataclass
class Recogniser:
    """Writes the words of a window, and where segments start and end. The last word may be wrong."""

    words: Sequence[Spoken]
    misheard: bool = False

    def __call__(self, window: Window) -> DecodedWindow:
        tokens: list[int] = []
        is_open = False
        end = window.seek + window.size
        heard = [word for word in self.words if word.start >= window.seek - 2 and word.start < end]
        for word in heard:
            if not is_open:
                tokens.append(ZERO + max(word.start - window.seek, 0) // 2)
            is_cut_off = word.end > end
            text = " zz" if is_cut_off and self.misheard else word.text
            tokens += [*map(CHARACTERS.index, text)]
            is_open = not word.ends_segment or is_cut_off
            if not is_open:
                tokens.append(ZERO + (word.end - window.seek) // 2)
        text, drafted = TEXT.decode(tokens).strip(), [True] * len(tokens)
        return DecodedWindow(tokens, text, 0.0, -0.1, 0.0 if heard else 0.99, drafted)


def stream_of(
    options: TranscriptionOptions = TranscriptionOptions(),  # noqa: B008
    *,
    every: float = 1.0,
    max_positions: int = 448,
) -> LiveStream:
    model: Any = SimpleNamespace(max_positions=max_positions, pieces=None)
    return LiveStream(WindowRequests(model, TEXT, "en", options, GenerationOptions()), [6], every)


def updates(
    recognise: Recogniser, seconds: int, *, step: float = 1.0, sound: np.ndarray | None = None, every: float = 1.0
) -> Iterator[tuple[LiveUpdate, Window | None]]:
    """Let speech arrive in steps, and yield each update with its window."""
    stream = stream_of(every=every)
    samples = np.tile(noise(1, 1.0), seconds) if sound is None else sound
    size = int(step * 16_000)
    for start in range(0, len(samples), size):
        stream.append(samples[start : start + size])
        if start + size >= len(samples):
            stream.finish()
        while stream.is_due:
            attempt = stream.next_attempt()
            if isinstance(attempt, Attempt):
                yield stream.add(recognise(attempt.window), GenerationStats()), attempt.window
            elif attempt is not None:
                yield attempt, None
    assert stream.is_done


def text_of(found: Sequence[tuple[LiveUpdate, Window | None]]) -> str:
    return "".join(update.final for update, _ in found)


@pytest.mark.parametrize("misheard", [False, True])
@pytest.mark.parametrize("step", [0.13, 1.0, 40.0])
@pytest.mark.parametrize("per_segment", [1, 7, 30, 1000])
def test_the_final_text_is_what_is_said(per_segment: int, step: float, misheard: bool) -> None:
    """Also if segments are longer than a window, and if more arrives at once than a window can hear."""
    words = spoken(60, per_segment)
    found = [*updates(Recogniser(words, misheard), 60, step=step)]
    expected = "".join(word.text for word in words)
    if per_segment == 1000:  # a window that is cut by force ends within a word, which is heard in two parts
        assert len(text_of(found).split()) == pytest.approx(len(words), abs=2)
    else:
        assert text_of(found) == expected
    assert [update.is_last for update, _ in found] == [False] * (len(found) - 1) + [True]
    assert found[-1][0].pending == "" and found[-1][0].seconds == 60
    assert max(window.size for _, window in found if window is not None) <= 2800


def test_final_and_pending_text_together_are_the_hypothesis() -> None:
    words = spoken(20, 1000)
    final = ""
    for update, window in updates(Recogniser(words), 20):
        final += update.final
        if window is not None:
            heard = "".join(word.text for word in words if word.start < window.seek + window.size)
            assert final + update.pending == heard
            assert update.pieces == ((Piece(update.final, True),) if update.final else ())


def test_a_window_starts_where_the_last_final_segment_ends() -> None:
    words = spoken(30, 8)
    starts = [window.seek for _, window in updates(Recogniser(words), 30) if window is not None]
    ends = {0, *(word.end for word in words if word.ends_segment)}
    assert set(starts) <= ends and starts == sorted(starts) and len(set(starts)) > 2


@pytest.mark.parametrize("num_words", [20, 4])
def test_what_a_hypothesis_leaves_out_is_heard_again_without_a_prompt(num_words: int) -> None:
    """Also if it writes that its last segment ends where the window ends."""

    class LeavingOut(Recogniser):
        def __call__(self, window: Window) -> DecodedWindow:
            if window.seek or window.size <= 1000:
                return super().__call__(window)
            return Recogniser(
                [*words[: num_words - 1], words[num_words - 1]._replace(end=window.size, ends_segment=True)]
            )(window)

    words = spoken(30, 1000)
    stream = stream_of()
    found = ""
    for second in range(30):
        stream.append(noise(1, 1.0))
        if second == 29:
            stream.finish()
        attempt = stream.next_attempt()
        assert isinstance(attempt, Attempt) and not attempt.previous
        found += stream.add(LeavingOut(words)(attempt.window), GenerationStats()).final
    assert found == "".join(word.text for word in words)


def test_silence_is_not_decoded() -> None:
    """After speech, two hypotheses hear silence at most: the last words become final, and nothing more is decoded."""
    sound = np.zeros(16_000 * 40, np.float32)
    sound[16_000 * 10 : 16_000 * 14] = noise(1, 4.0)
    words = [word._replace(start=word.start + 1000, end=word.end + 1000) for word in spoken(4, 4)]
    found = [*updates(Recogniser(words), 40, sound=sound)]
    windows = [window for _, window in found if window is not None]
    assert text_of(found) == "".join(word.text for word in words)
    assert 4 <= len(windows) <= 6 and windows[0].seek == pytest.approx(1000, abs=150)
    assert windows[-1].seek + windows[-1].size <= 1600
    nothing = [*updates(Recogniser([]), 5, sound=np.zeros(80_000, np.float32))]
    assert [(update.is_last, window) for update, window in nothing] == [(True, None)]


def test_what_is_no_speech_writes_nothing_and_does_not_stop_the_stream() -> None:
    class Inventing(Recogniser):
        def __call__(self, window: Window) -> DecodedWindow:
            return replace(
                super().__call__(window), tokens=[ZERO, 3, 4, ZERO + 20], avg_logprob=-2.0, no_speech_prob=0.9
            )

    found = [*updates(Inventing([]), 75)]
    assert text_of(found) == "" and not any(update.pending for update, _ in found)


def test_the_prompt_is_the_last_final_sentence() -> None:
    words = spoken(40, 8)
    options = TranscriptionOptions(initial_prompt="xyz")
    stream, short = stream_of(options), stream_of(options, max_positions=12)
    recognise = Recogniser(words)
    initial = TEXT.text_tokens(" xyz")
    prompts = set()
    for _ in range(40):
        for each in (stream, short):
            each.append(noise(1, 1.0))
            attempt = each.next_attempt()
            assert isinstance(attempt, Attempt)
            assert [*attempt.previous[: len(initial)]] == initial
            if each is stream:
                prompts.add(TEXT.decode(attempt.previous[len(initial) :]))
            else:
                assert len(attempt.previous) <= 5
            each.add(recognise(attempt.window), GenerationStats())
    sentences = {"".join(word.text for word in words[i : i + 8]) for i in range(0, 72, 8)}
    assert len(prompts) > 3 and prompts <= {"", *sentences}


def test_memory_does_not_grow_with_the_speech() -> None:
    stream = stream_of()
    recognise = Recogniser(spoken(200, 9))
    sizes = []
    for _ in range(200):
        stream.append(noise(1, 1.0))
        attempt = stream.next_attempt()
        assert isinstance(attempt, Attempt)
        stream.add(recognise(attempt.window), GenerationStats())
        sizes.append((stream._recording._frames.nbytes, len(stream._context), len(stream._agreement.final)))
    assert max(sizes[100:]) <= max(sizes[:100]) and not stream._transcript
