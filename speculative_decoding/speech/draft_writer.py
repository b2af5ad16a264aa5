"""Writes transcripts with a speech model whose vocabulary differs from the target's; see `drafters.writing`.

The draft model transcribes the same window with its own mel bins, encoder and timestamp rules. Its text is encoded with
the target's tokenizer, and its timestamps are converted to the target's.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple
from weakref import WeakKeyDictionary

import mlx.core as mx

from ..decoding.draft_writer import DraftEngine, WrittenRequest, settled
from ..decoding.request import Request
from ..draft_length.base import FixedLength
from ..drafters.base import RequestView
from ..errors import note
from ..models.base import EncoderDecoder
from ..models.source import AudioFrames
from ..models.whisper import NoiseFrames
from ..models.whisper_tokens import AudioConfig
from ..sampling import GenerationOptions
from .draft_texts import Transcript, WindowDraft, WindowFollower
from .options import TranscriptionOptions
from .segments import FRAMES_PER_POSITION, Window
from .speech_text import SpeechText
from .transcription import Attempt
from .window_requests import WindowRequests


class SpokenPrompt(NamedTuple):
    """The parts of a decoder prompt and the output after it, as the target's ids.

    language: The language's code, or None if the prompt does not name the language.
    """

    previous: list[int]
    language: str | None
    is_translation: bool
    has_timestamps: bool
    output: list[int]

    @classmethod
    def of(cls, tokens: list[int], audio: AudioConfig) -> SpokenPrompt:
        """Split committed decoder ids."""
        start = tokens.index(audio.start) if audio.start in tokens else 0
        previous, output = tokens[1:start], tokens[start + 1 :]
        language = None if audio.is_multilingual else "en"
        codes = {token: code for code, token in audio.languages.items()}
        if output and output[0] in codes:
            language = codes[output[0]]
        num_special = 0
        while num_special < len(output) and not (
            audio.is_text(output[num_special]) or audio.is_timestamp(output[num_special])
        ):
            num_special += 1
        special = output[:num_special]
        is_translation, has_timestamps = audio.translate in special, audio.no_timestamps not in special
        return cls(previous, language, is_translation, has_timestamps, output[num_special:])


class SpeechWriter:
    """Writes transcripts with a draft model, for `BatchWritingDrafter`.

    Args:
        target: The target's text tokens.
        model: The draft model.
        draft: The draft model's text tokens.
        engine: An engine for the draft model that nothing else uses.
    """

    def __init__(self, target: SpeechText, model: EncoderDecoder, draft: SpeechText, engine: DraftEngine) -> None:
        self.target = target
        self.draft = draft
        self.engine = engine
        self._model = model
        self._frames: WeakKeyDictionary[AudioFrames, AudioFrames] = WeakKeyDictionary()
        self._has_noted = False

    def start(self, request: RequestView) -> WrittenSpeech | None:
        assert isinstance(request.source, AudioFrames)
        prompt = SpokenPrompt.of(request.decoder_tokens, self.target.audio)
        if prompt.language is None:  # the target detects the language in the same request
            return None
        if reason := self._why_not(prompt):
            if not self._has_noted:
                note(f"no drafts: the draft model {reason}")
            self._has_noted = True
            return None
        frames = self._frames_of(request.source)
        options = TranscriptionOptions(
            task="translate" if prompt.is_translation else "transcribe", without_timestamps=not prompt.has_timestamps
        )
        written = [*self.mapped(prompt.output, self.target, self.draft)]
        previous = [*self.mapped(prompt.previous, self.target, self.draft)]
        submitted = self._submit(frames, options, prompt.language, previous, written)
        num_skipped = len(request.decoder_tokens) - 1 - len(prompt.output)
        return None if submitted is None else WrittenSpeech(self, submitted, num_skipped, prompt)

    def _why_not(self, prompt: SpokenPrompt) -> str:
        """Return the reason why the draft model cannot transcribe this prompt's speech, or "" if it can."""
        audio = self.draft.audio
        if not audio.is_multilingual and prompt.is_translation:
            return "knows English only, and cannot translate"
        if not audio.is_multilingual and prompt.language != "en":
            return f"knows English only, not {prompt.language!r}"
        if audio.is_multilingual and prompt.language not in audio.languages:
            return f"does not know the language {prompt.language!r}"
        return ""

    def _frames_of(self, source: AudioFrames) -> AudioFrames:
        """Return the window with the draft model's mel bins. The frames and their encoder output are cached."""
        own = source.of(self.draft.audio.num_mel_bins)
        if own is source.frames:
            return source
        return self._frames.setdefault(source, AudioFrames(own))

    def _submit(
        self, frames: AudioFrames, options: TranscriptionOptions, language: str, previous: list[int], output: list[int]
    ) -> Request | None:
        """Submit a request that continues an output. Returns None if the draft model does not have enough positions."""
        requests = WindowRequests(self._model, self.draft, language, options, GenerationOptions(drafter="none"))
        previous = previous[-requests.max_previous :]
        window = Window(0, len(frames) * FRAMES_PER_POSITION, frames)
        start = requests.decoder_prompt(Attempt(window, previous, 0.0))
        most = min(start.options.max_tokens, requests.max_positions + 1 - len(start.tokens) - len(output))
        if most < 1:
            return None
        start = start._replace(
            tokens=[*start.tokens, *output], options=start.options.with_values(max_tokens=most), observer=None
        )
        return self.engine.submit(frames, start.options, FixedLength(0), start)

    def step(self) -> None:
        self.engine.step()

    def rehearse(self, slot: int) -> WrittenSpeech:
        audio = self.draft.audio
        frames = NoiseFrames(mx.zeros((audio.window_frames, audio.num_mel_bins)))
        options = TranscriptionOptions(without_timestamps=True)
        language = "en" if "en" in audio.languages or not audio.languages else next(iter(audio.languages))
        requests = WindowRequests(self._model, self.draft, language, options, GenerationOptions(drafter="none"))
        start = requests.decoder_prompt(Attempt(Window(0, audio.window_frames, frames), [], 0.0))
        start = start._replace(observer=None, eos_token_ids=set())  # so that decoding never stops early
        prompt = SpokenPrompt([], language, is_translation=False, has_timestamps=False, output=[])
        return WrittenSpeech(self, self.engine.submit(frames, start.options, FixedLength(0), start), 0, prompt)

    @staticmethod
    def mapped(tokens: Iterable[int], source: SpeechText, target: SpeechText) -> Iterable[int]:
        """Convert text and timestamps from one vocabulary to the other. Special tokens are left out."""
        for is_time, run in groupby(filter(source.is_spoken, tokens), source.audio.is_timestamp):
            if is_time:
                yield from (token - source.audio.timestamp_begin + target.audio.timestamp_begin for token in run)
            else:
                yield from target.text_tokens(source.decode([*run]))


class WrittenSpeech(WrittenRequest):
    """An output of the draft model for a window.

    Args:
        writer: The writer that started the output.
        draft: The draft model's request.
        num_skipped: The number of the target's ids between the start token and the output.
        prompt: The parts of the target's ids that were committed when the output was started.
    """

    def __init__(self, writer: SpeechWriter, draft: Request, num_skipped: int, prompt: SpokenPrompt) -> None:
        super().__init__(writer.engine, draft)
        self.num_skipped = num_skipped
        self._writer = writer
        self._prompt = prompt
        self._transcript = Transcript(writer.target)

    @property
    def size(self) -> int:
        return len(self._transcript.words.ids)

    def follow(self, prefix: Iterable[int] = ()) -> WindowFollower:
        return WindowDraft(self._transcript, 0, 0.0 if self._prompt.has_timestamps else None).follow()

    def update(self) -> None:
        self._transcript.update([*self._prompt.output, *self._target_ids()])

    def _target_ids(self) -> list[int]:
        writer, own, target = self._writer, self._writer.draft, self._writer.target
        tokens = self._draft.tokens
        if self._draft.finish_reason == "stop":
            return [*writer.mapped(tokens, own, target), target.audio.end]
        # Only the last word may change, and it follows the last timestamp
        last = next((i for i in range(len(tokens), 0, -1) if own.audio.is_timestamp(tokens[i - 1])), 0)
        known = writer.mapped(tokens[:last], own, target)
        return [*known, *target.text_tokens(settled(own.decode([*filter(own.is_spoken, tokens[last:])])))]
