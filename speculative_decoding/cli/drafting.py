"""What the options say about drafts -> the drafter, length and store that live for a whole run."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..drafters import NgramDrafter, NgramStore, Store, TextStore
from ..drafters.vocabulary import DraftVocabulary
from ..errors import InputError
from ..session import Session
from ..tokenizer import Tokenizer

SPEAKS = ("model", "auto")  # drafters that a draft model serves
COPIES = ("ngram", "auto")


@dataclass
class Drafting:
    """options: for `stream_generate`."""

    options: dict[str, Any]
    store: Store | None
    store_file: Path | None

    def keep_store(self) -> None:
        if self.store is not None and self.store_file is not None:
            self.store.save(self.store_file)


def check_drafting(chosen: argparse.Namespace, drafter: str) -> None:
    """Refuses options that would be ignored, or files that cannot be used, before anything is loaded."""
