"""Decodes the hypotheses of several live streams together, with a separate engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...decoding.request import Request
from ...draft_length.base import DraftLength
from ...engine import Engine
from ...errors import InputError
from ...loading.tokenizer import Tokenizer
from ...models.base import EncoderDecoder
from ...models.threads import use_mlx
from ...sampling import GenerationOptions
from ...sampling.options import validate
from ...sampling.values import Number
from ..draft_texts import GivenTranscript, RecordingDraft, WindowDrafts
from ..keywords import split_names
from ..options import TranscriptionOptions
from ..scheduler import language_code
from ..segments import Window
from ..speech_text import SpeechText
from ..window_requests import WindowRequests, detected_language
from .hypothesis import LastHypothesis
from .stream import LiveStream
from .update import LiveUpdate

# The transcription options of live speech. All others have no effect on it
OPTIONS = (
    *("task", "language", "initial_prompt", "condition_on_previous_text"),
    *("logprob_threshold", "no_speech_threshold", "sample_len"),
)
EVERY = Number(0.1, 10)  # seconds


@dataclass
class Decoding:
    """A window that is being decoded.

    from_draft: for each token so far, whether it is an accepted draft token.
    """

    stream: LiveStream
    window: Window
    requests: WindowRequests
    from_draft: list[bool] = field(default_factory=list)


@dataclass(eq=False)
class LiveScheduler:
    """Decodes the hypotheses of several streams together. Each stream has at most one at a time.

    Args:
        model: A speech model.
        tokenizer: The tokenizer of the model.
        options: How to transcribe; a stream may override some of these options.
        decoding: How to decode: drafts.
        slots: The maximum number of streams.
        engine: Decodes the hypotheses; nothing else uses it.
        draft_length: Creates the `DraftLength` of a request with these options.
        num_mel_bins: See `Recording`.
    """

    model: EncoderDecoder
    tokenizer: Tokenizer
    options: TranscriptionOptions
    decoding: GenerationOptions
    slots: int
    engine: Engine
    draft_length: Callable[[GenerationOptions, int], DraftLength]
    num_mel_bins: Sequence[int]
    _streams: dict[LiveStream, Sequence[RecordingDraft]] = field(init=False, default_factory=dict)  # with given texts
    _decoding: dict[Request, Decoding] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        assert self.model.audio is not None
        self._audio = self.model.audio
        self._text = SpeechText(self.tokenizer, self._audio)

    def open(self, overrides: Mapping[str, Any] | None = None, every: float = 1.0) -> LiveStream:
        """Return a new stream with its own options, which does not have a slot yet. Raises `InputError`."""
        own, decoding = split_names(overrides or {})
        require_live(own)
        options = replace(self.options, **own)
        chosen = self.decoding.override_for_row(decoding)
        language = language_code(self._audio, options)
        return LiveStream(self._text, options, chosen, self.num_mel_bins, validate("every", EVERY, every), language)

    def start(self, stream: LiveStream) -> None:
        """Give a stream a slot. The caller sees to it that there is one."""
        language = stream.options.output_language(stream.language or "")
        pieces = self.model.pieces or {}
        given = [GivenTranscript(text, self._text, language, pieces) for text in stream.decoding.draft_text]
        self._streams[stream] = [*map(RecordingDraft, given)]

    def cancel(self, stream: LiveStream) -> None:
        """Drop a stream and free its slot. Does nothing if it has ended."""
        self._streams.pop(stream, None)
        for request, one in [*self._decoding.items()]:
            if one.stream is stream:
                self.engine.cancel(request)
                del self._decoding[request]

    @property
    def streams(self) -> list[LiveStream]:
        """The streams that have a slot."""
        return [*self._streams]

    @property
    def is_idle(self) -> bool:
        """Whether no window is being decoded, and none is due."""
        return not (self._decoding or any(stream.is_due for stream in self._streams))

    def step(self) -> list[tuple[LiveStream, LiveUpdate]]:
        """Submit the windows that are due, and run one round of all."""
        use_mlx()
        busy = {one.stream for one in self._decoding.values()}
        due = [stream for stream in self._streams if stream not in busy and stream.is_due]
        updates = [(stream, ended) for stream in due if (ended := self._submit(stream)) is not None]
        updates += self._decode_round()
        for stream, update in updates:
            if update.is_last:
                self.cancel(stream)
        return updates

    def _submit(self, stream: LiveStream) -> LiveUpdate | None:
        """Submit the next window of a stream. Returns its last update if there is nothing more to decode."""
        window = stream.next_window()
        if window is None:
            return stream.end()
        if not stream.has_language:
            stream.language = detected_language(self.model, self._audio, window.audio)
        assert stream.language is not None
        drafts: list[WindowDrafts] = [*self._streams[stream]]
        if stream.last is not None:
            drafts.insert(0, LastHypothesis(stream.last, self._text, self.model.pieces or {}))
        requests = WindowRequests(
            self.model, self._text, stream.language, stream.options, stream.decoding, drafts=drafts
        )
        start = requests.decoder_prompt(stream.attempt(window, requests.max_positions // 2 - 1))
        length = self.draft_length(start.options, self.slots)
        request = self.engine.submit(window.audio, start.options, length, start)
        self._decoding[request] = Decoding(stream, window, requests)
        return None

    def _decode_round(self) -> list[tuple[LiveStream, LiveUpdate]]:
        updates = []
        for event in self.engine.step() if self._decoding else ():
            one = self._decoding[event.request]
            one.from_draft += event.round.from_draft
            if event.is_last:
                del self._decoding[event.request]
                updates.append((one.stream, self._update(one, event.request)))
        return updates

    def _update(self, one: Decoding, request: Request) -> LiveUpdate:
        if request.error:
            return one.stream.failed(ArithmeticError(request.error))
        return one.stream.add(one.window, one.requests.decoded(request), one.from_draft, request.stats)


def require_live(options: Iterable[str]) -> None:
    """Raise `InputError` for a transcription option without effect on live speech."""
    for name in options:
        if name not in OPTIONS:
            raise InputError("has no effect on live speech", name, "leave it out")
