"""A stream of live speech, which determines the window to decode next and the text that is final.

A window starts where the last final segment ends, and contains all audio since then. As the window grows, it is decoded
again and again: `next_attempt` computes the frames of the samples that have arrived and returns an `Attempt` to decode
the window, and `add` receives the output. `add` makes words final (agreement.py), keeps the output as the draft of the
next one (hypothesis.py), and cuts the window after a final segment. This module does not depend on the engine.
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
from .agreement import Agreement, HypothesisWord
from .hypothesis import Hypothesis, LastHypothesis
from .recording import LiveRecording
from .update import LiveUpdate, Piece, merge_pieces

LONGEST = 28 / 30  # part of the model's window; a window of this length is cut, even if its text is not final
USUAL = 15 / 30  # part of the model's window
KEPT_FRAMES = FRAMES_PER_SECOND // 2  # of silence that are kept before a window, because speech may begin in them
SKIPPED_FRAMES = 3 * FRAMES_PER_SECOND  # a window is cut if this many frames at its end contain no text
SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？", "।", "؟")  # noqa: RUF001
MAX_CONTEXT_WORDS = 60

# The transcription options that apply to live speech
OPTIONS = (
    *("task", "language", "initial_prompt", "condition_on_previous_text"),
    *("logprob_threshold", "no_speech_threshold", "sample_len"),
)
EVERY = Number(0.1, 10)  # seconds


class LiveStream:
    """A stream of live speech. A second thread may call `append` and `finish`.

    Args:
        requests: Makes the requests for windows, with the given draft texts. The language is "" if it must be detected.
        num_mel_bins: See `LiveRecording`.
        every: The minimum number of seconds of new audio for the next hypothesis.

    Attributes:
        number: The number of the stream, set by the scheduler that decodes it.
        requests: Makes the requests for the current window. The draft texts include the last hypothesis.
        window: The window that is being decoded, or was decoded last.
        is_done: Whether the last update has been returned.
    """

    is_live = True

    def __init__(self, requests: WindowRequests, num_mel_bins: Sequence[int], every: float) -> None:
        self.number = 0
        self.requests = requests
        self.window: Window | None = None
        self.is_done = False
        self._given = requests.drafts
        self._has_language = bool(requests.language)  # if not, it is detected in each window until text is final
        self._last: Hypothesis | None = None  # only the part that starts with the window
        self._transcript: list[int] = []  # text tokens before the window; empty if no draft texts are given
        text = self._text = requests.text
        self._every = every
        self._longest = int(LONGEST * text.audio.window_frames)
        self._usual = int(USUAL * text.audio.window_frames)
        self._recording = LiveRecording(num_mel_bins)
        self._start = 0  # the first frame of the window
        self._is_settled = True  # whether the last hypothesis also covers silence after all speech
        self._is_loud = False
        self._agreement = Agreement()
        self._covered = 0  # the frame at which the last hypothesis's window ends
        self._written = 0  # the frame at the end of the first window whose hypothesis contains the last final word
        self._initial = text.initial_prompt(requests.options.initial_prompt)
        self._context: list[HypothesisWord] = []  # final words before the window

    def append(self, samples: Samples) -> None:
        """Append samples, (N,) from -1 to 1, at 16 kHz."""
        self._recording.append(samples)

    def finish(self) -> None:
        """End the stream. All text becomes final once the audio that has arrived is decoded."""
        self._recording.finish()

    @property
    def waiting_seconds(self) -> float:
        """The duration of the audio that no hypothesis covers yet."""
        return self._recording.waiting_seconds

    @property
    def is_due(self) -> bool:
        """Whether enough audio has arrived for the next hypothesis, or the stream has ended."""
        return not self.is_done and (self._recording.is_finished or self.waiting_seconds >= self._every)

    def next_attempt(self) -> Attempt | LiveUpdate | None:
        """Process the samples that have arrived, and return an attempt to decode the window.

        If there is nothing to decode, return None, or the last update if the stream has ended.
        """
        window = self._next_window()
        if window is None:
            if not self._recording.is_all_processed:
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
            self._is_loud = self._recording.process(self._start + self._longest)
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
        if has_no_speech(decoded, self.requests.options):  # drop the words, but keep the tokens as a draft
            self._last = self._last.after(0)
        final = self._agreement.add(self._last.words)
        self._written = self._covered if final else self._written
        self._covered = window.seek + window.size
        self._is_settled = not (self._is_loud or self._agreement.pending)
        if self._recording.is_all_processed:
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
        """Cut a long window after a final segment, or any window after its final text if no text follows for 3 seconds.

        After a cut, the window has the usual length if possible, because context improves recognition. Speech that a
        hypothesis leaves out is recognized only at the start of a window without a prompt, because a model tends to
        repeat its prompt. Because a model often outputs the end of the window as the end of the last segment, no cut is
        made after the end of the first window whose hypothesis contains the last final word.
        """
        assert self._last is not None
        num_words, num_final = len(self._last.words), self._agreement.num_final
        if self._agreement.leaves_out:
            num_final = min(num_final, num_words - 1)  # the final text continues after the last segment
        ends = [
            end._replace(frame=min(end.frame, self._written)) for end in self._last.ends if end.num_words <= num_final
        ]
        if num_words and not self._agreement.pending:
            end = ends[-1] if ends and ends[-1].num_words == num_words else (None, None, self._written)
            if self._covered - end[2] >= SKIPPED_FRAMES:
                self._cut(*end)
                self._context = []
                return
        if ends and window.size > self._usual:
            self._cut(*next((end for end in ends if self._covered - end.frame <= self._usual), ends[-1]))

    def _cut_by_force(self, window: Window) -> list[HypothesisWord]:
        """Make the text final up to the end of the last segment, or else all text, and cut the window there.

        Returns the words that become final.
        """
        assert self._last is not None
        ends = [end for end in self._last.ends if end.frame > window.seek + self._longest // 2]
        final = self._agreement.finish(ends[-1].num_words if ends else None)
        if ends:
            self._cut(*ends[-1])
        else:
            size = window.size if self._last.words else window.size - KEPT_FRAMES  # speech may begin in these
            is_left_out = not final and self._written > window.seek + self._longest // 2
            self._cut(None, None, self._written if is_left_out else window.seek + size)
            self._context = []
        return final

    def _cut(self, num_words: int | None, num_tokens: int | None, frame: int) -> None:
        """Start the window at a frame, and remove the words and tokens before it from the last hypothesis.

        num_words, num_tokens: The numbers to remove; None means all. What is removed must be final.
        """
        words = self._agreement.cut(num_words)
        self._last = None if self._last is None or num_tokens is None else self._last.after(num_tokens)
        self._context = [*last_sentence([*self._context, *words])][-MAX_CONTEXT_WORDS:]
        if self._given:  # only given draft texts need the transcript, and it grows with the stream
            self._transcript += [token for word in words for token in word.tokens]
        self._start = min(max(frame, self._start), self._recording.num_frames)
        self._recording.drop_before(self._start)

    def _update(self, final: Sequence[HypothesisWord], stats: GenerationStats, *, is_last: bool = False) -> LiveUpdate:
        self.is_done = is_last
        self._has_language = self._has_language or bool(final)
        return LiveUpdate(
            final=text_of(final),
            pending=text_of(self._agreement.pending),
            seconds=self._recording.num_processed / SAMPLE_RATE,
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


def text_of(words: Iterable[HypothesisWord]) -> str:
    return "".join(word.text for word in words)


def last_sentence(words: Sequence[HypothesisWord]) -> Sequence[HypothesisWord]:
    """Return the words after the last sentence end that precedes the last word."""
    ends = (i for i in range(len(words) - 1, 0, -1) if words[i - 1].text.rstrip().endswith(SENTENCE_ENDS))
    return words[next(ends, 0) :]
