"""The rounds of a run, as `cli.trace.Trace` wrote them, and what they say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from .common import read_text

POSITIONS = 10  # parts of an output: tokens per round are averaged in each


@dataclass(frozen=True)
class TraceRun:
    """The rounds of one file, each as `cli.trace.Trace` describes it."""

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
    """Raises KeyError, TypeError or ValueError for what `cli.trace.Trace` cannot have written."""
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
