"""Decodes the hypotheses of several live streams together, with an engine of their own."""

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
class StreamState:
    """How to decode the windows of a stream, and the request for its current window if it is being decoded.

    from_draft: for each token of the request so far, whether it is an accepted draft token.
    """

    requests: WindowRequests
    given: Sequence[RecordingDraft]
    window: Window | None = None
    request: Request | None = None
    from_draft: list[bool] = field(default_factory=list)


class LiveScheduler:
    """Decodes the hypotheses of several streams together. Each stream has at most one at a time.

    Args:
        model: A speech model.
        tokenizer: The tokenizer of the model.
        options: How to transcribe streams that have no options of their own.
        decoding: How to decode: drafts.
        slots: The maximum number of streams.
        engine: Decodes the hypotheses; nothing else uses it.
        draft_length: Creates the `DraftLength` of a request with these options.
        num_mel_bins: See `Recording`.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizer: Tokenizer,
        options: TranscriptionOptions,
        decoding: GenerationOptions,
        *,
        slots: int,
        engine: Engine,
        draft_length: Callable[[GenerationOptions, int], DraftLength],
        num_mel_bins: Sequence[int],
    ) -> None:
        assert model.audio is not None
        self.slots = slots
        self._model = model
        self._audio = model.audio
        self._text = SpeechText(tokenizer, model.audio)
        self._options = options
        self._decoding = decoding
        self._engine = engine
        self._draft_length = draft_length
        self._num_mel_bins = num_mel_bins
        self._streams: dict[LiveStream, StreamState] = {}

    def open(self, overrides: Mapping[str, Any] | None = None, every: float = 1.0) -> LiveStream:
        """Return a new stream with its own options, which does not have a slot yet. Raises `InputError`."""
        own, decoding = split_names(overrides or {})
        require_live(own)
        options = replace(self._options, **own)
        chosen = self._decoding.override_for_row(decoding)
        language = language_code(self._audio, options)
        return LiveStream(self._text, options, chosen, self._num_mel_bins, validate("every", EVERY, every), language)

    def start(self, stream: LiveStream) -> None:
        """Give a stream a slot. The caller sees to it that there is one."""
        language = stream.language or ""
        output_language = stream.options.output_language(language)
        given = [
            RecordingDraft(GivenTranscript(text, self._text, output_language, self._model.pieces or {}))
            for text in stream.decoding.draft_text
        ]
        requests = WindowRequests(self._model, self._text, language, stream.options, stream.decoding)
        self._streams[stream] = StreamState(requests, given)

    def cancel(self, stream: LiveStream) -> None:
        """Drop a stream and free its slot. Does nothing if it has ended."""
        state = self._streams.pop(stream, None)
        if state is not None and state.request is not None:
            self._engine.cancel(state.request)

    @property
    def streams(self) -> list[LiveStream]:
        """The streams that have a slot."""
        return [*self._streams]

    @property
    def is_idle(self) -> bool:
        """Whether no window is being decoded, and none is due."""
        return not any(state.request or stream.is_due for stream, state in self._streams.items())

    def step(self) -> list[tuple[LiveStream, LiveUpdate]]:
        """Submit the windows that are due, and run one round of all."""
        use_mlx()
        updates = []
        for stream, state in [*self._streams.items()]:
            if state.request is None and stream.is_due and (ended := self._submit(stream, state)):
                updates.append((stream, ended))
        updates += self._decode_round()
        for stream, update in updates:
            if update.is_last:
                self.cancel(stream)
        return updates

    def _submit(self, stream: LiveStream, state: StreamState) -> LiveUpdate | None:
        """Submit the next window of a stream. Returns its last update if there is nothing more to decode."""
        window = stream.next_window()
        if window is None:
            return stream.end()
        if not stream.has_language:
            stream.language = detected_language(self._model, self._audio, window.audio)
        assert stream.language is not None
        requests = replace(state.requests, language=stream.language, drafts=[*self._last(stream), *state.given])
        start = requests.decoder_prompt(stream.attempt(window, requests.max_positions // 2 - 1))
        length = self._draft_length(start.options, self.slots)
        state.window, state.from_draft = window, []
        state.request = self._engine.submit(window.audio, start.options, length, start)
        return None

    def _last(self, stream: LiveStream) -> list[WindowDrafts]:
        """Return the last hypothesis of a stream as a draft text, if there is one."""
        return [] if stream.last is None else [LastHypothesis(stream.last, self._text, self._model.pieces or {})]

    def _decode_round(self) -> list[tuple[LiveStream, LiveUpdate]]:
        if self._engine.is_idle:
            return []
        streams = {state.request: (stream, state) for stream, state in self._streams.items()}
        updates = []
        for event in self._engine.step():
            stream, state = streams[event.request]
            state.from_draft += event.round.from_draft
            if event.is_last:
                updates.append((stream, self._update(stream, state, event.request)))
        return updates

    def _update(self, stream: LiveStream, state: StreamState, request: Request) -> LiveUpdate:
        assert state.window is not None
        state.request = None
        if request.error:
            return stream.failed(ArithmeticError(request.error))
        return stream.add(state.window, state.requests.decoded(request), state.from_draft, request.stats)


def require_live(options: Iterable[str]) -> None:
    """Raise `InputError` for a transcription option without effect on live speech."""
    for name in options:
        if name not in OPTIONS:
            raise InputError("has no effect on live speech", name, "leave it out")
