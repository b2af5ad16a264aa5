"""The rounds of a run, as `cli.trace.Trace` wrote them, and what they say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError

POSITIONS = 10  # parts of an output: tokens per round are averaged in each
PARTS = ("encode", "draft", "verify", "host")
COUNTS = ("request", "round", "position", "drafted", "accepted")


@dataclass(frozen=True)
class TraceRun:
    """The rounds of one file, each as `cli.trace.Trace` describes it."""

    name: str
    rounds: Sequence[Mapping[str, Any]]

    @property
    def requests(self) -> int:
        return len({each["request"] for each in self.rounds})

    @property
    def tokens(self) -> int:
        return sum(len(each["tokens"]) for each in self.rounds)

    @property
    def drafted(self) -> int:
        return sum(each["drafted"] for each in self.rounds)

    @property
    def accepted(self) -> int:
        return sum(each["accepted"] for each in self.rounds)

    @property
    def seconds(self) -> float:
        return sum(self.split().values())

    def accepted_by_position(self) -> list[float]:
        """For the first, second ... token of a draft: the share of the drafts at least this long that kept it.

        What was drafted behind the end of an output was never judged and does not count.
        """
        judged = [
            each["accepted"] if each["accepted"] == len(each["tokens"]) else each["drafted"] for each in self.rounds
        ]
        shares = []
        for position in range(1, max(judged) + 1):
            kept = [each["accepted"] >= position for each, n in zip(self.rounds, judged, strict=True) if n >= position]
            shares.append(sum(kept) / len(kept))
        return shares

    def tokens_per_round(self) -> list[float | None]:
        """The mean in each tenth of the outputs, by where a round begins; None where none does."""
        ends: dict[int, int] = {}
        for each in self.rounds:
            ends[each["request"]] = max(ends.get(each["request"], 0), each["position"] + len(each["tokens"]))
        parts: list[list[int]] = [[] for _ in range(POSITIONS)]
        for each in self.rounds:
            parts[POSITIONS * each["position"] // ends[each["request"]]].append(len(each["tokens"]))
        return [sum(part) / len(part) if part else None for part in parts]

    def split(self) -> dict[str, float]:
        """Seconds in the encoder, the draft, the target's passes, and what is left: the host."""
        encode = sum(each.get("encode_seconds", 0.0) for each in self.rounds)
        rounds, draft, verify = (
            sum(each[name] for each in self.rounds) for name in ("seconds", "draft_seconds", "verify_seconds")
        )
        return dict(zip(PARTS, (encode, draft, verify, rounds - draft - verify), strict=True))


def read_trace(path: Path, name: str) -> TraceRun:
    """Raises `InputError` that names the file and the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"trace {path}: not readable as UTF-8 text ({error})") from error
    rounds = []
    for number, line in enumerate(lines, start=1):
        try:
            rounds.append(checked(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"trace {path}, line {number}: not a round as --trace writes it ({error!r})") from error
    if not rounds:
        raise InputError(f"trace {path}: holds no round; write one with main.py --trace")
    return TraceRun(name, rounds)


def checked(line: Any) -> dict[str, Any]:
    """Raises KeyError, TypeError or ValueError for what `cli.trace.Trace` cannot have written."""
    found: dict[str, Any] = dict(line)
    if any(type(found[name]) is not int or found[name] < 0 for name in COUNTS):
        raise ValueError("a count is none")
    seconds = [found["seconds"], found["draft_seconds"], found["verify_seconds"], found.get("encode_seconds", 0.0)]
    if not all(isinstance(each, int | float) and each >= 0 for each in seconds):
        raise ValueError("times are missing")
    if not isinstance(found["tokens"], list) or not found["tokens"] or found["accepted"] > found["drafted"]:
        raise ValueError("tokens do not add up")
    return found
