"""Which models the flags name, and those models, with their weights or not yet."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated as A

from ..distributed import ProcessGroup
from ..drafters.draft_model import require_same_tokens
from ..errors import InputError
from ..loading.draft_head import OpenedHead, open_draft
from ..loading.load import DTYPES, SELF_DRAFT, SELF_DRAFT_BITS, Opened, find_folder, locate, open_model
from ..loading.pair import Pair
from ..sampling.values import Text

PREFERRED = ("t5-11b", "t5-small")
BUNDLED_PAIR = ("t5-web-docs", "t5-web-docs-head")
MODEL = "the target: a folder, one in models/, a name on the Hub (default: t5-11b with t5-small, or the bundled pair)"
DRAFT_MODEL = "the draft model or draft head, likewise; self-8bit: the target itself in 8 bits (default: copies alone)"
DTYPE = "compute in this type (default: as stored on a GPU, float32 on a CPU)"


@dataclass(frozen=True)
class ModelNames:
    """As the flags give them."""

    model: A[str | None, Text(), MODEL] = None
    draft_model: A[str | None, Text(), DRAFT_MODEL] = None
    dtype: A[str | None, Text(tuple(DTYPES)), DTYPE] = None

    def find(self) -> Folders:
        """Raises `InputError` that names the flag."""
        draft: Path | None = None
        if self.model is not None:
            target = find(self.model, "--model")
        else:
            target, draft = find_default_pair()
        if self.draft_model == SELF_DRAFT:
            return Folders(target, target, SELF_DRAFT_BITS, self.dtype)
        if self.draft_model is not None:
            draft = find(self.draft_model, "--draft-model")
        return Folders(target, draft, dtype=self.dtype)


@dataclass(frozen=True)
class Folders:
    """Where the models are. bits: the draft is the target itself, with its matrices in that many bits. processes: the
    processes that share the target; the draft is the first one's.
    """

    target: Path
    draft: Path | None
    bits: int | None = None
    dtype: str | None = None
    processes: ProcessGroup | None = None

    def open(self, *, use_draft: bool = True, quantize: int | None = None) -> Pair:
        """The models, checked as far as that goes without their weights. quantize: bits for the target's matrices."""
        target = open_model(self.target, dtype=self.dtype, quantize=quantize, processes=self.processes)
        draft: Opened | OpenedHead | None = None
        if use_draft and self.draft is not None:
            if self.bits is not None:
                draft = open_model(self.draft, dtype=self.dtype, quantize=self.bits)
            else:
                draft = open_draft(self.draft, target, dtype=self.dtype)
            if isinstance(draft, Opened):
                require_same_tokens(target.model, draft.model)
        return Pair(target, draft)


def find(name: str, option: str) -> Path:
    try:
        return locate(name)
    except InputError as error:
        raise InputError(f"{option}: {error}") from error


def find_default_pair() -> tuple[Path, Path]:
    for target, draft in (PREFERRED, BUNDLED_PAIR):
        with suppress(InputError):
            return find_folder(target), find_folder(draft)
    raise InputError(
        "no --model is given, and the bundled pair comes with the repository alone; name a folder that "
        "`speculative-decoding convert --model NAME` has made"
    )
