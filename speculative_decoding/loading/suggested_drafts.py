"""Drafts for well-known targets: bundled heads, and models on the Hub."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import mlx.core as mx

from ..models.base import checked_sources
from ..models.device import on_gpu
from .load import ModelHandle, local_folder

LEAST_BYTES = 5e8  # of 16-bit weights; passes of smaller models take as long in fewer bits
BUNDLED_HEADS = {"whisper-base-head": r"(faster-)?whisper-base(-mlx)?", "t5-web-docs-head": r"t5-web-docs"}
# Draft -> pattern of target names. A family's smallest model drafts for the larger ones, which use the same tokenizer.
# \1 is the first group of the pattern.
SUGGESTED_DRAFTS = {
    "google-t5/t5-small": r"t5-(base|large|3b|11b)",
    "google/t5-v1_1-small": r"t5-v1_1-(base|large|xl|xxl)",
    "google/flan-t5-small": r"flan-t5-(base|large|xl|xxl)|flan-ul2",
    "google/mt5-small": r"mt5-(base|large|xl|xxl)",
    "google/umt5-small": r"umt5-(base|xl|xxl)",
    "google/byt5-small": r"byt5-(base|large|xl|xxl)",
    "google/madlad400-3b-mt": r"madlad400-(7b|10b)-mt",
    "Salesforce/codet5-small": r"codet5-(base|large)",
    "Salesforce/codet5p-220m": r"codet5p-770m",
    "EleutherAI/pile-t5-base": r"pile-t5-(large|xl|xxl)",
    r"sshleifer/distilbart-\1-12-6": r"bart-large-(cnn|xsum)",
    "sshleifer/distill-pegasus-cnn-16-4": r"pegasus-cnn_dailymail",
    "sshleifer/distill-pegasus-xsum-16-4": r"pegasus-xsum",
    "facebook/nllb-200-distilled-600M": r"nllb-200-(distilled-)?(1\.3b|3\.3b)",
    "facebook/m2m100_418M": r"m2m100_1\.2b",
    "distil-whisper/distil-large-v3": r"(faster-)?whisper-large-v3(-mlx)?",
    r"distil-whisper/distil-\1": r"(?:faster-)?whisper-(large-v2|medium\.en|small\.en)(-mlx)?",
    r"google/t5gemma-2b-2b-\1": r"t5gemma-9b-[29]b-((ul2|prefixlm)(-it)?)",
    "google/t5gemma-2-270m-270m": r"t5gemma-2-(1b-1b|4b-4b)",
}


def suggested_draft(target: str | Path, opened: ModelHandle | None = None) -> str | None:
    """Return a draft for a well-known target, given its name or folder, or None for other targets.

    Bundled heads are suggested only if they are installed. On a GPU, a large target in 16 bits can be its own draft.

    opened: the same target, if it has been opened.
    """
    heads = {head: pattern for head, pattern in BUNDLED_HEADS.items() if local_folder(head) is not None}
    parts = re.split(r"/|--", str(target).lower())  # in the Hub's cache: models--google--mt5-base/snapshots/...
    for draft, pattern in {**heads, **SUGGESTED_DRAFTS}.items():
        for part in parts:
            if match := re.fullmatch(pattern, part):
                return match.expand(draft)
    return "self-4bit" if opened is not None and may_draft_for_itself(opened) else None


def may_draft_for_itself(target: ModelHandle) -> bool:
    """Return whether a step of a quantized copy probably takes much less time than a step of this target."""
    if not on_gpu() or target.model.ranks > 1 or target.nbytes < LEAST_BYTES:
        return False
    names = chain.from_iterable(checked_sources(target.model, target.checkpoint).values())
    return {target.checkpoint.info(name).dtype for name in names} <= {mx.float16, mx.bfloat16}
