"""tools/metal reads metallibs and traces, and its kernels give the exact results and the classes that are recorded.

The tests of kernels need the compiled runtime and the wheel: `python3 -m tools.metal build`.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding.draft_length.kernel_bits import INPUTS, SIZE, paired, spread
from tests.support.paths import ROOT
from tools.metal import classes
from tools.metal.bounds import Case, faults_of, reason_for
from tools.metal.build import PINNED, BuildError, library_path, metallib_of
from tools.metal.classes import (
    ALL_ORDERS,
    WrongResultError,
    check,
    common_classes,
    described,
    find_classes,
)
from tools.metal.metallib import Metallib, MetallibError
from tools.metal.numbers import Values, decode, encode
from tools.metal.operations import CHIPS, DTYPES, MODELS, WIDTHS, Operation
from tools.metal.replay import Inputs, replay
from tools.metal.runtime import KernelError, Library, Orders, Placement
from tools.metal.traces import ArrayArgument, Constant, TraceError, Traces, argument, traces_of

slow = pytest.mark.slow


def metallib(names: list[str], bitcodes: list[bytes]) -> bytes:
    """A file with the fields that the reader knows."""
    records, offset = b"", 0
    for name, bitcode in zip(names, bitcodes, strict=True):
        tags = {
            b"NAME": name.encode() + b"\0",
            b"HASH": bytes(32),
            b"OFFT": struct.pack("<3Q", 0, 0, offset),
            b"MDSZ": struct.pack("<Q", len(bitcode)),
        }
        record = b"".join(tag + struct.pack("<H", len(value)) + value for tag, value in tags.items()) + b"ENDT"
        records += struct.pack("<I", len(record) + 4) + record
        offset += len(bitcode)
    functions = struct.pack("<I", len(names)) + records
    header = bytearray(0x58)
    header[:4] = b"MTLB"
    struct.pack_into("<Q", header, 0x18, 0x58)
    struct.pack_into("<Q", header, 0x48, 0x58 + len(functions))
    return bytes(header) + functions + b"".join(bitcodes)


def test_a_metallib_has_the_names_and_bitcode_of_its_functions(tmp_path: Path) -> None:
    path = tmp_path / "a.metallib"
    path.write_bytes(metallib(["first", "second"], [b"abc", b"defgh"]))
    found = Metallib(path)
    assert [*found.entries] == ["first", "second"]
    assert (found.bitcode("first"), found.bitcode("second")) == (b"abc", b"defgh")


@pytest.mark.parametrize("length", [0, 3, 0x57, 0x58, 0x60, 0x80, -1])
def test_a_cut_metallib_is_rejected(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a.metallib"
    path.write_bytes(metallib(["first"], [b"abc"])[:length])
    with pytest.raises(MetallibError, match=r"a\.metallib: "):
        Metallib(path)


def test_arguments_of_traces_are_parsed() -> None:
    assert argument("0a00") == Constant(b"\n\0")
    assert argument("input1+64") == ArrayArgument("input1", 64)
    assert argument("temporary0/4096+8") == ArrayArgument("temporary0", 8, 4096)
    for text in ("0", "weights+0", "input0+x"):
        with pytest.raises(ValueError):
            argument(text)


@pytest.mark.parametrize("content", [b"", b"text", None])
def test_a_damaged_trace_file_is_rejected(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.jsonl.xz"
    path.write_bytes(traces_of("attention").path.read_bytes()[:1000] if content is None else content)
    with pytest.raises(TraceError, match=r"a\.jsonl\.xz: "):
        Traces("attention", path)


@pytest.mark.parametrize("model", ["t5-web-docs", "attention"])
def test_every_pass_is_recorded(model: str) -> None:
    traces = traces_of(model)
    for operation in MODELS[model]:
        for chip in CHIPS:
            for dtype in DTYPES:
                for width in WIDTHS:
                    trace = traces.find(chip, operation, dtype, width)
                    assert trace.dispatches and len(trace.strides) == len(operation.output(width))


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_rounded_as_by_mlx(dtype: str) -> None:
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32) * 2.0 ** np.arange(-10, 10).repeat(50)
    expected = mx.array(values.astype(np.float32)).astype(getattr(mx, dtype)).astype(mx.float32)
    assert np.array_equal(decode(encode(values, dtype), dtype), np.array(expected))


def test_common_classes_refine_all_partitions() -> None:
    assert common_classes([[[1], [2, 3, 4]], [[1, 2], [3, 4]]]) == [[1], [2], [3, 4]]
    assert described([[1], [2, 3, 5], [4]]) == "{1} {2-3, 5} {4}"


def test_build_names_the_missing_debian_package(tmp_path: Path) -> None:
    """In an interpreter without site packages, because `build` needs only the standard library."""
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-S", "-m", "tools.metal", "build"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    if sys.platform == "linux" and os.uname().machine == "x86_64":
        assert done.stderr.splitlines() == [
            "python -m tools.metal: clang++-19 is missing. Install the Debian package clang-19"
        ]


@pytest.fixture(scope="module")
def library() -> Library:
    try:
        library_path()
        return Library(metallib_of(PINNED))
    except BuildError as error:
        pytest.skip(str(error))


DENSE_M3, QUANTIZED_M3 = "{1} {2-5} {6-15} {16-32}", "{1} {2-12} {13-32}"


@slow
@pytest.mark.parametrize(
    ("chip", "model", "kind", "sizes", "bits", "dtype", "expected"),
    [
        ("M1", "t5-web-docs", "matmul", (256, 256), 0, "float16", "{1} {2-32}"),
        ("M1", "t5-web-docs", "quantized", (256, 256), 4, "bfloat16", "{1-13} {14-32}"),
        ("M3", "t5-web-docs", "matmul", (256, 256), 0, "bfloat16", DENSE_M3),
        ("M3-Max", "t5-web-docs", "residual", (1024, 256), 0, "float16", DENSE_M3),
        ("M3-Max", "t5-web-docs", "matmul", (256, 256), 0, "float32", "{1} {2-32}"),
        ("M3-Max", "t5-web-docs", "quantized", (256, 256), 8, "bfloat16", QUANTIZED_M3),
        ("M5", "t5-web-docs", "matmul", (256, 256), 0, "float16", DENSE_M3),
        ("M5", "t5-web-docs", "quantized", (256, 256), 4, "float32", "{1} {2-32}"),
        ("M3", "attention", "attention", (2, 2, 64, 1100), 0, "float16", "{1-8} {9-32}"),
        ("M5", "t5-small", "attention", (8, 8, 64, 128), 0, "float16", "{1-8} {9-32}"),
        ("M3-Max", "attention", "attention", (2, 2, 64, 1024), 0, "float16", "{1-8} {9-32}"),
        ("M3-Max", "attention", "attention", (2, 2, 64, 1100), 0, "float16", "{1-4} {5-8} {9-32}"),
    ],
)
def test_widths_have_the_recorded_classes(
    library: Library, chip: str, model: str, kind: str, sizes: tuple[int, ...], bits: int, dtype: str, expected: str
) -> None:
    """As found by the whole back end of MLX on a software Metal, except that inputs here cancel more sharply."""
    found = find_classes(library, chip, model, Operation(kind, sizes, bits), dtype)
    assert not found.problems and described(found.classes) == expected


class InputsOfCalibration(Inputs):
    """The inputs with which calibration compares the kernels of a device."""

    def _arrays(self) -> dict[str, Values]:
        columns, rows = self.operation.sizes
        pairs = paired(self.random, columns)
        x = spread(self.random.normal(0, SIZE, (INPUTS, columns // 2)), pairs, -1)
        weight = spread(self.random.normal(size=(rows, columns // 2)), pairs, 1)
        return {"x": self._encode(x[np.arange(self.rows) % INPUTS]), "weight": self._encode(weight)}


@slow
@pytest.mark.parametrize("orders", ALL_ORDERS, ids=lambda orders: orders.sums.name)
@pytest.mark.parametrize(("chip", "expected"), [("M1", "{1} {2-32}"), ("M3-Max", DENSE_M3), ("M5", DENSE_M3)])
def test_the_inputs_of_calibration_separate_the_classes(
    library: Library, chip: str, expected: str, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16, in which logits hide most differences, and for few inputs of a sum."""
    monkeypatch.setattr(classes, "Inputs", InputsOfCalibration)
    operation = Operation("matmul", (256, 256))
    found = find_classes(library, chip, "t5-web-docs", operation, "bfloat16", all_orders=[orders])
    assert not found.problems and described(found.classes) == expected


@slow
@pytest.mark.parametrize("operation", [Operation("quantized", (256, 256), 4), Operation("matmul", (256, 256))], ids=str)
def test_the_order_of_additions_changes_bits(library: Library, operation: Operation) -> None:
    """Sums over lanes in the kernel for one row of a quantized matrix, products of matrices in that for 16 rows."""
    width = 1 if operation.bits else 16
    trace, inputs = traces_of("t5-web-docs").find("M1", operation, "float32", width), Inputs(operation, "float32")
    outputs = [
        replay(library, trace, operation, "float32", inputs.of_pass(width), width, orders=orders).output.tobytes()
        for orders in ALL_ORDERS
    ]
    assert len({*outputs}) == len(ALL_ORDERS)


@slow
@pytest.mark.parametrize("kind", ["matmul", "quantized", "rms_norm"])
@pytest.mark.parametrize("width", [1, 5, 16])
def test_kernels_stay_within_their_arguments(library: Library, kind: str, width: int) -> None:
    operation = next(each for each in MODELS["t5-web-docs"] if each.kind == kind)
    faults = faults_of(library, Case("M3-Max", "t5-web-docs", operation, "bfloat16", width))
    assert [str(fault) for fault in faults if reason_for(fault) is None] == []


@slow
def test_one_offset_for_three_rows_is_a_read_behind_the_offsets(library: Library) -> None:
    """A planted fault, which the package had: rope takes offsets of shape (1,), but reads one for each row."""
    operation = Operation("rope", (3, 8, 256))
    trace = traces_of("t5gemma-2b").find("M3-Max", operation, "float32", 4)
    x, offsets = Inputs(operation, "float32").of_pass(4)

    def run(offsets: np.ndarray) -> list[str]:
        arrays = [x, offsets]
        found = replay(library, trace, operation, "float32", arrays, 4, placement=Placement.ENDS_AT_GUARD)
        return [str(fault) for fault in found.faults]

    assert run(offsets) == []
    (fault,) = run(offsets[:1].copy())
    assert fault.startswith("rope_float32 reads 5 bytes behind buffer")  # the first byte of the third offset


@slow
def test_an_argument_of_another_dtype_gives_wrong_values(library: Library) -> None:
    operation = Operation("matmul", (256, 256))
    trace, inputs = traces_of("t5-web-docs").find("M3-Max", operation, "bfloat16", 4), Inputs(operation, "bfloat16")
    arrays = inputs.of_pass(4)
    check(inputs, replay(library, trace, operation, "bfloat16", arrays, 4).output, 4, None)
    weight = encode(decode(arrays[1], "bfloat16"), "float16").view(np.uint16)
    with pytest.raises(WrongResultError, match="values are wrong"):
        check(inputs, replay(library, trace, operation, "bfloat16", [arrays[0], weight], 4).output, 4, None)


@slow
def test_a_trace_that_does_not_fit_its_kernel_is_a_problem(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the kernels of another wheel: a size that is too large, and a kernel that does not exist."""
    operation = Operation("rms_norm", (256,))
    traces = traces_of("t5-web-docs")
    trace = traces.find("M3-Max", operation, "float32", 4)
    (dispatch,) = trace.dispatches
    (size,) = (index for index, each in dispatch.arguments.items() if each == Constant(struct.pack("<I", 256)))
    too_large = replace(dispatch, arguments=dispatch.arguments | {size: Constant(struct.pack("<I", 1 << 30))})
    for width, changed in ((4, too_large), (5, replace(dispatch, kernel="no_such_kernel"))):
        key = "M3-Max", str(operation), 0, "float32", width
        monkeypatch.setitem(traces.by_pass, key, replace(trace, dispatches=[changed]))
    found = find_classes(library, "M3-Max", "t5-web-docs", operation, "float32", [1, 2, 4, 5])
    assert found.classes == [[1, 2]] and [*found.problems] == [4, 5]
    assert "; not 5: no_such_kernel: not in this metallib" in str(found)


@slow
@pytest.mark.parametrize(("dtype", "width"), [("float32", 1), ("bfloat16", 4)])
def test_a_missing_row_of_the_weight_is_a_read_behind_it(library: Library, dtype: str, width: int) -> None:
    operation = Operation("matmul", (256, 256))
    trace = traces_of("t5-web-docs").find("M3-Max", operation, dtype, width)
    x, weight = Inputs(operation, dtype).of_pass(width)
    found = replay(library, trace, operation, dtype, [x, weight[:-1].copy()], width, placement=Placement.ENDS_AT_GUARD)
    assert any(fault.access == "reads" and fault.side == "behind" for fault in found.faults)


@slow
def test_an_invalid_dispatch_is_an_error(library: Library) -> None:
    operation = Operation("rms_norm", (256,))
    trace = traces_of("t5-web-docs").find("M3-Max", operation, "float32", 1)
    (dispatch,) = trace.dispatches
    arrays = Inputs(operation, "float32").of_pass(1)
    for changed, problem in (
        (replace(dispatch, group=(2048, 1, 1)), "2048 threads"),
        (replace(dispatch, kernel="no_such_kernel"), "not in this metallib"),
    ):
        with pytest.raises(KernelError, match=problem):
            replay(library, replace(trace, dispatches=[changed]), operation, "float32", arrays, 1)
