"""The options of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated as A

from ..loading.load import DTYPES
from ..sampling.values import Int, Number, Text

BATCH_SIZE = 24


@dataclass(frozen=True)
class TrainingOptions:
    """Options of a training run. The command's flags are generated from these fields."""

    seed: A[int, Int(0), "random seed"] = 0
    max_tokens: A[int, Int(1), "maximum tokens of an output"] = 128
    batch_size: A[int, Int(1), "number of outputs in a training step"] = BATCH_SIZE
    slots: A[int, Int(1), "batch size when decoding outputs"] = 32
    frequent: A[
        int | None, Int(1), "number of frequent ids that a head may always propose (default: 512, for speech 3072)"
    ] = None
    held_out: A[int, Int(0), "prompts to measure on instead of training on them"] = 150
    max_disk_gb: A[float, Number(0), "store features up to this size; larger ones are computed when needed"] = 10.0
    dtype: A[str, Text(tuple(DTYPES)), "type of the draft's stored weights"] = "bfloat16"
    sampled_share: A[
        float, Number(0, 1), "share of outputs sampled at temperature 1, for a draft that serves sampling"
    ] = 0.0
