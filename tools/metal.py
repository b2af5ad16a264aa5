"""Metal dispatches of each MLX primitive, including the copies of arrays whose layout a kernel does not accept.

Follows the source of MLX at commit 846d176; each function names its source, relative to mlx/backend/metal. Inputs that
are overwritten count as donated, so updates in place copy nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

FUSED_UP_TO_8_QUERIES = (64, 96, 128, 256)  # head widths
FUSED_ABOVE_8_QUERIES = (64, 72, 80, 96, 128)

VIEWS = {"Transpose", "Broadcast", "Slice", "Split", "ExpandDims", "Squeeze", "StopGradient", "Depends", "AsStrided"}
RESHAPES = {"Reshape", "Flatten", "Unflatten"}
# compile.cpp, is_unary, is_binary and is_ternary: `mx.compile` joins adjacent ones in one kernel
UNARY = {
    *("Abs", "ArcCos", "ArcCosh", "ArcSin", "ArcSinh", "ArcTan", "ArcTanh", "AsType", "Ceil", "Cos", "Cosh", "Erf"),
    *("ErfInv", "Exp", "Expm1", "Floor", "Log", "Log2", "Log10", "Log1p", "LogicalNot", "Negative", "Remainder"),
    *("Round", "Rsqrt", "Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Square", "Tan", "Tanh"),
}
BINARY = {
    *("Add", "ArcTan2", "Divide", "Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "LogAddExp", "LogicalAnd"),
    *("LogicalOr", "Maximum", "Minimum", "Multiply", "NotEqual", "Power", "Subtract"),
}
ELEMENTWISE = UNARY | BINARY | {"Select"}
# One kernel for any layout: indexing.cpp, primitives.cpp, reduce.cpp, scan.cpp
SINGLE = {"Arange", "ArgReduce", "Full", "Gather", "GatherAxis", "RandomBits", "Reduce", "Scan", "ScatterAxis"}


class Array(NamedTuple):
    """An array of a graph: its name, shape, item size in bytes, and strides in elements."""

    name: str
    shape: tuple[int, ...]
    itemsize: int
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def is_row_contiguous(self) -> bool:
        return self.size <= 1 or all(
            size == 1 or stride == expected
            for size, stride, expected in zip(self.shape, self.strides, row_major(self.shape), strict=True)
        )

    @property
    def is_dense(self) -> bool:
        """Whether the elements, in some order, fill a block of memory (the flag `contiguous`)."""
        expected = 1
        for stride, size in sorted(zip(self.strides, self.shape, strict=True)):
            if size > 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def is_scalar(self) -> bool:
        """Whether one element fills the array."""
        return all(size == 1 or stride == 0 for size, stride in zip(self.shape, self.strides, strict=True))


class Node(NamedTuple):
    """A primitive with its inputs and outputs. arguments: as `mx.export_function` reports them."""

    name: str
    arguments: Sequence[Any]
    inputs: Sequence[Array]
    outputs: Sequence[Array]


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def output_strides(node: Node) -> tuple[int, ...]:
    """Return the strides of the first output."""
    shape = node.outputs[0].shape
    if not node.inputs:
        return row_major(shape)
    first = node.inputs[0]
    match node.name:
        case "Transpose":
            return tuple(first.strides[axis] for axis in node.arguments[0])
        case "Broadcast":
            missing = len(shape) - len(first.shape)
            kept = (stride if size > 1 else 0 for size, stride in zip(first.shape, first.strides, strict=True))
            return (0,) * missing + tuple(kept)
        case "Slice":
            return tuple(stride * step for stride, step in zip(first.strides, node.arguments[2], strict=True))
        case "Split" | "StopGradient":
            return first.strides
        case "ExpandDims":
            return strides_with_new_axes(first, [axis % len(shape) for axis in node.arguments[0]])
        case "Squeeze":
            axes = [axis % len(first.shape) for axis in node.arguments[0]]
            return tuple(stride for axis, stride in enumerate(first.strides) if axis not in axes)
        case "AsStrided":
            return tuple(node.arguments[1])
        case "RMSNorm" | "LayerNorm" | "Softmax":
            return first.strides if first.is_dense and first.strides[-1] == 1 else row_major(shape)
        case "ScaledDotProductAttention" if shape[2] > 8:
            _, heads, length, width = shape
            return (length * heads * width, width, heads * width, 1)
    if node.name in RESHAPES:
        return reshaped_strides(first, shape) or row_major(shape)
    if node.name in ELEMENTWISE:
        arrays = [each for each in node.inputs if not each.is_scalar]
        if len(arrays) == 1 and arrays[0].is_dense:
            return arrays[0].strides
    return row_major(shape)


def strides_with_new_axes(array: Array, axes: Sequence[int]) -> tuple[int, ...]:
    """../common/common.cpp, ExpandDims::eval."""
    strides = list(array.strides)
    for axis in sorted(axes):
        strides.insert(axis, 1)
    return tuple(strides)


def reshaped_strides(array: Array, shape: Sequence[int]) -> tuple[int, ...] | None:
    """../common/common.cpp, prepare_reshape: the strides of a view, or None if the array must be copied."""
    if array.size == 0 or array.is_row_contiguous:
        return row_major(shape)
    sizes: list[int] = []
    strides: list[int] = []
    for size, stride in zip(array.shape, array.strides, strict=True):
        if size == 1:
            continue
        if sizes and strides[-1] == size * stride:
            sizes[-1] *= size
            strides[-1] = stride
        else:
            sizes.append(size)
            strides.append(stride)
    result: list[int] = []
    i = 0
    for size in shape:
        if i < len(sizes) and sizes[i] % size == 0:
            sizes[i] //= size
            result.append(sizes[i] * strides[i])
            i += sizes[i] == 1
        elif size == 1:
            result.append(result[-1])
        else:
            return None
    return tuple(result)


def dispatches(node: Node, generation: int) -> Counter[str]:
    """Return the kernels that a primitive dispatches, by kind. generation: 1 to 4, for M1 to M4."""
    first = node.inputs[0] if node.inputs else None
    match node.name:
        case name if name in VIEWS:
            return Counter()
        case name if name in RESHAPES:  # copy.cpp, reshape_gpu
            assert first is not None
            return Counter(copy=int(reshaped_strides(first, node.outputs[0].shape) is None))
        case "Matmul" | "AddMM":
            return matmul(node, generation)
        case "QuantizedMatmul":
            return quantized_matmul(node, generation)
        case "Quantize":
            return Counter(dequantize=1, copy=sum(not each.is_row_contiguous for each in node.inputs))
        case "ScaledDotProductAttention":
            return attention(node)
        case "Softmax":  # softmax.cpp
            assert first is not None
            return Counter(softmax=1, copy=int(not (first.is_dense and first.strides[-1] == 1)))
        case "RMSNorm" | "LayerNorm":  # normalization.cpp, set_output
            return Counter(norm=1, copy=int(not is_dense_matrix(node.inputs[0])))
        case "RoPE":  # rope.cpp
            return Counter(rope=1, copy=int(not rope_reads(node.inputs[0])))
        case "DynamicSliceUpdate":  # ../gpu/primitives.cpp: compute_dynamic_offset, then the copy
            return Counter({"cache write": 2})
        case "ScatterAxis":
            return Counter({"cache write": 1})
        case "SliceUpdate":
            return Counter({"cache write": 1})
        case "Concatenate":  # slicing.cpp, concatenate_gpu
            return Counter(concatenate=sum(each.size > 0 for each in node.inputs))
        case "Pad":  # ../gpu/slicing.cpp, pad_gpu: a fill and a copy
            return Counter(pad=2)
        case "Contiguous":
            return Counter(copy=int(not node.inputs[0].is_row_contiguous))
        case name if name in ELEMENTWISE or name.startswith("Compiled"):
            return Counter({"element-wise": int(node.outputs[0].size > 0)})
        case name if name in SINGLE:
            return Counter({"indices and reductions": int(node.outputs[0].size > 0)})
    raise NotImplementedError(f"dispatches: primitive {node.name!r} is not in the table")


def is_dense_matrix(x: Array) -> bool:
    """normalization.cpp: the rows are adjacent."""
    is_packed = len(x.shape) == 1 or x.shape[-2] == 1 or x.strides[-2] in (0, x.shape[-1])
    return x.is_dense and x.strides[-1] == 1 and is_packed


def rope_reads(x: Array) -> bool:
    """rope.cpp, RoPE::eval_gpu: row-contiguous, of a single row, or with transposed heads and positions."""
    _, heads, length, width = x.shape
    is_transposed = x.strides[:3] == (length * heads * width, width, heads * width)
    return x.is_row_contiguous or x.shape[0] == 1 or is_transposed


def matmul(node: Node, generation: int) -> Counter[str]:
    """matmul.cpp, Matmul::eval_gpu and AddMM::eval_gpu."""
    a, b = node.inputs[:2]
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    batch = prod(node.outputs[0].shape[:-2])
    copies, a_transposed, a = matrix_layout(a, is_vector=rows == 1)
    more, b_transposed, b = matrix_layout(b, is_vector=columns == 1)
    copies += more
    is_shared = all(stride == 0 or size == 1 for size, stride in zip(b.shape[:-2], b.strides[:-2], strict=True))
    if batch > 1 and not a_transposed and a.is_row_contiguous and is_shared:
        rows *= batch
        batch = 1
    is_half = node.outputs[0].itemsize == 2
    is_wide_vector = (  # gemv_wide_config
        generation >= 3
        and is_half
        and not a_transposed
        and b_transposed
        and 1 < rows <= 15
        and columns > 1
        and inner % 4 == 0
    )
    if is_wide_vector or min(rows, columns) == 1:
        return Counter(matmul=1, copy=copies)
    tiles = -(-rows // 16) * -(-columns // 16)
    is_split = batch == 1 and tiles <= 1024 and inner // 16 >= 8 and inner >= max(rows, columns)  # steel_matmul_axpby
    return Counter(matmul=1 + is_split, copy=copies)


def matrix_layout(x: Array, *, is_vector: bool) -> tuple[int, bool, Array]:
    """matmul.cpp, check_transpose: the number of copies, whether the matrix is transposed, and the array."""
    row_stride, stride = x.strides[-2:]
    if stride == 1 and (not is_vector or row_stride == x.shape[-1]):
        return 0, False, x
    if row_stride == 1 and (not is_vector or stride == x.shape[-2]):
        return 0, True, x
    return 1, False, x._replace(strides=row_major(x.shape))


def quantized_matmul(node: Node, generation: int) -> Counter[str]:
    """quantized.cpp, QuantizedMatmul::eval_gpu, with a transposed weight, on a chip that is not an Ultra."""
    x = node.inputs[0]
    group_size = node.arguments[0]
    inner, columns = x.shape[-1], node.outputs[0].shape[-1]
    copies = int(not x.is_row_contiguous)
    rows = x.size // inner
    largest = max(inner, columns)
    limits = (13, 15, 13) if generation >= 3 else (14, 10, 6)  # get_qmv_batch_limit
    if rows < limits[0 if largest <= 2048 else 1 if largest <= 4096 else 2]:
        return Counter(matmul=1, copy=copies)
    align = max(group_size, 32)  # qmm_splitk
    split = min(max(1, 512 // (-(-columns // 32) * -(-rows // 32))), inner // align)
    while split > 1 and inner % (split * align):
        split -= 1
    return Counter(matmul=1 + (split > 1), copy=copies)


def attention(node: Node) -> Counter[str]:
    """scaled_dot_product_attention.cpp, ScaledDotProductAttention::eval_gpu."""
    queries, keys, values, *mask = node.inputs
    batch, heads, length, width = queries.shape
    if length > 8:
        return Counter(attention=1, copy=sum(each.strides[-1] != 1 for each in node.inputs))
    copies = 0
    if not queries.is_row_contiguous:
        other = 1 if batch == 1 else 0  # the axis that positions may be transposed with
        is_read = min(batch, heads) == 1 and (
            queries.strides[3] == 1
            and queries.strides[2] == width * queries.shape[other]
            and queries.strides[other] == width
        )
        copies += not is_read
    for each in (keys, values):
        is_read = each.strides[-1] == 1 and (
            min(each.shape[:2]) == 1 or each.strides[0] == each.strides[1] * each.shape[1]
        )
        copies += not is_read
    for each in mask:
        is_read = each.is_row_contiguous or min(batch, heads) == 1 or each.strides[0] == each.strides[1] * heads
        copies += not is_read
    return Counter(attention=1, copy=copies)
