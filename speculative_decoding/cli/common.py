"""What every command shares: one line for every error, and which models to take. No algorithm in here."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..decoding.acceptance import choose_rule
from ..decoding.ending import check_stop
from ..drafters.model import require_same_tokens
from ..errors import InputError
from ..loading.load import SELF_DRAFT, SELF_DRAFT_BITS, Opened, find_folder, open_model
from ..loading.tokenizer import Tokenizer
from ..models.base import EncoderDecoder
from ..sampling import SamplingParams

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


@dataclass
class Pair:
    """A target, and a draft if there is one, without weights until they are loaded."""

    opened_target: Opened
    opened_draft: Opened | None
    is_loaded: bool = False

    @property
    def target(self) -> EncoderDecoder:
        return self.opened_target.model

    @property
    def tokenizer(self) -> Tokenizer:
        return self.opened_target.tokenizer

    @property
    def draft(self) -> EncoderDecoder | None:
        return None if self.opened_draft is None else self.opened_draft.model

    def load_weights(self) -> None:
        """Once, however often it is called."""
        for opened in (self.opened_target, self.opened_draft):
            if opened is not None and not self.is_loaded:
                opened.load_weights()
        self.is_loaded = True


def decoding_options(chosen: argparse.Namespace) -> dict[str, Any]:
    """What the options ask of `stream_generate`, but for the draft, --num-draft and --seed. Checks what it can."""
    sampling = SamplingParams(
        temperature=chosen.temperature,
        top_k=chosen.top_k,
        top_p=chosen.top_p,
        min_p=chosen.min_p,
        repetition_penalty=chosen.repetition_penalty,
    )
    choose_rule(sampling, chosen.acceptance, chosen.delta)
    return {
        "acceptance": chosen.acceptance,
        "delta": chosen.delta,
        "sampling": sampling,
        "max_tokens": chosen.max_tokens,
        "stop": check_stop(chosen.stop),
        "eos_token_ids": chosen.eos_token_id,
        "strict": chosen.strict,
        "allow_long_prompt": chosen.allow_long_prompt,
        "prefix": getattr(chosen, "output_prefix", ""),
    }


@dataclass(frozen=True)
class Folders:
    """Where the models are. bits: the draft is the target itself, with its matrices in that many bits."""

    target: Path
    draft: Path | None
    bits: int | None = None


def open_pair(folders: Folders, options: argparse.Namespace, *, use_draft: bool = True) -> Pair:
    """The models, checked as far as that goes without their weights."""
    dtype = getattr(options, "dtype", None)
    target = open_model(folders.target, dtype=dtype)
    draft = None
    if use_draft and folders.draft is not None:
        draft = open_model(folders.draft, dtype=dtype, quantize=folders.bits)
        require_same_tokens(target.model, draft.model)
    return Pair(target, draft)


def choose(options: argparse.Namespace) -> Folders:
    """The folders that the options name."""
    model, draft_model = getattr(options, "model", None), getattr(options, "draft_model", None)
    draft: Path | None
    if model is not None:
        target, draft = find(model, "--model"), None
    else:
        try:
            target, draft = map(find_folder, PREFERRED)
        except InputError:
            target, draft = (find(name, "the bundled pair") for name in BUNDLED_PAIR)
    if draft_model == SELF_DRAFT:
        return Folders(target, target, SELF_DRAFT_BITS)
    return Folders(target, draft if draft_model is None else find(draft_model, "--draft-model"))


def find(name: str, option: str) -> Path:
    try:
        return find_folder(name)
    except InputError as error:
        raise InputError(f"{option}: {error}") from error
