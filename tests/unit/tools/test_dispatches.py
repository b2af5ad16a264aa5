"""The number of kernels that a pass dispatches on Metal, counted from its graph."""

from __future__ import annotations

import io
import re
from collections import Counter

import mlx.core as mx
import pytest

from tools.dispatches import (
    GPU_PRIMITIVES,
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
    "t5-small": {1: (123, 146, 170, 15), 8: (123, 170, 170, 16)},
    "t5-base": {1: (237, 278, 326, 15), 8: (237, 326, 326, 16)},
    "t5-large": {1: (465, 542, 638, 15), 8: (465, 638, 638, 16)},
    "bart-base": {1: (126, 149, 173, 15), 8: (132, 179, 179, 16)},
    "bart-large": {1: (240, 281, 329, 15), 8: (252, 341, 341, 16)},
    "nllb-600m": {1: (240, 281, 329, 16), 8: (252, 341, 341, 17)},
    "t5gemma-2b": {1: (874, 985, 1089, 16), 8: (848, 1037, 1037, 17)},
    "t5gemma2-4b": {1: (1068, 1177, 1279, 18), 8: (1034, 1211, 1211, 19)},
}


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("name", DISPATCHES)
def test_a_pass_dispatches_a_known_number_of_kernels(name: str, rows: int) -> None:
    counts = [count(name, 1, rows), count(name, 6, rows, generation=3), count(name, 6, rows, generation=1)]
    counts.append(count_head_step(name, rows))
    assert tuple(each.total() for each in counts) == DISPATCHES[name][rows]


@pytest.mark.usefixtures("compilation")
@pytest.mark.parametrize("width", [1, 6])
@pytest.mark.parametrize("name", ["t5-base", "bart-base", "t5gemma-2b", "t5gemma2-4b"])
def test_fusion_equals_that_of_mx_compile(name: str, width: int) -> None:
    with gpu_branches():
        function, arguments = decoder_pass(weightless(name, 16), width, rows=2)
        mx.eval(arguments)
        ours = Counter(node.name for node in fused(*trace(function, arguments)))
        file = io.StringIO()
        states, _, buffers = mx.compile(function)(*arguments)
        mx.export_to_dot(file, states, *[array for layer in buffers for array in layer])
    theirs = Counter(re.findall(r'label ="(\w+)"', file.getvalue()))
    for name in [*theirs]:
        if name.startswith("Compiled"):
            theirs["Compiled"] += theirs.pop(name)
    ours["Depends"] = sum(ours.pop(name, 0) for name in GPU_PRIMITIVES)
    for counts in (ours, theirs):
        del counts["Broadcast"]  # no kernel; `mx.compile` repeats some
    assert +ours == +theirs
