"""Reads the pickles of torch checkpoints without unpickling: an interpreter for the few opcodes that state dicts use.

Security: nothing that a file names is looked up, imported or called. A global's name is compared with an allow-list
and only selects which inert value to build; any other name is rejected. (Deny-lists fail: even torch's `weights_only`
has been breached, CVE-2025-32434.) An opcode is checked before its argument is read, and `pickletools` decodes at most
`MAX_ARGUMENT_BYTES` of an argument. The memo lets values contain themselves or share parts, but no value is traversed,
compared or hashed, except short strings and small integers. Time and memory therefore grow only with the number of
opcodes.
"""

from __future__ import annotations

import pickletools
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, TypeGuard

import mlx.core as mx

from ..errors import CheckpointError
from .base import MAX_DIMENSION, MAX_DIMENSIONS
from .mapped import MappedFile

# Each opcode adds at most one value, mark or memo entry, so this limits the number of each. T5-11B needs 25,000.
MAX_OPCODES = 250_000
MAX_BYTES = 16 << 20
MAX_ARGUMENT_BYTES = 4096
MAX_MARKS = 32  # MARKs open at the same time; a state dict needs 3
MAX_INTEGER_KEY = 1 << 20

NAMES = str.split("""
PROTO STOP GLOBAL REDUCE BUILD BINPERSID BINPUT LONG_BINPUT BINGET LONG_BINGET MARK NONE NEWTRUE NEWFALSE BININT1
BININT2 BININT LONG1 BINFLOAT BINUNICODE EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 TUPLE EMPTY_LIST APPEND APPENDS EMPTY_DICT
SETITEM SETITEMS
""")
# Code of each allowed opcode -> its name, and the function that reads its argument (None if it has no argument)
OPCODES = {
    each.code.encode("latin-1"): (each.name, each.arg.reader if each.arg else None)
    for each in pickletools.opcodes
    if each.name in NAMES
}

STORAGE_TYPES: Mapping[str, mx.Dtype] = {
    "torch DoubleStorage": mx.float64, "torch FloatStorage": mx.float32, "torch HalfStorage": mx.float16,
    "torch BFloat16Storage": mx.bfloat16, "torch LongStorage": mx.int64, "torch IntStorage": mx.int32,
    "torch ShortStorage": mx.int16, "torch CharStorage": mx.int8, "torch ByteStorage": mx.uint8,
    "torch BoolStorage": mx.bool_,
}  # fmt: skip
ORDERED_DICT = "collections OrderedDict"
REBUILD_TENSOR = "torch._utils _rebuild_tensor_v2"
REBUILD_PARAMETER = "torch._utils _rebuild_parameter"
GLOBALS = {ORDERED_DICT, REBUILD_TENSOR, REBUILD_PARAMETER, *STORAGE_TYPES}


@dataclass(frozen=True, eq=False)
class GlobalName:
    """The name of an allowed global as "module attribute". It is never looked up."""

    name: str


class NestedTuple(tuple[object, ...]):
    """A tuple that contains tuples, such as a tensor's constructor arguments. No other tuple may contain it."""


@dataclass(frozen=True, eq=False)
class TorchStorage:
    """A flat array of numbers, stored under a key elsewhere in the file."""

    key: str
    dtype: mx.Dtype
    numel: int

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.size


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A strided view of a storage, checked to stay inside it. Offset and strides count elements."""

    storage: TorchStorage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(eq=False)
class PickleInterpreter:
    """Interprets one pickle. Afterwards, `value` is the pickled value, and `position` is the end of the pickle.

    Args:
        file: The file that contains the pickle.
        position: The start of the pickle; during `run`, the position of the current opcode.
    """

    file: MappedFile
    position: int
    stack: list[object] = field(default_factory=list)
    outer_stacks: list[list[object]] = field(default_factory=list)  # one for each open MARK
    memo: dict[int, object] = field(default_factory=dict)
    storages: dict[str, TorchStorage] = field(default_factory=dict)
    value: object = None

    def error(self, problem: str) -> CheckpointError:
        return self.file.error(f"pickle refused: {problem} (at byte {self.position})")

    def run(self, max_bytes: int) -> None:
        stop = self.position + max_bytes
        for _ in range(MAX_OPCODES):
            opcode, argument, end = self.read(stop)
            if opcode == "STOP":
                break
            self.step(opcode, argument)
            self.position = end
        else:
            raise self.error(f"more than {MAX_OPCODES} opcodes")
        if self.outer_stacks or len(self.stack) != 1:
            raise self.error("it ends before its value is complete")
        self.value = self.stack[0]
        self.position = end

    def read(self, stop: int) -> tuple[str, Any, int]:
        """Return the name and the argument of the opcode at `position`, and the position after them."""
        start = self.position + 1
        code = self.file.data[self.position : min(start, stop)]
        if code not in OPCODES:
            name = {each.code: each.name for each in pickletools.opcodes}.get(code.decode("latin-1"), repr(code))
            raise self.error(f"opcode {name} is not allowed" if code else "it has no end")
        name, reader = OPCODES[code]
        if reader is None:
            return name, None, start
        raw = BytesIO(self.file.data[start : min(start + MAX_ARGUMENT_BYTES, stop)])
        try:
            return name, reader(raw), start + raw.tell()
        except ValueError as error:
            raise self.error(f"the argument of {name} is damaged, cut off or too long") from error

    def step(self, opcode: str, argument: Any) -> None:
        """Execute one pickle protocol 2 opcode."""
        match opcode:
            case "BINGET" | "LONG_BINGET":
                if argument not in self.memo:
                    raise self.error(f"memo entry {argument} does not exist")
                self.stack.append(self.memo[argument])
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = self.top()
            case "BININT1" | "BININT2" | "BININT" | "LONG1" | "BINFLOAT" | "BINUNICODE":
                self.stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                self.stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode])
            case "EMPTY_TUPLE" | "EMPTY_LIST" | "EMPTY_DICT":
                self.stack.append({"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}[opcode]())
            case "MARK":
                if len(self.outer_stacks) == MAX_MARKS:
                    raise self.error(f"more than {MAX_MARKS} open marks")
                self.outer_stacks.append(self.stack)
                self.stack = []
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self.push_tuple([self.pop() for _ in range(int(opcode[-1]))][::-1])
            case "TUPLE":
                self.push_tuple(self.pop_to_mark())
            case "APPEND":
                self.append([self.pop()])
            case "APPENDS":
                self.append(self.pop_to_mark())
            case "SETITEM":
                self.set_items([self.pop(), self.pop()][::-1])
            case "SETITEMS":
                self.set_items(self.pop_to_mark())
            case "GLOBAL":
                if argument not in GLOBALS:
                    raise self.error(f"global {argument!r} is not allowed")
                self.stack.append(GlobalName(argument))
            case "REDUCE":
                self.reduce()
            case "BUILD":
                self.build()
            case "BINPERSID":
                self.persistent()
            case "PROTO":
                if argument != 2:  # torch.save's default
                    raise self.error(f"protocol {argument} is not supported (expected 2)")

    def push_tuple(self, items: list[object]) -> None:
        types = set(map(type, items))
        if NestedTuple in types:
            raise self.error("tuples of more than two levels")
        self.stack.append(NestedTuple(items) if tuple in types else tuple(items))

    def pop(self) -> object:
        self.top()
        return self.stack.pop()

    def top(self) -> object:
        if not self.stack:
            raise self.error("the stack is empty")
        return self.stack[-1]

    def pop_to_mark(self) -> list[object]:
        if not self.outer_stacks:
            raise self.error("no open mark")
        items = self.stack
        self.stack = self.outer_stacks.pop()
        return items

    def append(self, items: list[object]) -> None:
        if not isinstance(target := self.top(), list):
            raise self.error("append to a value that is not a list")
        target.extend(items)

    def set_items(self, items: list[object]) -> None:
        if not isinstance(target := self.top(), dict) or len(items) % 2:
            raise self.error("set items of a value that is not a dict, or a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Only small integers are allowed. With large integers, a file could make all keys collide in the hash
            # table.
            if type(key) is not str and not (type(key) is int and 0 <= key < MAX_INTEGER_KEY):
                raise self.error(f"dict keys of type {type(key).__name__} are not allowed")
            target[key] = value

    def reduce(self) -> None:
        arguments = self.pop()
        function = self.pop()
        if not isinstance(function, GlobalName) or not isinstance(arguments, tuple):
            raise self.error("REDUCE without a function and a tuple of arguments")
        if function.name == ORDERED_DICT and not arguments:
            self.stack.append({})
        elif function.name == REBUILD_TENSOR and len(arguments) == 6:
            self.stack.append(self.tensor(*arguments))
        elif function.name == REBUILD_PARAMETER and len(arguments) == 3 and isinstance(arguments[0], StoredTensor):
            self.stack.append(arguments[0])
        else:
            raise self.error(f"{function.name!r} is called with unsupported arguments")

    def build(self) -> None:
        """Drop `_metadata`, the module versions that state_dict() sets on its OrderedDict. Reject other attributes."""
        state = self.pop()
        target = self.top()
        if not isinstance(target, dict) or not isinstance(state, dict) or len(state) != 1 or "_metadata" not in state:
            raise self.error("BUILD is allowed only for a state dict's _metadata")

    def persistent(self) -> None:
        """Push a storage for ('storage', type, key, location, numel). The legacy format appends None to this tuple."""
        match self.pop():
            case ("storage", GlobalName(name=name), str(key), str(), int(numel), *rest) if name in STORAGE_TYPES and (
                rest in ([], [None])
            ):
                pass
            case _:
                raise self.error("a persistent id that is not a complete storage")
        if not 0 <= numel < 1 << 60:
            raise self.error(f"storage {key!r} has {numel} elements")
        dtype = STORAGE_TYPES[name]
        storage = self.storages.setdefault(key, TorchStorage(key, dtype, numel))
        if (storage.dtype, storage.numel) != (dtype, numel):
            raise self.error(f"storage {key!r} appears with two dtypes or sizes")
        self.stack.append(storage)

    def tensor(
        self, storage: object, offset: object, shape: object, strides: object, _grad: object, hooks: object
    ) -> StoredTensor:
        if not isinstance(storage, TorchStorage) or hooks not in ({}, None):
            raise self.error("a tensor without a storage, or with hooks")
        if not isinstance(offset, int) or not (are_sizes((offset,)) and are_sizes(shape) and are_sizes(strides)):
            raise self.error("a tensor with an invalid offset, shape or strides")
        if len(shape) != len(strides) or any(size > MAX_DIMENSION for size in shape):
            raise self.error(f"a tensor with impossible shape {shape} or strides {strides}")

        # torch may store any stride for a dimension of size 1, where strides have no effect
        is_used = [size > 1 and 0 not in shape for size in shape]
        strides = tuple(stride if used else 0 for stride, used in zip(strides, is_used, strict=True))
        extent = 0 if 0 in shape else 1  # elements from the first to the last, inclusive
        for stride, size, used in sorted(zip(strides, shape, is_used, strict=True)):
            if used and stride < extent:  # an expanded tensor could claim any size with a one-element storage
                raise self.error("a tensor with overlapping elements")
            extent += stride * (size - 1)
        if offset + extent > storage.numel:
            raise self.error(f"a tensor reaches past the end of storage {storage.key!r}")
        return StoredTensor(storage, offset, shape, strides)


def are_sizes(value: object) -> TypeGuard[tuple[int, ...]]:
    """Return whether a value is a short tuple of integers >= 0."""
    if not isinstance(value, tuple) or len(value) > MAX_DIMENSIONS:
        return False
    return all(type(item) is int and item >= 0 for item in value)


def read_pickle(file: MappedFile, start: int, max_bytes: int = MAX_BYTES) -> PickleInterpreter:
    """Interpret a pickle of at most `max_bytes` bytes at `start`. Raises `CheckpointError` if it is rejected."""
    interpreter = PickleInterpreter(file, start)
    interpreter.run(max_bytes)
    return interpreter
