"""A folder of transcripts: determines which outputs are missing, and writes them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError, Name, writing
from ..runs.log import Log
from ..runs.places import NamedFile, content_hash, new_file, not_replaced, require_folder
from .audio_file import is_open_pipe
from .formats import SUBTITLES, SubtitleOptions
from .logs import LOG_FORMAT, Ledger, ResumptionLogs, Source, Written, finished_outputs
from .media_files import output_names, place
from .transcription import ResumePoint, Transcription, write

LEDGER = ".transcribe.jsonl"
STANDARD = "-"  # standard input


class Unfinished(NamedTuple):
    """A recording whose transcripts are missing or out of date. outputs: the names of these files, keyed by format."""

    recording: str
    source: Source
    outputs: Mapping[str, str]


@dataclass
class OutputFolder:
    """A folder for the transcripts of some recordings.

    Args:
        folder: The folder, which need not exist.
        recordings: The recordings, without duplicates.
        formats: The output formats, which are names in `FORMATS`.
        options: How subtitles are divided.

    Attributes:
        unfinished: The recordings to transcribe. Set by `open`.
    """

    folder: Path
    recordings: Sequence[str]
    formats: Sequence[str]
    options: SubtitleOptions
    unfinished: list[Unfinished] = field(init=False, default_factory=list)
    _ledger: Ledger = field(init=False, repr=False)
    _settings: dict[str, str] = field(init=False, repr=False)  # by format
    _windows: ResumptionLogs = field(init=False, repr=False)

    @cached_property
    def outputs(self) -> list[dict[str, str]]:
        """The names of each recording's outputs, keyed by format. Complete outputs keep their names."""
        owners = {path: name for name, path in finished_outputs(self.folder / LEDGER).items()}
        known = {each: owners.get(self._path_of(each)) for each in self.recordings}
        finished = {each: os.path.splitext(name)[0] for each, name in known.items() if name is not None}
        return [{each: f"{name}.{each}" for each in self.formats} for name in output_names(self.recordings, finished)]

    @property
    def files(self) -> list[NamedFile]:
        """The files to write."""
        outputs = [NamedFile("output_dir", self.folder / name) for each in self.outputs for name in each.values()]
        return [*outputs, NamedFile("output_dir", self.folder / LEDGER, "'s ledger")]

    def check(self) -> None:
        """Raise `InputError` if the outputs cannot be written."""
        for name in self.recordings:
            if name == STANDARD or is_open_pipe(Path(name)):
                raise InputError(f"{name} has no name for a file in a folder", "output_dir", "leave it out")
        for file in self.files:
            require_folder(Path(file.path).parent, "output_dir")

    @contextmanager
    def open(self, settings: Mapping[str, Any], *, force: bool) -> Iterator[None]:
        """Create and lock the folder, and find missing outputs.

        Args:
            settings: Everything that determines a transcript, except its recording.
            force: Whether to write all outputs again, and to replace files that no earlier run wrote.

        Raises:
            InputError: The folder is in use, or a file that no earlier run wrote has the name of a missing output.
        """
        with writing(Name("output_dir"), self.folder, "name another folder"):
            self.folder.mkdir(parents=True, exist_ok=True)
        with Log.open(self.folder / LEDGER, LOG_FORMAT) as log:
            self._ledger = Ledger(log)
            self._settings = {each: self._digest(each, settings) for each in self.formats}
            self._windows = ResumptionLogs(self.folder, digest(settings))
            sources = [self._source(each) for each in self.recordings]
            paths = {source.path for source in sources}
            for recording, source, outputs in zip(self.recordings, sources, self.outputs, strict=True):
                missing = {
                    format: name
                    for format, name in outputs.items()
                    if force
                    or self._ledger.finished(name) != (source, self._settings[format])
                    or not os.path.lexists(self.folder / name)
                }
                for name in () if force else missing.values():
                    self._require_replaceable(name, paths)
                if missing:
                    self.unfinished.append(Unfinished(recording, source, missing))
                if force or not missing:  # an earlier run may have been killed before it removed the log
                    self._windows.remove(source)
            try:
                yield
            finally:
                self._windows.close_all()

    def resume_point(self, one: Unfinished) -> ResumePoint | None:
        """Return the point at which to resume a recording; None means from the beginning. Raises `InputError`."""
        return self._windows.resume_point(one.source)

    def advance(self, one: Unfinished, point: ResumePoint) -> None:
        """Record the progress of a recording. Raises `InputError` if that fails."""
        self._windows.append(one.source, point)

    def give_up(self, one: Unfinished) -> None:
        """Close the log of a recording that cannot be transcribed, and keep it for a later run."""
        self._windows.close(one.source)

    def write(self, one: Unfinished, result: Transcription) -> None:
        """Write the outputs of a recording. Raises `InputError` if that fails."""
        contents = {
            (format, name): write(format, result, self.options).encode() for format, name in one.outputs.items()
        }
        written = {
            name: Written(self._settings[format], hashlib.sha256(content).hexdigest())
            for (format, name), content in contents.items()
        }
        self._ledger.begin(one.source, written)
        for (_, name), content in contents.items():
            with new_file(self.folder / name, "output_dir", LOG_FORMAT.kept) as write_to_file:
                write_to_file(content)
        self._ledger.finish(one.source, written)
        self._windows.remove(one.source)

    def _digest(self, format: str, settings: Mapping[str, Any]) -> str:
        """Return a hash of everything that determines an output in this format, except its recording."""
        options = {}
        if format in SUBTITLES:  # without defaults, so that options added in later versions do not change the hash
            changed = (each.name for each in fields(self.options) if getattr(self.options, each.name) != each.default)
            options = {name: asdict(self.options)[name] for name in changed}
        return digest([format, settings, options])

    def _path_of(self, recording: str) -> str:
        return os.path.relpath(place(recording), os.path.realpath(self.folder))

    def _source(self, recording: str) -> Source:
        path = self._path_of(recording)
        try:
            status = os.stat(recording)
        except OSError:  # opening the recording will report the error
            return Source(path, -1, -1)
        return Source(path, status.st_size, status.st_mtime_ns)

    def _require_replaceable(self, name: str, recordings: Collection[str]) -> None:
        """Raise `InputError` if a file with this name exists that no run has written for one of these recordings."""
        path = self.folder / name
        if not os.path.lexists(path):
            return
        try:
            content = content_hash(path)
        except OSError:
            content = ""  # matches no hash
        if not self._ledger.has_written(name, content):
            raise not_replaced(path, "exists, and is not what an earlier run has written", "output_dir")
        if finished := self._ledger.finished(name):
            other = finished[0].path
            if other not in recordings and os.path.exists(self.folder / other):
                recording = os.path.normpath(self.folder / other)
                raise not_replaced(path, f"is the transcript of {recording}", "output_dir")


def digest(value: Any) -> str:
    """Return a hash of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
