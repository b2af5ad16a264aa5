"""Counts the device operations of a computation: the nodes of the lazy graph that launch a kernel."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from speculative_decoding.models.device import on_gpu

# These only change how existing data is addressed.
VIEWS = {"AsStrided", "Broadcast", "BroadcastAxes", "ExpandDims", "Flatten", "Reshape", "Slice", "Split", "Squeeze"}
VIEWS |= {"StopGradient", "Transpose", "Unflatten"}


def operations(*arrays: Any) -> Counter[str]:
    """Count the operations, by name, that evaluating these arrays takes. A fused kernel counts once."""
    graph = io.StringIO()
    mx.export_to_dot(graph, *[array for _, array in tree_flatten(list(arrays)) if isinstance(array, mx.array)])
    names = re.findall(r'label ="(\w+)", shape=rectangle', graph.getvalue())
    return Counter(name for name in names if name not in VIEWS)


def total_without_masks(counts: Counter[str]) -> int:
    """Return the total without the masks that a GPU copies for several rows, for fused attention."""
    return counts.total() - counts["Contiguous"] * on_gpu()


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count all operations that `mx.eval` and `mx.async_eval` evaluate within the block, by name.

    Evaluation by `tolist`, `item` and numpy is not counted.
    """
    seen: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("eval", "async_eval"):
            evaluate = getattr(mx, name)

            def counting(*arrays: Any, evaluate: Any = evaluate) -> None:
                seen.update(operations(*arrays))
                evaluate(*arrays)

            patch.setattr(mx, name, counting)
        yield seen
