"""Counts the device operations, passes and host syncs of a computation, by watching MLX and the loop of a round."""

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

from speculative_decoding.decoding import round as loop
from speculative_decoding.drafters import Draft
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.device import on_gpu
from tests.support.device import use

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
    """Return the total, which on a GPU is independent of the number of rows only in this form.

    A GPU copies the masks of several rows for fused attention; these copies do not count. It also adds the residuals of
    several rows separately where its kernel reads behind them, so "AddMM" counts as a product and a sum.
    """
    return counts.total() + on_gpu() * (counts["AddMM"] - counts["Contiguous"])


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


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run functions as they are written. Then tests of several dtypes need not compile kernels for each."""
    mx.disable_compile()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        mx.enable_compile()  # type: ignore[no-untyped-call]
        use(mx.default_device().type)  # a Mac compiles nothing on its CPU


@contextmanager
def passes_and_syncs() -> Iterator[list[str]]:
    """Record each pass of a model ("pass") and each host sync ("sync") within the block, in order."""
    done: list[str] = []
    states, evaluate = EncoderDecoder.states, mx.eval
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EncoderDecoder, "states", lambda *given: done.append("pass") or states(*given))  # type: ignore[func-returns-value]
        patch.setattr(mx, "eval", lambda *given: done.append("sync") or evaluate(*given))  # type: ignore[func-returns-value]
        yield done


@contextmanager
def read_by_host() -> Iterator[list[Counter[str]]]:
    """Record the operations that are left to compute in each array that a round reads after its host sync."""
    left: list[Counter[str]] = []
    on_host, to_lists = loop.on_host, Draft.to_lists

    def watched_on_host(verification: loop.Verification) -> Any:
        left.extend(operations(array) for array in verification if array is not None)
        return on_host(verification)

    def watched_to_lists(draft: Draft) -> Any:
        left.append(operations(draft.tokens))
        return to_lists(draft)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "on_host", watched_on_host)
        patch.setattr(Draft, "to_lists", watched_to_lists)
        yield left
