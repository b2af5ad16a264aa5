"""Drafts from transcripts, either of a whole recording, with or without times, or of one window.

Only words are compared with the output (`drafters.draft_text`). Punctuation and times, which differ most often, are
skipped in the comparison, but drafts contain them. Drafts contain times even if the transcript has none, because the
next segment usually starts where the last one ends.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import NamedTuple, Protocol

from ..drafters.base import TEXT
from ..drafters.draft_text import DraftText, Place, TextFollower
from ..loading.tokenizer import REPLACEMENT
from .segments import SECONDS_PER_POSITION
from .speech_text import WITHOUT_SPACES, SpeechText
from .voice import SpeechTimes

CLOCK = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{2})[.,](\d{3})"
CUE = re.compile(rf"^(?:\d+[ \t]*\n)?[ \t]*{CLOCK}[ \t]+-->[ \t]+{CLOCK}.*\n?", re.MULTILINE)
TIME_TOKEN = re.compile(r"<\|(\d{1,6}\.\d{1,3})\|>")
MAX_GAP = 8  # maximum number of punctuation tokens between words; further ones, as in endless dots, count as words
TOLERANCE = 0.2  # maximum difference in seconds between the times in two transcripts of the same speech


class Cue(NamedTuple):
    """A part of a transcript. The times are in seconds from the start of the recording; None if unknown."""

    text: str
    start: float | None = None
    end: float | None = None


def cues_of(text: str) -> list[Cue]:
    """Return the parts of a transcript: subtitles (SRT, VTT), JSON with segments, or text with tokens like <|1.20|>.

    Any other text is one part without times.
    """
    if found := json_cues(text):
        return found
    text = text.replace("\r\n", "\n")
    _, *parts = CUE.split(text)
    if parts:
        rows = (parts[i : i + 9] for i in range(0, len(parts), 9))
        return [Cue(content.partition("\n\n")[0], seconds(clock[:4]), seconds(clock[4:])) for *clock, content in rows]
    first, *parts = TIME_TOKEN.split(text)
    cues = [Cue(first)]
    for time, content in zip(parts[::2], parts[1::2], strict=True):
        if cues[-1].text.strip():
            cues[-1] = cues[-1]._replace(end=float(time))
        cues.append(Cue(content, float(time)))
    return [cue for cue in cues if cue.text.strip()]


def json_cues(text: str) -> list[Cue] | None:
    """Return the segments of a transcript in the format of openai-whisper, or None for any other text."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        segments = json.loads(text)["segments"]
        cues = [Cue(str(each["text"]), float(each["start"]), float(each["end"])) for each in segments]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    is_finite = all(isfinite(time) for cue in cues for time in (cue.start, cue.end) if time is not None)
    return cues if is_finite else None


def seconds(clock: Sequence[str | None]) -> float:
    hours, minutes, whole, thousandths = (int(part or 0) for part in clock)
    return hours * 3600 + minutes * 60 + whole + thousandths / 1000


class Gap(NamedTuple):
    """The tokens before a word: punctuation, times in seconds, and punctuation after the times."""

    before: Sequence[int] = ()
    times: Sequence[float] = ()
    after: Sequence[int] = ()


class Transcript:
    """A transcript, split into words and the gaps between them.

    Args:
        speech: Encodes and decodes text.

    Attributes:
        words: The words.
        gaps: Position of a word -> the gap before it. Most words have none.
    """

    def __init__(self, speech: SpeechText) -> None:
        self.words = DraftText([], speech.pieces, TEXT)
        self.speech = speech
        self.gaps: dict[int, Gap] = {}
        self._gap = Gap()  # the gap before the next word
        self._tokens: list[int] = []  # the tokens of the last update
        self._in_gap: dict[int, bool] = {}

    def update(self, tokens: Sequence[int], start: float = 0.0) -> None:
        """Replace the transcript, even while a follower uses it. Usually, `tokens` begins with those of the last call.

        tokens: Text and timestamps, and possibly the end token.
        start: The time of the first timestamp, in seconds.
        """
        held = len(self._tokens)
        if list(tokens[:held]) != self._tokens:
            held = 0
            self.words.update([])
            self.gaps.clear()
            self._gap = Gap()
        audio = self.speech.audio
        for token in tokens[held:]:
            if audio.is_timestamp(token):
                self.add_time(start + (token - audio.timestamp_begin) * SECONDS_PER_POSITION)
            else:
                self.add(token)
        self._tokens = list(tokens)

    def add(self, token: int) -> None:
        """Append a text token or the end token."""
        gap = self._gap
        words = self.words.ids
        is_long = len(gap.before) + len(gap.after) >= MAX_GAP or (gap == Gap() and words and self.is_in_gap(words[-1]))
        if self.is_in_gap(token) and not is_long:
            if gap.times:
                self._gap = gap._replace(after=[*gap.after, token])
            else:
                self._gap = gap._replace(before=[*gap.before, token])
            return
        if gap != Gap():
            self.gaps[len(words)] = gap
            self._gap = Gap()
        self.words.extend([token])

    def add_time(self, seconds: float) -> None:
        """Append the start or end time of a segment."""
        self._gap = self._gap._replace(times=[*self._gap.times, seconds])

    def is_in_gap(self, token: int) -> bool:
        """Whether a token belongs to a gap, that is, whether it is a time or punctuation."""
        if (known := self._in_gap.get(token)) is None:
            known = self._in_gap[token] = self.speech.audio.is_timestamp(token) or is_punctuation(
                self.speech.decode([token])
            )
        return known


class GivenTranscript(Transcript):
    """A given transcript of a recording, prepared for all of its windows.

    Args:
        text: See `cues_of`.
        speech: Encodes the text.
        language: The language of the text.
        kept: Converts times if parts of the recording are left out. The times in `text` refer to the whole recording.
    """

    def __init__(self, text: str, speech: SpeechText, language: str, kept: SpeechTimes | None = None) -> None:
        super().__init__(speech)
        # The start and end of each part, and the position of its first word
        self._cues: list[tuple[float, float, int]] = []
        space = "" if language in WITHOUT_SPACES else " "
        for cue in cues_of(text):
            if kept is not None:
                start, end = (time if time is None else kept.kept(time) for time in (cue.start, cue.end))
                cue = cue._replace(start=start, end=end)
            if cue.start is not None:
                self.add_time(cue.start)
                self._cues.append((cue.start, cue.start if cue.end is None else cue.end, len(self.words.ids)))
            for token in speech.text_tokens(space + " ".join(cue.text.split())):
                self.add(token)
            if cue.end is not None:
                self._gap = self._gap._replace(times=[])  # drops the start time of a part without words
                self.add_time(cue.end)
        if self.words.ids:
            self.add(speech.audio.end)

    def position_at(self, time: float) -> int | None:
        """Return the position of the first word in the first part that ends after a time, or None without times."""
        if not self._cues:
            return None
        later = (position for start, end, position in self._cues if start >= time or end > time + TOLERANCE)
        return next(later, len(self.words.ids) - 1)


def is_punctuation(text: str) -> bool:
    """Whether a text consists of punctuation, symbols and spaces only. Incomplete characters do not count as such."""
    return REPLACEMENT not in text and all(unicodedata.category(each)[0] in "PSZ" for each in text)


class WindowDrafts(Protocol):
    """Draft text that the output for each window may resemble."""

    def window(self, tokens: Sequence[int], start: float, has_times: bool) -> WindowDraft:
        """Return the draft of a window; see `RecordingDraft`."""


class RecordingDraft:
    """Finds the place in a transcript at which each window of a recording starts."""

    def __init__(self, transcript: GivenTranscript) -> None:
        self._transcript = transcript
        self._follower = transcript.words.follow()
        self._num_tokens = 0

    def window(self, tokens: Sequence[int], start: float, has_times: bool) -> WindowDraft:
        """Return the draft of a window.

        Args:
            tokens: All output tokens before the window.
            start: The start of the window, in seconds from the start of the recording.
            has_times: Whether outputs contain timestamps.
        """
        given = self._transcript
        for token in tokens[self._num_tokens :]:
            if not given.is_in_gap(token):
                self._follower.append(token)
        self._num_tokens = len(tokens)
        place = self._follower.find()
        position = 0 if place is None else place.position
        if (place is None or place.status != "confirmed") and (by_time := given.position_at(start)) is not None:
            position = by_time
        return WindowDraft(given, position, start if has_times else None)


class WindowDraft(NamedTuple):
    """A transcript, and the position in it at which a window starts.

    start: The start of the window in seconds, or None if outputs have no timestamps.
    """

    transcript: Transcript
    position: int
    start: float | None

    def follow(self, prefix: Iterable[int] = ()) -> WindowFollower:
        """Return a follower for one output. The prefix is ignored, because its text precedes the window."""
        return WindowFollower(self)


class WindowFollower:
    """Follows the output of a window through a transcript. Drafts contain words, punctuation and times."""

    def __init__(self, draft: WindowDraft) -> None:
        self._draft = draft
        self.text = draft.transcript.words
        self._words = TextFollower(self.text, start=draft.position)
        self._since: list[int] = []  # the tokens since the last word
        self._has_words = False

    def append(self, token: int) -> None:
        if self._draft.transcript.is_in_gap(token):
            self._since.append(token)
            return
        self._words.append(token)
        self._since = []
        self._has_words = True

    def find(self) -> Place | None:
        return self._words.find()

    def continuation(self, place: Place, count: int) -> list[int]:
        """Return up to `count` tokens of the draft, starting at a place."""
        gaps, ids = self._draft.transcript.gaps, self.text.ids
        start = place.position
        if start >= len(ids):
            return []
        end = self._draft.transcript.speech.audio.end
        found = [*self._rest(gaps.get(start, Gap()), ids[start] == end), ids[start]]
        for position in range(start + 1, min(start + count, len(ids))):
            if position in gaps:
                found += self._tokens_of(gaps[position])
            found.append(ids[position])
        return found[:count]

    def _rest(self, gap: Gap, is_last: bool) -> list[int]:
        """Return the part of a gap that is still missing in the output."""
        audio = self._draft.transcript.speech.audio
        if not self._has_words and not self._since and self._draft.start is not None:  # the first segment starts here
            if not gap.times or gap.times[-1] < self._draft.start + TOLERANCE:
                return [audio.timestamp_begin, *(gap.after if gap.times else gap.before)]
            return [self._timestamp(gap.times[-1]), *gap.after]
        times = [*filter(audio.is_timestamp, self._since)]
        if not times:
            return self._tokens_of(gap._replace(before=()) if self._since else gap)
        if self._since[-1] != times[-1]:
            return []
        if (
            len(times) == 1 and self._has_words and not is_last
        ):  # the time ends a segment, and often starts the next one
            is_pause = len(gap.times) == 2 and gap.times[1] > gap.times[0] + TOLERANCE
            return [self._timestamp(gap.times[1]) if is_pause else times[0], *gap.after]
        return [*gap.after]

    def _tokens_of(self, gap: Gap) -> list[int]:
        if self._draft.start is None:
            return [*gap.before, *gap.after]
        return [*gap.before, *map(self._timestamp, gap.times), *gap.after]

    def _timestamp(self, time: float) -> int:
        """Return the timestamp token for a time, limited to the window."""
        audio = self._draft.transcript.speech.audio
        assert self._draft.start is not None
        position = max(round((time - self._draft.start) / SECONDS_PER_POSITION), 0)
        return min(audio.timestamp_begin + position, audio.timestamp_end - 1)
