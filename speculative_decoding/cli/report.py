"""`python -m speculative_decoding report TRACE...`: what the rounds of one or more runs say, as a table.

Reads what `main.py --trace` wrote. Knows nothing of models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from . import common
from .parser import Parser

Rounds = Sequence[Mapping[str, Any]]  # of one file, each as `views.Trace` describes it


def read_trace(path: Path) -> Rounds:
    """Raises `InputError` that names the file and the line."""
    rounds = []
    for number, line in enumerate(common.read_text(path, "trace").splitlines(), start=1):
        try:
            rounds.append(checked(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"trace {path}, line {number}: not a round as --trace writes it ({error!r})") from error
    if not rounds:
        raise InputError(f"trace {path}: holds no round; write one with main.py --trace")
    return rounds


def checked(line: Any) -> Mapping[str, Any]:
    """Raises KeyError, TypeError or ValueError for what `Trace` cannot have written."""
    found: dict[str, Any] = {"encode_seconds": 0.0, **line}
    counts = [found[name] for name in ("request", "drafted", "accepted")]
    times = [found[name] for name in ("seconds", "encode_seconds", "draft_seconds", "verify_seconds")]
    if not all(type(each) is int for each in counts) or min(counts + times) < 0 or counts[2] > counts[1]:
        raise ValueError("its numbers do not fit together")
    if not isinstance(found["tokens"], list) or not found["tokens"]:
        raise ValueError("tokens are missing")
    return found


def total(rounds: Rounds, name: str) -> Any:
    return sum(each[name] for each in rounds)


def seconds_by_part(rounds: Rounds) -> dict[str, float]:
    """In the encoder, the draft, the target's passes, and what is left: the host."""
    parts = {part: float(total(rounds, f"{part}_seconds")) for part in ("encode", "draft", "verify")}
    return parts | {"host": total(rounds, "seconds") - parts["draft"] - parts["verify"]}


def accepted_by_position(rounds: Rounds) -> list[float]:
    """For the first, second ... token of a draft: the share of the drafts at least this long that kept it.

    What was drafted behind the end of an output was never judged and does not count.
    """
    kept = [each["accepted"] for each in rounds]
    judged = [n if n == len(each["tokens"]) else each["drafted"] for n, each in zip(kept, rounds, strict=True)]
    return [
        sum(n >= position for n in kept) / sum(n >= position for n in judged) for position in range(1, max(judged) + 1)
    ]


def markdown(runs: Mapping[str, Rounds]) -> str:
    """A row for each run, by name."""
    table = []
    for name, rounds in runs.items():
        parts, drafted = seconds_by_part(rounds), total(rounds, "drafted")
        tokens = sum(len(each["tokens"]) for each in rounds)
        seconds = sum(parts.values())
        cells = {
            "run": name.replace("|", "\\|"),
            "prompts": str(len({each["request"] for each in rounds})),
            "rounds": str(len(rounds)),
            "tokens": str(tokens),
            "tokens/round": f"{tokens / len(rounds):.2f}",
            "accepted": f"{total(rounds, 'accepted') / drafted:.1%}" if drafted else "-",
            "by place, %": " ".join(f"{100 * share:.0f}" for share in accepted_by_position(rounds)) or "-",
            "tokens/s": f"{tokens / seconds:.1f}" if seconds else "-",
        }
        table.append(cells | {f"{part} s": f"{spent:.3f}" for part, spent in parts.items()})
    rows = [table[0].keys(), ["---"] * len(table[0]), *(row.values() for row in table)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def report(traces: Sequence[Path]) -> int:
    stems = [path.stem for path in traces]
    print(markdown({path.stem if stems.count(path.stem) == 1 else str(path): read_trace(path) for path in traces}))
    return 0


def main(argv: Sequence[str] | None = None, program: str = "python -m speculative_decoding report") -> int:
    parser = Parser(
        prog=program,
        description="What main.py --trace wrote, of one run or of several, as a Markdown table.",
    )
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="files that --trace wrote")
    chosen = parser.parse_args(argv)
    return common.run("report", lambda: report(chosen.traces))
