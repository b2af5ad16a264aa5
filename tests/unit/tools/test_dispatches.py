"""The number of kernels that a pass dispatches on Metal, counted from its graph."""

from __future__ import annotations

import io
import re
from collections import Counter

import mlx.core as mx
import pytest
from mlx.utils import tree_map

from tools.dispatches import (
    PLACEHOLDERS,
    count,
    count_head_step,
    decoder_pass,
    fused,
    gpu_branches,
    trace,
    weightless,
)

# (plain pass, five draft tokens on M3 and later, the same on M1 and M2, one step of a draft head), by rows
DISPATCHES = {
    "t5-small": {1: (87, 110, 134, 15), 8: (94, 141, 141, 16)},
    "t5-base": {1: (165, 206, 254, 15), 8: (178, 267, 267, 16)},
    "t5-large": {1: (321, 398, 494, 15), 8: (346, 519, 519, 16)},
    "bart-base": {1: (108, 131, 155, 15), 8: (116, 163, 163, 16)},
    "bart-large": {1: (204, 245, 293, 15), 8: (218, 307, 307, 16)},
    "nllb-600m": {1: (204, 245, 293, 16), 8: (218, 307, 307, 17)},
    "t5gemma-2b": {1: (770, 853, 957, 16), 8: (796, 983, 983, 17)},
    "t5gemma2-4b": {1: (1000, 1107, 1209, 18), 8: (1034, 1209, 1209, 19)},
}


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("name", DISPATCHES)
def test_a_pass_dispatches_a_known_number_of_kernels(name: str, rows: int) -> None:
    counts = [count(name, 1, rows), count(name, 6, rows, generation=3), count(name, 6, rows, generation=1)]
    counts.append(count_head_step(name, rows))
    assert tuple(each.total() for each in counts) == DISPATCHES[name][rows]


def without_graph(array: mx.array | None) -> mx.array | None:
    if array is not None:
        array = mx.zeros(array.shape, array.dtype)
        mx.eval(array)
    return array


@pytest.mark.usefixtures("compilation")
@pytest.mark.parametrize("width", [1, 6])
@pytest.mark.parametrize("name", ["t5-base", "bart-base", "t5gemma-2b", "t5gemma2-4b"])
def test_fusion_equals_that_of_mx_compile(name: str, width: int) -> None:
    with gpu_branches():
        function, arguments = decoder_pass(weightless(name, 16), width, rows=2)
        arguments = tree_map(without_graph, arguments)
        ours = Counter(node.name for node in fused(*trace(function, arguments)))
        file = io.StringIO()
        states, _, buffers = mx.compile(function)(*arguments)
        mx.export_to_dot(file, states, *buffers)
    theirs = Counter(re.findall(r'label ="(\w+)"', file.getvalue()))
    for name in [*theirs]:
        if name.startswith("Compiled"):
            theirs["Compiled"] += theirs.pop(name)
    ours["Depends"] = sum(ours.pop(name, 0) for name in PLACEHOLDERS)
    for counts in (ours, theirs):
        del counts["Broadcast"]  # no kernel; `mx.compile` repeats some
    assert +ours == +theirs
