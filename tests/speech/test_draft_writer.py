"""A speech model of another vocabulary drafts its own transcript; it changes no token."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding.draft_length.base import FixedLength
from speculative_decoding.drafters.base import MODEL as DRAFT_MODEL
from speculative_decoding.drafters.base import RequestView
from speculative_decoding.models.source import AudioFrames
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.session import Session
from speculative_decoding.speech.draft_texts import GivenTranscript, RecordingDraft, Transcript, WindowDraft
from speculative_decoding.speech.draft_writer import SpeechWriter, SpokenPrompt
from speculative_decoding.speech.speech_text import SpeechText
from tests.support.speech import END, ENGLISH, PREVIOUS, START, TRANSCRIBE, ZERO, Letters, noise, speech_model
from tests.support.tiny import tiny_whisper

MODEL = speech_model()
GREEDY: dict[str, Any] = {"temperature": 0, "no_speech_threshold": None}
FALLBACK: dict[str, Any] = {"temperature": (0, 0.4, 0.8), "no_speech_threshold": None, "sample_len": 12, "seed": 3}
MORE = 3  # text tokens that only the draft model has, before its special tokens


class OtherLetters(Letters):
    """Letters with other ids."""

    def encode_output(self, text: str) -> list[int]:
        return [MORE + token for token in super().encode_output(text)]

    def decode(self, tokens: Any) -> str:
        return super().decode([token - MORE for token in tokens if token >= MORE])


def other_model(**changes: Any) -> Any:
    ids = {"pad_token_id": END + MORE, "eos_token_id": END + MORE, "decoder_start_token_id": START + MORE}
    model = tiny_whisper(vocab_size=MODEL.config.vocab_size + MORE, seed=5, **ids, **changes)
    assert model.audio is not None and MODEL.audio is not None
    languages = {code: token + MORE for code, token in MODEL.audio.languages.items()}
    model.audio = replace(model.audio, is_multilingual=True, languages=languages)
    return model


def session(draft: Any) -> Session:
    return Session(MODEL, Letters(), draft, draft_tokenizer=OtherLetters())


@pytest.mark.parametrize(
    ("options", "drafter", "bins"),
    [(GREEDY, "auto", 8), (FALLBACK, "model", 6), (GREEDY | {"task": "translate"}, "model", 8)],
    ids=["greedy", "falls", "task"],
)
def test_drafts_of_another_vocabulary_change_no_token(options: dict[str, Any], drafter: str, bins: int) -> None:
    own = session(other_model(num_mel_bins=bins))
    assert own.drafts_text
    for audio in (noise(0, 1.3), noise(1, 0.6)):
        expected = own.transcribe(audio, drafter="none", **options)
        found = own.transcribe(audio, drafter=drafter, num_draft_tokens=4, **options)
        assert [each.tokens for each in found.segments] == [each.tokens for each in expected.segments]
        assert found.stats.drafted_tokens > 0


def test_an_english_only_draft_of_another_language_is_one_note_and_no_draft() -> None:
    draft = other_model()
    draft.audio = replace(draft.audio, is_multilingual=False, languages={})
    own = session(draft)
    for options in ({"language": "de"}, {"language": "en", "task": "translate"}):
        expected = own.transcribe(noise(0, 1.3), drafter="none", **GREEDY, **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = own.transcribe(noise(0, 1.3), drafter="model", num_draft_tokens=4, **GREEDY, **options)
        assert found.as_dict() == expected.as_dict() and found.stats.drafted_tokens == 0
        (only,) = [str(each.message) for each in caught]
        assert only.startswith("no drafts: the draft model knows English only")
    spoken = own.transcribe(noise(0, 1.3), drafter="model", num_draft_tokens=4, language="en", **GREEDY)
    assert spoken.stats.drafted_tokens > 0


def test_text_and_times_are_mapped_and_special_tokens_left_out() -> None:
    audio, draft = MODEL.audio, other_model().audio
    assert audio is not None
    target, other = SpeechText(Letters(), audio), SpeechText(OtherLetters(), draft)
    tokens = [ZERO, 0, 1, ZERO + 4, ZERO + 4, 2, END]
    there = [*SpeechWriter.mapped(tokens, target, other)]
    assert there == [token + MORE for token in tokens[:-1]]
    assert [*SpeechWriter.mapped(there, other, target)] == tokens[:-1]


def test_a_prompt_is_split_into_its_parts() -> None:
    audio = MODEL.audio
    assert audio is not None
    tokens = [PREVIOUS, 7, ZERO, START, ENGLISH, TRANSCRIBE, ZERO, 3]
    assert SpokenPrompt.of(tokens, audio) == SpokenPrompt([7, ZERO], "en", False, True, [ZERO, 3])
    tokens = [START, ENGLISH + 1, audio.translate, audio.no_timestamps, 3]
    assert SpokenPrompt.of(tokens, audio) == SpokenPrompt([], "de", True, False, [3])
    assert SpokenPrompt.of([START, 3], audio).language is None


def test_the_prompt_is_not_part_of_the_text() -> None:
    """Previous text, and the tokens that name the language and the task. The committed output is part of it."""
    audio, draft = MODEL.audio, other_model()
    assert audio is not None
    engine: Any = SimpleNamespace(submit=lambda *_: SimpleNamespace(tokens=[C + MORE], finish_reason="stop"))
    writer = SpeechWriter(SpeechText(Letters(), audio), draft, SpeechText(OtherLetters(), draft.audio), engine)
    frames = AudioFrames(mx.zeros((audio.window_frames, audio.num_mel_bins)))
    prompt = [PREVIOUS, A, B, START, ENGLISH, TRANSCRIBE]
    written = writer.start(RequestView(GenerationOptions(), frames, [*prompt, ZERO, A, B]))
    assert written is not None
    written.update()
    follower = written.follow()
    assert written.num_skipped == len(prompt) - 1 and written.size == len(follower.text.ids)
    assert follower.text.ids == [A, B, C, END]


A, B, C, D, DASH, SPACE = 0, 1, 2, 3, 39, 37
WRITTEN = [ZERO, SPACE, A, B, ZERO + 5, ZERO + 5, SPACE, C, D, ZERO + 15, END]


def growing_and_given() -> tuple[Transcript, GivenTranscript]:
    """An empty transcript, and a given one of the words and times that are written."""
    assert MODEL.audio is not None
    text = SpeechText(Letters(), MODEL.audio)
    return Transcript(text), GivenTranscript("<|0.00|>ab<|0.10|><|0.10|>cd<|0.30|>", text, "en")


@pytest.mark.parametrize("output", [[], [ZERO, A, B], [ZERO, A, B, ZERO + 7], [ZERO, A, DASH, B, ZERO + 5, ZERO + 5]])
def test_what_the_model_writes_is_followed_like_a_given_transcript(output: list[int]) -> None:
    growing, given = growing_and_given()
    followers = [WindowDraft(growing, 0, 0.0).follow(), RecordingDraft(given).window([], 0.0, has_times=True).follow()]
    for end in range(len(WRITTEN) + 1):
        growing.update(WRITTEN[:end])
    found = []
    for follower in followers:
        for token in output:
            follower.append(token)
        place = follower.find()
        assert place is not None
        found.append(follower.continuation(place, 6))
    assert found[0] == found[1] != []


def test_a_text_that_changes_while_it_is_written_is_replaced() -> None:
    growing, given = growing_and_given()
    growing.update([ZERO, C, ZERO + 9, D])
    growing.update(WRITTEN)
    assert growing.words.ids == given.words.ids == [A, B, C, D, END] and growing.gaps == given.gaps


def test_endless_punctuation_makes_the_text_longer() -> None:
    """Otherwise the model would write it to its end for one draft."""
    growing, _ = growing_and_given()
    growing.update([*WRITTEN[:4], *[DASH] * 50])
    assert 2 + 50 - 10 < len(growing.words.ids) < 2 + 50


class WithoutModel(FixedLength):
    """Declines every draft of a draft model."""

    def choose(self, kinds: Sequence[str], limits: Sequence[int]) -> list[int]:
        found = super().choose(kinds, limits)
        return [0 if kind == DRAFT_MODEL else length for kind, length in zip(kinds, found, strict=True)]


@pytest.mark.parametrize("has_own_vocabulary", [False, True])
def test_a_draft_model_encodes_no_window_that_it_does_not_draft(
    has_own_vocabulary: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for recordings, one by one or together, nor for the windows of one recording, nor for live speech."""
    draft = other_model(num_mel_bins=8)
    own = session(draft)
    if not has_own_vocabulary:
        draft = tiny_whisper(seed=5, num_mel_bins=8)
        draft.audio = replace(MODEL.audio, num_mel_bins=8)  # type: ignore[type-var]
        own = Session(MODEL, Letters(), draft)
    encoded: list[object] = []
    encode = type(MODEL).encode_window

    def noted(self: Any, frames: mx.array) -> mx.array:
        encoded.append(self)
        return encode(self, frames)

    monkeypatch.setattr(type(MODEL), "encode_window", noted)
    recordings = [noise(0, 1.3), noise(1, 0.6), noise(2, 0.9)]
    for length, is_encoded in ((WithoutModel(3), False), (FixedLength(3), True)):
        options: dict[str, Any] = {**GREEDY, "language": "en", "num_draft_tokens": length}
        every: list[Iterable[Any]] = [
            own.transcribe_batch(recordings, slots=2, **options),
            own.transcribe_stream(recordings[0], **options),
            own.transcribe_chunks(recordings[0], slots=2, **options),
            own.transcribe_live(recordings[:2], language="en", num_draft_tokens=length, reads_ahead=False),
        ]
        for events in every:  # nothing is decoded before the first `next`
            encoded.clear()
            declined = [event.result.stats.declined_by_kind for event in events if getattr(event, "result", None)]
            assert any(each is MODEL for each in encoded)
            assert any(each is draft for each in encoded) == is_encoded
            assert all(bool(each[DRAFT_MODEL]) != is_encoded for each in declined)
