"""The windows of a live stream as a scheduler decodes them: their language and their drafts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...decoding.results import GenerationStats
from ..segments import DecodedWindow, Window
from ..transcription import Attempt
from ..window_requests import WindowRequests, detected_language
from .hypothesis import LastHypothesis
from .stream import LiveStream
from .update import LiveUpdate


@dataclass(eq=False)
class LiveWindows:
    """The windows of a live stream. The next one is due when enough audio has arrived.

    requests: With the given draft texts, to which the last hypothesis is added.
    """

    number: int
    stream: LiveStream
    requests: WindowRequests
    window: Window | None = field(init=False, default=None)
    is_live = True

    def __post_init__(self) -> None:
        self._given = self.requests.drafts

    @property
    def is_due(self) -> bool:
        return self.stream.is_due

    def next_attempt(self) -> Attempt | LiveUpdate | None:
        """Hear what has arrived. If there is nothing to decode, return the last update, or None if more will arrive."""
        stream, requests = self.stream, self.requests
        self.window = stream.next_window()
        if self.window is None:
            ended = stream.end()
            return ended and ended._replace(number=self.number)
        if not stream.has_language:
            stream.language = detected_language(requests.model, requests.audio, self.window.audio)
        assert stream.language is not None
        drafts = [*self._given]
        if stream.last is not None:
            drafts.insert(0, LastHypothesis(stream.last, requests.text, requests.model.pieces or {}))
        self.requests = replace(requests, language=stream.language, drafts=drafts)
        return stream.attempt(self.window, requests.max_previous)

    def add(self, output: DecodedWindow, stats: GenerationStats) -> LiveUpdate:
        assert self.window is not None
        return self.stream.add(self.window, output, stats)._replace(number=self.number)

    def failed(self, error: Exception) -> LiveUpdate:
        return self.stream.failed(error)._replace(number=self.number)
