"""A line of JSON for every round, for programs and for `python -m speculative_decoding.report`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from ..decoding.results import GenerationResponse
from ..decoding.stats import Round
from ..errors import InputError
from .watching import Watcher

COPIED = ("tokens", "proposed", "drafted", "accepted", "kind", "seconds", "draft_seconds", "verify_seconds")


class Trace(Watcher):
    """Writes a round when all its tokens are out, at once and whole, so that an interrupted run leaves whole lines.

    Each line: request, round (both from 0), position (tokens in front of it), text, those of `COPIED`, finish_reason;
    the first of a request also encode_seconds.
    """

    def __init__(self, file: TextIO) -> None:
        self._file, self._request = file, -1

    def begin(self) -> None:
        self._request += 1
        self._round, self._position = -1, 0

    def round(self, event: Round) -> None:
        self._event, self._text, self._left = event, "", len(event.tokens)
        self._round += 1

    def add(self, response: GenerationResponse) -> None:
        self._text += response.text
        self._left -= 1
        if self._left:
            return
        line: dict[str, Any] = {"request": self._request, "round": self._round, "position": self._position}
        if self._round == 0:
            line["encode_seconds"] = response.stats.encode_seconds
        line |= {"text": self._text, **{name: getattr(self._event, name) for name in COPIED}}
        line["finish_reason"] = self._event.finish_reason
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()
        self._position += len(self._event.tokens)


@contextmanager
def traces_to(path: Path | None) -> Iterator[list[Watcher]]:
    """A trace, where a file is named."""
    if path is None:
        yield []
        return
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise InputError(f"--trace {path}: cannot be written ({error.strerror}); name another file") from error
    with file:
        yield [Trace(file)]
