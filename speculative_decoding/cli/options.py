"""What several commands share: options for models, decoding and sampling.

Declares flags and their limits; knows no command, and nothing of what is done with a value.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from ..decoding.acceptance import ACCEPTANCE
from ..loading.load import DTYPES
from .draft_options import DEFAULT_DRAFTER, add_drafting
from .parser import real, some_text, whole


def add_models(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    group.add_argument(
        "--model",
        "--model-name",
        metavar="NAME",
        help="the target: a folder, or one under models/ (default: t5-11b with t5-small if both are converted, "
        "else the bundled pair)",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--draft-model",
        "--draft-model-name",
        metavar="NAME",
        help="the draft, likewise; or self-8bit: the target itself in 8 bits; without it a --model decodes regularly, "
        "or with --drafter ngram",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--dtype",
        choices=tuple(DTYPES),
        help="compute in this type (default: as stored on a GPU, float32 on a CPU)",
        default=argparse.SUPPRESS,
    )


def add_decoding(
    parser: argparse.ArgumentParser, *, lengths: Sequence[int | str] = (), drafters: str = DEFAULT_DRAFTER
) -> None:
    """lengths: if given, --drafter, --num-draft and --seed take a list, to try them all; the --num-draft by default.
    drafters: what --drafter is by default, in words.
    """
    many: dict[str, Any] = {"nargs": "+"} if lengths else {}
    add_drafting(parser, lengths, drafters)
    group = parser.add_argument_group("decoding")
    group.add_argument(
        "--acceptance",
        choices=ACCEPTANCE,
        default="rejection",
        help="above temperature 0, all three exact: the original rule; one that keeps a little more; one whose output "
        "for a seed does not depend on the draft",
    )
    group.add_argument(
        "--delta",
        type=real(0, 1),
        default=0.0,
        metavar="X",
        help="accept more than the target would write, 0 to 1; above 0 the output is lossy",
    )
    group.add_argument(
        "--max-tokens", "-m", type=whole(1), default=100, metavar="N", help="the most tokens to generate"
    )
    group.add_argument(
        "--stop",
        action="append",
        type=some_text,
        default=[],
        metavar="TEXT",
        help="end in front of this text; may be repeated",
    )
    group.add_argument(
        "--output-prefix",
        type=some_text,
        metavar="TEXT",
        help="make the output begin with this; it is not printed",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--eos-token-id",
        action="append",
        type=whole(0),
        default=[],
        metavar="N",
        help="end at this token too; may be repeated",
    )
    group.add_argument(
        "--strict",
        action="store_true",
        help="compute every pass of the target in one shape: also in 16 bits the same tokens with and without a draft; "
        "slower",
    )
    group.add_argument(
        "--allow-long-prompt", action="store_true", help="accept a prompt longer than the model was trained on"
    )
    add_sampling(parser, many)


def add_sampling(parser: argparse.ArgumentParser, many: Mapping[str, Any]) -> None:
    """many: what makes --seed take a list, or nothing."""
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--temperature", type=real(0), default=0.0, metavar="T", help="0 takes the most likely token, above 0 samples"
    )
    group.add_argument("--top-k", type=whole(0), default=0, metavar="K", help="only the K most likely tokens; 0 is off")
    group.add_argument(
        "--top-p",
        type=real(0, 1, above=True),
        default=1.0,
        metavar="P",
        help="only the fewest tokens that reach this probability together; 1 is off",
    )
    group.add_argument(
        "--min-p",
        type=real(0, 1),
        default=0.0,
        metavar="P",
        help="only tokens this likely compared to the most likely one; 0 is off",
    )
    group.add_argument(
        "--repetition-penalty",
        type=real(0, above=True),
        default=1.0,
        metavar="X",
        help="above 1 makes tokens that were written less likely; acts at temperature 0 too; 1 is off",
    )
    group.add_argument(
        "--seed",
        type=whole(0, 2**32 - 1),
        default=[0] if many else 0,
        metavar="N",
        help="the same seed and settings give the same text",
        **many,
    )
