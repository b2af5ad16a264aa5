"""Rounds without models: the same tokens are right for every length, costs a formula, the clock is noisy, but seeded.

The truth about costs is none of the package's own: it is a fit to what the bundled pair takes on two x86-64 cores.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks import acceptance
from speculative_decoding.draft_length import Choice, Drafted, DraftLength
from speculative_decoding.drafters.base import COPY, MODEL
from speculative_decoding.models.compiled import pass_width


class Request(NamedTuple):
    """For each token of the output: would a draft of that kind get it right, given all before it? A copy may not be
    there at all ("-").
    """

    model: str
    copy: str = ""

    def right(self, kind: str, done: int, drafted: int) -> int:
        bits = (self.copy if kind == COPY else self.model)[done : done + drafted]
        return next((i for i, bit in enumerate(bits) if bit != "1"), len(bits))


Truth = Callable[[int, int, int, int], float]  # rows, longest draft, steps of the draft model, sources it reads


def bundled(rows: int, width: int, steps: int, readings: int) -> float:
    """Milliseconds."""

    def pass_time(positions: int) -> float:
        return 2.0 + (0.22 if rows == 1 else 0.285) * rows * positions + 0.15 * rows

    host = 0.1 + 0.05 * (width > 0)
    return pass_time(pass_width(width + 1)) + 0.12 * pass_time(1) * steps + 0.7 * readings + host


def flat(rows: int, width: int, steps: int, readings: int) -> float:
    """As on a device for which a pass over many positions costs little more than over one."""
    return 5.0 + 0.05 * rows * pass_width(width + 1) + 0.4 * steps + 0.5 * readings + 0.3 * (width > 0)


def steep(rows: int, width: int, steps: int, readings: int) -> float:
    """A slow BLAS: no draft can pay."""
    return 1.0 + 0.9 * rows * pass_width(width + 1) + 0.1 * steps


@dataclass
class Played:
    """skipped: rounds in which the length did not even want to be asked."""

    seconds: float = 0.0
    rounds: int = 0
    skipped: int = 0


def play(
    length: DraftLength,
    requests: Sequence[Request],
    truth: Truth,
    *,
    rows: int = 1,
    noise: float = 0.0,
    drafter: str = MODEL,
    told: Callable[[float], float] = lambda seconds: seconds,
) -> Played:
    """Decode the requests, `rows` at a time.

    noise: of the seconds that the length is told, which now and then are thrice as many besides.
    drafter: "model"; "copy", which often finds nothing; or "auto", a copy where there is one and else the model.
    """
    dice, queue, played = random.Random(5), list(requests), Played()
    active: list[tuple[Request, int]] = []
    unread: set[int] = set()
    while queue or active:
        while queue and len(active) < rows:
            active.append((queue.pop(0), 0))
            unread.add(id(active[-1][0]))
            length.begin()
        skips = length.skips_round()
        kinds = [
            drafter if drafter != "auto" else COPY if request.copy[done] != "-" else MODEL for request, done in active
        ]
        counts = [0] * len(active)
        if skips:
            kinds = [""] * len(active)
        else:
            counts = length.choose([Choice(100 - done, kind) for kind, (_, done) in zip(kinds, active, strict=True)])
        parts, readings = [], 0
        for (request, done), kind, asked in zip(active, kinds, counts, strict=True):
            assert 0 <= asked <= 100 - done
            drafted = 0 if kind == COPY and request.copy[done] == "-" else asked
            parts.append(Drafted(asked, drafted, request.right(kind, done, drafted), kind))
            if drafted and kind == MODEL and id(request) in unread:
                unread.remove(id(request))
                readings += 1
        steps = max(part.drafted * (part.kind == MODEL) for part in parts)
        seconds = truth(len(active), max(part.drafted for part in parts), steps, readings)
        clock = seconds * math.exp(dice.gauss(0.0, noise)) * (3.0 if noise and dice.random() < 0.02 else 1.0)
        length.observe(parts, told(clock))
        played.seconds += seconds
        played.rounds += 1
        played.skipped += skips
        after = [(request, done + part.accepted + 1) for (request, done), part in zip(active, parts, strict=True)]
        unread -= {id(request) for request, done in after if done >= len(request.model)}
        active = [(request, done) for request, done in after if done < len(request.model)]
    return played


def alike(dice: random.Random, right: float) -> Request:
    return Request("".join("01"[dice.random() < right] for _ in range(dice.randint(10, 40))))


def copies(dice: random.Random, model: float) -> Request:
    """Every now and then some six tokens can be copied, nearly always rightly."""
    request, copying, copy = alike(dice, model), False, ""
    for _ in request.model:
        copying = dice.random() < (5 / 6 if copying else 1 / 8)
        copy += "01"[dice.random() < 0.95] if copying else "-"
    return request._replace(copy=copy)


@cache
def recorded() -> dict[str, list[Request]]:
    """What the bundled draft model gets right, task by task."""
    tasks = acceptance.read(Path(acceptance.__file__).with_suffix(".txt"), ["model"])
    return {
        name: [Request("".join("01"[run > 0] for run in output)) for output in kinds["model"]]
        for name, kinds in tasks.items()
    }


MADE: dict[str, Callable[[random.Random, float], Request]] = {  # the share of the session that is over -> a request
    "useless": lambda dice, over: alike(dice, 0.0),
    "rarely right": lambda dice, over: alike(dice, 0.1),
    "0.5": lambda dice, over: alike(dice, 0.5),
    "0.9": lambda dice, over: alike(dice, 0.9),
    "a task at random": lambda dice, over: alike(dice, dice.choice([0.9, 0.1, 0.6])),
    "useless at first": lambda dice, over: alike(dice, 0.0 if over < 0.5 else 0.85),
    "useless in the end": lambda dice, over: alike(dice, 0.85 if over < 0.3 else 0.0),
    "copies": lambda dice, over: copies(dice, 0.6),
    "copies, useless model": lambda dice, over: copies(dice, 0.0),
}


@cache
def session(name: str, count: int) -> list[Request]:
    if name in recorded():
        own = recorded()[name]
        return [Request(own[i % len(own)].model + "") for i in range(count)]
    dice = random.Random(name)
    return [MADE[name](dice, i / count) for i in range(count)]
