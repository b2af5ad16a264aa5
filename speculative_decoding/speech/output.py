"""Prints the transcripts of several recordings, or passes them to a callback. Shows progress, languages and errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter

from ..cli.common import printing, say
from ..cli.progress import ShowProgress, progress
from ..decoding.results import GenerationStats
from ..errors import InputError, one_line
from ..rows.scheduling import in_order
from .formats import NO_OPTIONS, STREAMED, SubtitleOptions
from .scheduler import TranscriptionEvent

NAMED_FAILURES = 10  # in the summary; each error has already been printed


@dataclass
class Report:
    """Reports the progress, languages and errors of recordings that are transcribed together.

    Args:
        names: The names of the files.
        shows_language: Whether to print the language of each recording.
        finished: The number of further recordings that an earlier run has already transcribed.
    """

    names: Sequence[str]
    shows_language: bool
    finished: int = 0
    stats: GenerationStats = field(init=False, default_factory=GenerationStats)
    durations: dict[int, float] = field(init=False, default_factory=dict)  # in seconds, by recording number
    failed: dict[str, None] = field(init=False, default_factory=dict)  # names of recordings, in order of failure
    _languages: set[int] = field(init=False, default_factory=set)  # the recordings whose language was printed

    @property
    def seconds(self) -> float:
        return sum(self.durations.values())

    def watched(self, events: Iterable[TranscriptionEvent], show: ShowProgress) -> Iterator[TranscriptionEvent]:
        """Show the progress of all recordings. The total is shown once all of them have been opened."""
        positions: dict[int, float] = {}
        complete, done, seconds = 0, 0.0, 0.0  # running sums, because there may be many recordings
        for event in events:
            done += event.position - positions.get(event.number, 0.0)
            seconds += event.seconds - self.durations.get(event.number, 0.0)
            positions[event.number], self.durations[event.number] = event.position, event.seconds
            complete += event.is_last
            count = len(self.names)
            total = seconds if len(positions) == count else None
            text = f"{duration(done)} of {duration(seconds)}"
            show(done, total, text if count == 1 else f"{text}, {complete} of {count} recordings")
            yield event

    def note(self, event: TranscriptionEvent) -> None:
        """Print a recording's language or error to standard error, and add its statistics to the total."""
        if self.shows_language and event.language is not None and event.number not in self._languages:
            self._languages.add(event.number)
            name = f"{one_line(self.names[event.number])}: " if len(self.names) > 1 else ""
            say(f"{name}detected language: {event.language}")
        if event.error is not None:
            self.fail(event.number, event.error)
        if event.result is not None:
            self.stats.add(event.result.stats)

    def fail(self, number: int, error: Exception) -> None:
        """Print the error of a recording that cannot be transcribed."""
        say(f"error: {error}")
        self.failed[self.names[number]] = None

    def summary(self) -> str:
        """Return a line that names the failed recordings, or "" if there are none."""
        if not self.failed:
            return ""
        count, names = self.finished + len(self.names), [*map(one_line, self.failed)]
        more = f" and {len(names) - NAMED_FAILURES} more" if len(names) > NAMED_FAILURES else ""
        return f"{count - len(names)} of {count}; failed: {', '.join(names[:NAMED_FAILURES])}{more}"


def pass_on(
    report: Report, events: Iterable[TranscriptionEvent], receive: Callable[[TranscriptionEvent], None]
) -> None:
    """Report each event, and pass it to `receive`."""
    with progress() as show:
        for event in report.watched(events, show):
            report.note(event)
            receive(event)


@dataclass
class Output:
    """Prints recordings one after the other, even if several are transcribed together.

    Args:
        report: Shows progress, languages and errors.
        format: One of `FORMATS`.
        subtitles: How subtitles are divided.
    """

    report: Report
    format: str
    subtitles: SubtitleOptions = NO_OPTIONS

    def print(self, events: Iterable[TranscriptionEvent]) -> None:
        """Print the recordings. If there is only one, and it fails, `InputError` is raised."""
        with progress(prints_above=self.format in STREAMED) as show:
            watched = self.report.watched(events, show)
            ordered = in_order(watched, attrgetter("number"), attrgetter("is_last"))
            for index, own in groupby(ordered, key=attrgetter("number")):
                own = self._noted(own)
                if self.format == "json":
                    *_, last = own
                    content = {"error": str(last.error)} if last.result is None else last.result.as_dict()
                    write(self._separator(index, "[", ", ") + json.dumps(content) + "\n")
                else:
                    write(self._separator(index, "", "\n", f"==> {one_line(self.report.names[index])} <==\n"))
                    segments = chain.from_iterable(event.segments for event in own)
                    for text in STREAMED[self.format](segments, self.subtitles):
                        write(text)
        if self.format == "json" and not self._is_alone:
            write("]\n")

    @property
    def _is_alone(self) -> bool:
        return len(self.report.names) == 1

    def _separator(self, index: int, first: str, others: str, heading: str = "") -> str:
        """Return the text to print before a recording; "" for a single recording."""
        return "" if self._is_alone else (others if index else first) + heading

    def _noted(self, events: Iterable[TranscriptionEvent]) -> Iterator[TranscriptionEvent]:
        for event in events:
            if event.error is not None and self._is_alone:
                raise event.error if isinstance(event.error, InputError) else InputError(str(event.error))
            self.report.note(event)
            yield event


def write(text: str) -> None:
    with printing():
        print(text, end="", flush=True)


def duration(seconds: float) -> str:
    """Format a duration as minutes and seconds: 125 becomes 2:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
