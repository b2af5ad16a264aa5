"""The rounds of a run in a file: a line of JSON for each, written by `main.py --trace`, read by
`python -m speculative_decoding.report`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from ..errors import InputError
from .common import read_text, writing
from .views import Step, Watcher

COPIED = ("tokens", "proposed", "drafted", "accepted", "kind", "seconds", "draft_seconds", "verify_seconds")
POSITIONS = 10  # parts of an output: tokens per round are averaged in each


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


@dataclass(frozen=True)
class TraceRun:
    """The rounds of one file, each as `Trace` describes it."""

    name: str
    rounds: Sequence[Mapping[str, Any]]

    @property
    def tokens(self) -> int:
        return sum(len(each["tokens"]) for each in self.rounds)

    def total(self, name: str) -> Any:
        """The sum of a number that rounds may have."""
        return sum(each.get(name, 0) for each in self.rounds)

    def accepted_by_position(self) -> list[float]:
        """For the first, second ... token of a draft: the share of the drafts at least this long that kept it.

        What was drafted behind the end of an output was never judged and does not count.
        """
        kept = [each["accepted"] for each in self.rounds]
        judged = [n if n == len(each["tokens"]) else each["drafted"] for n, each in zip(kept, self.rounds, strict=True)]
        return [
            sum(n >= position for n in kept) / sum(n >= position for n in judged)
            for position in range(1, max(judged) + 1)
        ]

    def tokens_per_round(self) -> list[float | None]:
        """The mean in each tenth of the outputs, by where a round begins; None where none does."""
        in_order = sorted(self.rounds, key=lambda each: each["position"])
        ends = {each["request"]: each["position"] + len(each["tokens"]) for each in in_order}  # the last one's
        parts: list[list[int]] = [[] for _ in range(POSITIONS)]
        for each in self.rounds:
            parts[POSITIONS * each["position"] // ends[each["request"]]].append(len(each["tokens"]))
        return [sum(part) / len(part) if part else None for part in parts]

    def split(self) -> dict[str, float]:
        """Seconds in the encoder, the draft, the target's passes, and what is left: the host."""
        split = {part: float(self.total(f"{part}_seconds")) for part in ("encode", "draft", "verify")}
        return split | {"host": self.total("seconds") - split["draft"] - split["verify"]}


def read_trace(path: Path, name: str) -> TraceRun:
    """Raises `InputError` that names the file and the line."""
    rounds = []
    for number, line in enumerate(read_text(path, "trace").splitlines(), start=1):
        try:
            rounds.append(checked(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"trace {path}, line {number}: not a round as --trace writes it ({error!r})") from error
    if not rounds:
        raise InputError(f"trace {path}: holds no round; write one with main.py --trace")
    return TraceRun(name, rounds)


def checked(line: Any) -> dict[str, Any]:
    """Raises KeyError, TypeError or ValueError for what `Trace` cannot have written."""
    found: dict[str, Any] = {"encode_seconds": 0.0, **line}
    if any(type(found[name]) is not int or found[name] < 0 for name in ("request", "round", "position", "drafted")):
        raise ValueError("a count is none")
    if not all(found[name] >= 0 for name in ("seconds", "encode_seconds", "draft_seconds", "verify_seconds")):
        raise ValueError("a time is negative")
    if (
        not isinstance(found["tokens"], list)
        or not found["tokens"]
        or found["accepted"] not in range(found["drafted"] + 1)
    ):
        raise ValueError("tokens do not add up")
    return found
