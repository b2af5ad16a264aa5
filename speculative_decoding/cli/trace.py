"""A line of JSON for every round, for programs and for `python -m speculative_decoding.report`."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

from ..decoding.results import GenerationResponse
from ..decoding.stats import Round
from ..errors import InputError


class Trace:
    """Writes a round when all its tokens are out, at once and whole, so that an interrupted run leaves whole lines.

    Each line: request, round (both from 0), position (tokens in front of it), text, tokens, proposed, drafted,
    accepted, kind, seconds, draft_seconds, verify_seconds, finish_reason; the first of a request also encode_seconds.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise InputError(f"--trace {path}: cannot be written ({error.strerror}); name another file") from error
        self._request = -1

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def begin(self) -> None:
        self._request += 1
        self._round, self._position = -1, 0

    def round(self, event: Round) -> None:
        self._event, self._text, self._left = event, "", len(event.tokens)
        self._round += 1

    def add(self, response: GenerationResponse) -> None:
        self._text += response.text
        self._left -= 1
        if not self._left:
            self._write(response)

    def end(self) -> None:
        pass

    def _write(self, response: GenerationResponse) -> None:
        event = self._event
        line: dict[str, Any] = {"request": self._request, "round": self._round, "position": self._position}
        if self._round == 0:
            line["encode_seconds"] = response.stats.encode_seconds
        line["text"] = self._text
        for name in ("tokens", "proposed", "drafted", "accepted", "kind", "seconds", "draft_seconds", "verify_seconds"):
            line[name] = getattr(event, name)
        line["finish_reason"] = event.finish_reason
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()
        self._position += len(event.tokens)


def open_trace(path: Path | None) -> AbstractContextManager[Trace | None]:
    """A trace, where a file is named."""
    return nullcontext() if path is None else Trace(path)
