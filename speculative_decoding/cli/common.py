"""What every command shares: one line for every error, and which models to take. No algorithm in here."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..drafters.model import require_same_tokens
from ..errors import InputError
from ..load import Opened, find_folder, open_model
from ..models.base import EncoderDecoder

PREFERRED = ("t5-11b", "t5-small")
BUNDLED_PAIR = ("t5-web-docs", "t5-web-docs-draft")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(program: str, command: Callable[[], int]) -> int:
    """Exit status of a command: 2 and one line for bad input, 130 for Ctrl-C, 1 when the reader of our output left."""

    def one_line(message: Warning | str, *_: object, **__: object) -> None:
        say(f"{program}: note: {message}")

    warnings.showwarning = one_line
    try:
        status = command()
        sys.stdout.flush()
        return status
    except InputError as error:
        say(f"{program}: error: {error}")
        return 2
    except KeyboardInterrupt:
        say(f"\n{program}: interrupted")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more can be said there
        return 1


@dataclass(frozen=True)
class Pair:
    """A target, and a draft if there is one, still without weights."""

    target: Opened
    draft: Opened | None

    @property
    def draft_model(self) -> EncoderDecoder | None:
        return None if self.draft is None else self.draft.model

    def load_weights(self) -> None:
        for opened in (self.target, self.draft):
            if opened is not None:
                opened.load_weights()


def open_pair(options: argparse.Namespace, *, use_draft: bool = True) -> Pair:
    """The models that the options name, checked as far as that goes without their weights; says which they are."""
    target_folder, draft_folder = choose(getattr(options, "model", None), getattr(options, "draft_model", None))
    dtype = getattr(options, "dtype", None)
    target = open_model(target_folder, dtype=dtype)
    draft = None
    if use_draft and draft_folder is not None:
        draft = open_model(draft_folder, dtype=dtype)
        require_same_tokens(target.model, draft.model)
    say(f"target {target_folder}, " + (f"draft {draft_folder}" if draft else "no draft: regular decoding"))
    return Pair(target, draft)


def choose(model: str | None, draft_model: str | None) -> tuple[Path, Path | None]:
    if model is not None:
        return find(model, "--model"), None if draft_model is None else find(draft_model, "--draft-model")
    try:
        target, draft = map(find_folder, PREFERRED)
    except InputError:
        target, draft = (find(name, "the bundled pair") for name in BUNDLED_PAIR)
    return target, draft if draft_model is None else find(draft_model, "--draft-model")


def find(name: str, option: str) -> Path:
    try:
        return find_folder(name)
    except InputError as error:
        raise InputError(f"{option}: {error}") from error
