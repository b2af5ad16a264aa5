"""A stream of live speech: which window is decoded next, and which text is final.

A window starts where the last final segment ends, and has everything that has been heard since. While it grows, it is
decoded again and again: `next_attempt` hears what has arrived and says how to decode it, and `add` takes the output. It
makes words final (agreement.py), keeps the output as the draft of the next one (hypothesis.py), and cuts the window
after a final segment. This module does not know the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...decoding.results import GenerationStats
from ...errors import InputError
from ...sampling.values import Number
from ..audio_file import SAMPLE_RATE, Samples
from ..options import transcription_specs
from ..segments import FRAMES_PER_SECOND, DecodedWindow, Window
from ..transcription import Attempt, has_no_speech
from ..window_requests import WindowRequests, detected_language
from .agreement import Agreement, HeardWord
from .hypothesis import Hypothesis, LastHypothesis
from .recording import LiveRecording
from .update import LiveUpdate, Piece, merge_pieces

LONGEST = 28 / 30  # of what the model hears; a window of this length is cut, even if its text is not final
USUAL = 15 / 30  # of what the model hears
KEPT_FRAMES = FRAMES_PER_SECOND // 2  # of silence before a window, because speech may begin in it
SKIPPED_FRAMES = 3 * FRAMES_PER_SECOND  # without text at the end of a window, after which it is cut
SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？", "।", "؟")  # noqa: RUF001
MAX_CONTEXT_WORDS = 60

# The transcription options of live speech. All others have no effect on it
OPTIONS = (
    *("task", "language", "initial_prompt", "condition_on_previous_text"),
    *("logprob_threshold", "no_speech_threshold", "sample_len"),
)
EVERY = Number(0.1, 10)  # seconds


class LiveStream:
    """A stream of live speech. Another thread may call `append` and `finish`.

    Args:
        requests: The requests for its windows, with given draft texts. The language is "" if it must be detected.
        num_mel_bins: See `LiveRecording`.
        every: How many seconds of new audio are decoded at a time, at least.

    Attributes:
        number: Set by the scheduler that decodes it.
        requests: The requests for the current window, with the last hypothesis as a draft text, too.
        window: The window that was decoded last, or is being decoded.
        is_done: Whether the last update has been made.
    """

    is_live = True

    def __init__(self, requests: WindowRequests, num_mel_bins: Sequence[int], every: float) -> None:
        self.number = 0
        self.requests = requests
        self.window: Window | None = None
        self.is_done = False
        self._given = requests.drafts
        self._has_language = bool(requests.language)  # otherwise it is detected again until some text is final
        self._last: Hypothesis | None = None  # from the start of the window
        self._transcript: list[int] = []  # text tokens before the window, for given texts; empty without them
        text = self._text = requests.text
        self._every = every
        self._longest = int(LONGEST * text.audio.window_frames)
        self._usual = int(USUAL * text.audio.window_frames)
        self._recording = LiveRecording(num_mel_bins)
        self._start = 0  # the first frame of the window
        self._is_settled = True  # whether a hypothesis has heard the silence after all speech so far
        self._is_loud = False
        self._agreement = Agreement()
        self._heard = 0  # the last frame that the last hypothesis heard
        self._written = 0  # the last frame that was heard when a hypothesis first wrote the last final word
        self._initial = text.initial_prompt(requests.options.initial_prompt)
        self._context: list[HeardWord] = []  # final words before the window

    def append(self, samples: Samples) -> None:
        """Append samples, (N,) from -1 to 1, at 16 kHz."""
        self._recording.append(samples)

    def finish(self) -> None:
        """End the speech. After what has arrived is decoded, all text is final."""
        self._recording.finish()

    @property
    def waiting_seconds(self) -> float:
        """How much audio no hypothesis has heard yet."""
        return self._recording.waiting_seconds

    @property
    def is_due(self) -> bool:
        """Whether enough audio has arrived for the next hypothesis, or no more will."""
        return not self.is_done and (self._recording.is_finished or self.waiting_seconds >= self._every)

    def next_attempt(self) -> Attempt | LiveUpdate | None:
        """Hear what has arrived, and return how to decode the window.

        If it has nothing new but silence, return the last update, or None if more speech may arrive.
        """
        window = self._next_window()
        if window is None:
            if not self._recording.is_all_heard:
                return None
            return self._update(self._agreement.finish(), GenerationStats(), is_last=True)
        requests = self.requests
        language = requests.language
        if not self._has_language:
            language = detected_language(requests.model, requests.audio, window.audio)
        drafts = [*self._given]
        if self._last is not None:
            drafts.insert(0, LastHypothesis(self._last, self._text))
        self.requests = replace(requests, language=language, drafts=drafts)
        self.window = window
        most = requests.max_previous
        initial = self._initial[-most:]
        words = self._context if requests.options.condition_on_previous_text else []
        sentence = [token for word in words for token in word.tokens]
        room = most - len(initial)
        return Attempt(window, [*initial, *sentence[max(0, len(sentence) - room) :]], 0.0, self._transcript)

    def _next_window(self) -> Window | None:
        if self._recording.waiting_seconds:
            self._is_loud = self._recording.hear(self._start + self._longest)
            size = self._recording.num_frames - self._start
            if size and (self._is_loud or not self._is_settled):
                frames = self._recording.window(self._start, size, self._text.audio.window_frames)
                return Window(self._start, size, frames)
            self._cut(None, None, self._recording.num_frames - KEPT_FRAMES)
        return None

    def add(self, decoded: DecodedWindow, stats: GenerationStats) -> LiveUpdate:
        """Add the output for the window."""
        window, language = self.window, self.requests.language
        assert window is not None
        self._last = Hypothesis.of(window.seek, decoded.tokens, decoded.from_draft, self._text, language)
        if has_no_speech(decoded, self.requests.options):  # the text is dropped, but the model may well write it again
            self._last = self._last.after(0)
        final = self._agreement.add(self._last.words)
        self._written = self._heard if final else self._written
        self._heard = window.seek + window.size
        self._is_settled = not (self._is_loud or self._agreement.pending)
        if self._recording.is_all_heard:
            return self._update([*final, *self._agreement.finish()], stats, is_last=True)
        if window.size == self._longest:
            final += self._cut_by_force(window)
        else:
            self._cut_final(window)
        return self._update(final, stats)

    def failed(self, error: Exception) -> LiveUpdate:
        """Return the last update of a stream that cannot be continued. The pending text is lost."""
        return self._update([], GenerationStats(), is_last=True)._replace(pending="", error=error)

    def _cut_final(self, window: Window) -> None:
        """Cut a window after a final segment if it is long, or after all final text if nothing follows it for a while.

        After a cut, the window has the usual length if possible, because speech is heard better in its context. But
        what a hypothesis leaves out is heard only at the start of a window, and without a prompt: with one, the model
        would rather repeat it. A cut is never after what had been heard when the last final word was first written,
        because a model often gives the end of the window as the end of the last segment.
        """
        assert self._last is not None
        num_words, num_final = len(self._last.words), self._agreement.num_final
        if self._agreement.leaves_out:
            num_final = min(num_final, num_words - 1)  # the last segment does not end where the final text does
        ends = [
            end._replace(frame=min(end.frame, self._written)) for end in self._last.ends if end.num_words <= num_final
        ]
        if num_words and not self._agreement.pending:
            end = ends[-1] if ends and ends[-1].num_words == num_words else (None, None, self._written)
            if self._heard - end[2] >= SKIPPED_FRAMES:
                self._cut(*end)
                self._context = []
                return
        if ends and window.size > self._usual:
            self._cut(*next((end for end in ends if self._heard - end.frame <= self._usual), ends[-1]))

    def _cut_by_force(self, window: Window) -> list[HeardWord]:
        """Make the window final up to its last segment, or all of it, and cut it there. Returns what becomes final."""
        assert self._last is not None
        ends = [end for end in self._last.ends if end.frame > window.seek + self._longest // 2]
        final = self._agreement.finish(ends[-1].num_words if ends else None)
        if ends:
            self._cut(*ends[-1])
        else:
            size = window.size if self._last.words else window.size - KEPT_FRAMES  # speech may begin at the end
            is_left_out = not final and self._written > window.seek + self._longest // 2
            self._cut(None, None, self._written if is_left_out else window.seek + size)
            self._context = []
        return final

    def _cut(self, num_words: int | None, num_tokens: int | None, frame: int) -> None:
        """Start the window at a frame. The words and tokens before it, which are final, leave the last hypothesis.

        num_words, num_tokens: of the last hypothesis; None means all.
        """
        words = self._agreement.cut(num_words)
        self._last = None if self._last is None or num_tokens is None else self._last.after(num_tokens)
        self._context = [*last_sentence([*self._context, *words])][-MAX_CONTEXT_WORDS:]
        if self._given:  # otherwise memory would grow
            self._transcript += [token for word in words for token in word.tokens]
        self._start = min(max(frame, self._start), self._recording.num_frames)
        self._recording.drop_before(self._start)

    def _update(self, final: Sequence[HeardWord], stats: GenerationStats, *, is_last: bool = False) -> LiveUpdate:
        self.is_done = is_last
        self._has_language = self._has_language or bool(final)
        return LiveUpdate(
            final=text_of(final),
            pending=text_of(self._agreement.pending),
            seconds=self._recording.num_heard / SAMPLE_RATE,
            stats=stats,
            language=self.requests.language or None,
            is_last=is_last,
            pieces=tuple(merge_pieces(Piece(word.text, word.from_draft) for word in final)),
            number=self.number,
        )


def require_live(options: Iterable[str]) -> None:
    """Raise `InputError` for a transcription option without effect on live speech."""
    for name in options:
        if name in transcription_specs() and name not in OPTIONS:
            raise InputError("has no effect on live speech", name, "leave it out")


def text_of(words: Iterable[HeardWord]) -> str:
    return "".join(word.text for word in words)


def last_sentence(words: Sequence[HeardWord]) -> Sequence[HeardWord]:
    """Return the words after the last end of a sentence before the last word."""
    ends = (i for i in range(len(words) - 1, 0, -1) if words[i - 1].text.rstrip().endswith(SENTENCE_ENDS))
    return words[next(ends, 0) :]
