"""A stream of live speech: which window is decoded next, and which text is final.

A window starts where the last final segment ends, and has everything that has been heard since. While it grows, it is
decoded again and again: `next_window` hears what has arrived, `attempt` says how to decode it, and `add` takes the
output. It makes words final (agreement.py), keeps the output as the draft of the next one (hypothesis.py), and cuts the
window after a final segment. This module knows neither the engine nor the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...decoding.results import GenerationStats
from ...errors import InputError
from ...sampling import GenerationOptions
from ...sampling.values import Number
from ..audio_file import SAMPLE_RATE, Samples
from ..options import TranscriptionOptions, transcription_specs
from ..segments import FRAMES_PER_SECOND, DecodedWindow, Window
from ..speech_text import SpeechText
from ..transcription import Attempt, has_no_speech
from .agreement import Agreement, HeardWord
from .hypothesis import Hypothesis
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
        text: Encodes and decodes text.
        options: How to transcribe.
        decoding: How to decode: drafts.
        num_mel_bins: See `LiveRecording`.
        every: How many seconds of new audio are decoded at a time, at least.
        language: The language of the speech; None if it must be detected.

    Attributes:
        last: The last hypothesis, from the start of the window, or None.
        has_language: Whether the language is known. It is detected for each window again until some text is final.
        transcript: The text tokens before the window, for given texts; empty without them.
        is_done: Whether the last update has been made.
    """

    def __init__(
        self,
        text: SpeechText,
        options: TranscriptionOptions,
        decoding: GenerationOptions,
        num_mel_bins: Sequence[int],
        every: float,
        language: str | None,
    ) -> None:
        self.options = options
        self.decoding = decoding
        self.language = language
        self.has_language = language is not None
        self.last: Hypothesis | None = None
        self.transcript: list[int] = []
        self.is_done = False
        self._text = text
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
        self._initial = text.initial_prompt(options.initial_prompt)
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

    def next_window(self) -> Window | None:
        """Hear what has arrived, and return the window to decode; None if it has nothing new but silence."""
        if self._recording.waiting_seconds:
            self._is_loud = self._recording.hear(self._start + self._longest)
            size = self._recording.num_frames - self._start
            if size and (self._is_loud or not self._is_settled):
                frames = self._recording.window(self._start, size, self._text.audio.window_frames)
                return Window(self._start, size, frames)
            self._cut(None, None, self._recording.num_frames - KEPT_FRAMES)
        return None

    def attempt(self, window: Window, max_previous: int) -> Attempt:
        """Return how to decode a window. max_previous: the maximum number of tokens of previous text."""
        words = self._context if self.options.condition_on_previous_text else []
        initial = self._initial[-max_previous:]
        sentence = [token for word in words for token in word.tokens]
        room = max_previous - len(initial)
        return Attempt(window, [*initial, *sentence[max(0, len(sentence) - room) :]], 0.0, self.transcript)

    def add(self, window: Window, decoded: DecodedWindow, stats: GenerationStats) -> LiveUpdate:
        """Add the output for a window."""
        assert self.language is not None
        self.last = Hypothesis.of(window.seek, decoded.tokens, decoded.from_draft, self._text, self.language)
        if has_no_speech(decoded, self.options):  # the text is dropped, but the model may well write it again
            self.last = self.last.after(0)
        final = self._agreement.add(self.last.words)
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

    def end(self) -> LiveUpdate | None:
        """Return the last update, if there is nothing more to decode."""
        if not self._recording.is_all_heard:
            return None
        return self._update(self._agreement.finish(), GenerationStats(), is_last=True)

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
        assert self.last is not None
        num_words, num_final = len(self.last.words), self._agreement.num_final
        if self._agreement.leaves_out:
            num_final = min(num_final, num_words - 1)  # the last segment does not end where the final text does
        ends = [
            end._replace(frame=min(end.frame, self._written)) for end in self.last.ends if end.num_words <= num_final
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
        assert self.last is not None
        ends = [end for end in self.last.ends if end.frame > window.seek + self._longest // 2]
        final = self._agreement.finish(ends[-1].num_words if ends else None)
        if ends:
            self._cut(*ends[-1])
        else:
            size = window.size if self.last.words else window.size - KEPT_FRAMES  # speech may begin at the end
            is_left_out = not final and self._written > window.seek + self._longest // 2
            self._cut(None, None, self._written if is_left_out else window.seek + size)
            self._context = []
        return final

    def _cut(self, num_words: int | None, num_tokens: int | None, frame: int) -> None:
        """Start the window at a frame. The words and tokens before it, which are final, leave the last hypothesis.

        num_words, num_tokens: of the last hypothesis; None means all.
        """
        words = self._agreement.cut(num_words)
        self.last = None if self.last is None or num_tokens is None else self.last.after(num_tokens)
        self._context = [*last_sentence([*self._context, *words])][-MAX_CONTEXT_WORDS:]
        if self.decoding.draft_text:  # otherwise memory would grow
            self.transcript += [token for word in words for token in word.tokens]
        self._start = min(max(frame, self._start), self._recording.num_frames)
        self._recording.drop_before(self._start)

    def _update(self, final: Sequence[HeardWord], stats: GenerationStats, *, is_last: bool = False) -> LiveUpdate:
        self.is_done = is_last
        self.has_language = self.has_language or bool(final)
        return LiveUpdate(
            final=text_of(final),
            pending=text_of(self._agreement.pending),
            seconds=self._recording.num_heard / SAMPLE_RATE,
            stats=stats,
            language=self.language,
            is_last=is_last,
            pieces=tuple(merge_pieces(Piece(word.text, word.from_draft) for word in final)),
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
