"""Where drafts come from and how long they are: the options, for every command that drafts.

Declares flags; which of them go together, and what becomes of them, is for drafting.py to say.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..decoding.request import SCHEDULES
from ..drafters import DRAFTERS
from ..drafters.ngram_store import STORAGES
from .parser import real, whole

DEFAULT_DRAFTER = "what tune found best, else model if there is one"


def draft_length(text: str) -> int | str:
    return text if text in SCHEDULES else whole(0, 64)(text)


def add_drafting(parser: argparse.ArgumentParser, lengths: Sequence[int | str], drafters: str) -> None:
    """lengths, drafters: see `add_decoding`, which calls this."""
    many: dict[str, Any] = {"nargs": "+"} if lengths else {}
    group = parser.add_argument_group("drafts")
    group.add_argument(
        "--drafter",
        choices=DRAFTERS,
        help="where drafts come from: the draft model; the text itself (prompt, output, store); auto, a copy where it "
        "is likely right, else the draft model; or nowhere "
        f"(default: {drafters})",
        default=argparse.SUPPRESS,
        **many,
    )
    group.add_argument(
        "--num-draft",
        type=draft_length,
        metavar="N",
        help="tokens drafted per round, 0 to 64; or auto: as many as measured costs and acceptance make worth it; or "
        "as in transformers: heuristic, heuristic_transient"
        + ("" if lengths else " (default: what tune found best, else 5)"),
        default=list(lengths) or argparse.SUPPRESS,
        **many,
    )
    group.add_argument(
        "--confidence-threshold",
        type=real(0, 1),
        metavar="P",
        help="stop a draft behind a token to which the draft model gave less; waits for each token (default: off)",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--draft-vocab",
        type=whole(1),
        metavar="N",
        help="the draft model proposes only the N most frequent tokens of --draft-vocab-text and those of the prompt",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--draft-vocab-text", type=Path, metavar="FILE", help="text like the outputs to come", default=argparse.SUPPRESS
    )
    group.add_argument(
        "--max-ngram-size",
        type=whole(1),
        metavar="N",
        help="the longest stretch of text to look up (default: 16)",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--min-ngram-size",
        type=whole(1),
        metavar="N",
        help="the shortest match that is believed (default: 1)",
        default=argparse.SUPPRESS,
    )


def add_stores(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("n-gram stores")
    group.add_argument(
        "--ngram-store",
        type=Path,
        metavar="FILE",
        help="what was read and written before is searched too, and kept there for the next time",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--ngram-storage",
        choices=STORAGES,
        help="what such a store keeps: whole texts, counts of all n-grams from --min- to --max-ngram-size, or of the "
        "longest alone (default: texts)",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--filler-top-k",
        type=whole(2, 64),
        metavar="K",
        help="a store of n-grams also counts the target's K likeliest tokens at each place",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--guess-unknown",
        action="store_true",
        help="a store of n-grams goes on behind an unknown one with its most frequent token",
        default=argparse.SUPPRESS,
    )
