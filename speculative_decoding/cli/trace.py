"""main.py --trace: a line of JSON for every round, for programs and for `python -m speculative_decoding.report`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from .common import writing
from .views import Step, Watcher

COPIED = ("tokens", "proposed", "drafted", "accepted", "kind", "seconds", "draft_seconds", "verify_seconds")


class Trace:
    """A watcher that writes a round when all its tokens are out, at once and whole, so that an interrupted run leaves
    whole lines.

    Each line: request, round (both from 0), position (tokens in front of it), text, those of `COPIED`, finish_reason;
    the first of a request also encode_seconds.
    """

    def __init__(self, path: Path, file: TextIO) -> None:
        self._path, self._file, self._requests = path, file, count()

    def __call__(self, steps: Iterator[Step]) -> Iterator[Step]:
        request, position, text = next(self._requests), 0, ""
        for step in steps:
            text += step.response.text
            if step.ends_round:
                line: dict[str, Any] = {"request": request, "round": step.number, "position": position}
                if step.number == 0:
                    line["encode_seconds"] = step.response.stats.encode_seconds
                line |= {"text": text, **{name: getattr(step.round, name) for name in COPIED}}
                line["finish_reason"] = step.round.finish_reason
                with writing("--trace", self._path):
                    self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
                    self._file.flush()
                position, text = position + len(step.round.tokens), ""
            yield step


@contextmanager
def traces_to(path: Path | None) -> Iterator[list[Watcher]]:
    """A trace, where a file is named."""
    if path is None:
        yield []
        return
    with writing("--trace", path):
        file = path.open("w", encoding="utf-8")
    try:
        yield [Trace(path, file)]
    finally:
        with suppress(OSError):  # of what was refused already
            file.close()
