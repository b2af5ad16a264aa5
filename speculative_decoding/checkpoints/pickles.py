"""Reads the pickles of torch checkpoints without unpickling: an interpreter of the few opcodes that state dicts need.

Python's disassembler, `pickletools`, splits a pickle into opcodes and their arguments; it builds nothing else.

Nothing that a file names is looked up, imported or called. A global is compared, as text, with the list below, and
only decides which inert value is built; anything else is refused. (Block-lists lose: even torch's own
`weights_only` has been breached, CVE-2025-32434.) Every size is bounded. No value is walked that the memo could hand
out again, so that time and memory grow with the opcodes alone, however they refer to themselves and each other. Knows
nothing of the file around the pickle.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import mlx.core as mx

from ..errors import CheckpointError
from .base import MAX_DIMENSION, MAX_DIMENSIONS
from .files import MappedFile

# An opcode pushes one value, mark or memo entry at most, so this bounds them all. T5-11B needs 25,000.
MAX_OPCODES = 250_000
MAX_BYTES = 16 << 20
MAX_STRING = 4096  # characters
MAX_INTEGER_KEY = 1 << 20

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
CONSTANTS: Mapping[str, object] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


@dataclass(frozen=True, eq=False)
class Global:
    """The name of an allowed global: "module attribute". Never looked up."""

    name: str


@dataclass(frozen=True, eq=False)
class TorchStorage:
    """A run of numbers that lies elsewhere in the file, under a key."""

    key: str
    dtype: mx.Dtype
    numel: int

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.size


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A strided view of a storage. Offset and strides count elements; all are checked to stay inside."""

    storage: TorchStorage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(eq=False)
class PickleInterpreter:
    """The pickle machine: a stack, a memo and where in the file the current opcode lies. When it has run, `value` is
    what was pickled, and `position` where the pickle ends.
    """

    file: MappedFile
    position: int
    stack: list[object] = field(default_factory=list)
    below_marks: list[list[object]] = field(default_factory=list)  # the stacks under each open mark
    memo: dict[int, object] = field(default_factory=dict)
    storages: dict[str, TorchStorage] = field(default_factory=dict)
    value: object = None

    def error(self, problem: str) -> CheckpointError:
        return self.file.error(f"pickle refused, {problem} (at byte {self.position})")

    def run(self, size: int) -> None:
        for count, (opcode, argument) in enumerate(self.opcodes(size)):
            if count == MAX_OPCODES:
                raise self.error(f"more than {MAX_OPCODES} opcodes")
            if isinstance(argument, str) and len(argument) > MAX_STRING:
                raise self.error(f"a string of {len(argument)} characters")
            if opcode != "STOP":
                self.step(opcode, argument)
        if self.below_marks or len(self.stack) != 1:
            raise self.error("it ends with an unfinished value")
        self.value, self.position = self.stack[0], self.position + 1

    def opcodes(self, size: int) -> Iterator[tuple[str, Any]]:
        """Name and argument of each, the last being STOP."""
        start = self.position
        operations: Iterator[tuple[Any, Any, Any]] = pickletools.genops(self.file.data[start : start + size])
        try:
            for opcode, argument, offset in operations:
                self.position = start + offset
                yield opcode.name, argument
        except ValueError as error:
            raise self.error(str(error)[:MAX_STRING]) from error  # it may quote the file

    def step(self, opcode: str, argument: Any) -> None:
        """One opcode of protocol 2. Those that build other objects (INST, OBJ, NEWOBJ, EXT*) are refused."""
        match opcode:
            case "BINGET" | "LONG_BINGET":
                if argument not in self.memo:
                    raise self.error(f"nothing in the memo at {argument}")
                self.stack.append(self.memo[argument])
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = self.top()
            case "BININT1" | "BININT2" | "BININT" | "LONG1" | "BINFLOAT" | "BINUNICODE":
                self.stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE" | "EMPTY_TUPLE":
                self.stack.append(CONSTANTS[opcode])
            case "EMPTY_LIST":
                self.stack.append([])
            case "EMPTY_DICT":
                self.stack.append({})
            case "MARK":
                self.below_marks.append(self.stack)
                self.stack = []
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                items = [self.pop() for _ in range(int(opcode[-1]))]
                self.stack.append(tuple(reversed(items)))
            case "TUPLE":
                items = self.pop_to_mark()
                self.stack.append(tuple(items))
            case "APPEND":
                self.append([self.pop()])
            case "APPENDS":
                self.append(self.pop_to_mark())
            case "SETITEM":
                value, key = self.pop(), self.pop()
                self.set_items([key, value])
            case "SETITEMS":
                self.set_items(self.pop_to_mark())
            case "GLOBAL":
                if argument not in GLOBALS:
                    raise self.error(f"global {argument!r} is not allowed")
                self.stack.append(Global(argument))
            case "REDUCE":
                self.reduce()
            case "BUILD":
                self.build()
            case "BINPERSID":
                self.persistent()
            case "PROTO":
                if argument != 2:  # the only one that torch.save writes by default
                    raise self.error(f"protocol {argument} instead of 2")
            case _:
                raise self.error(f"opcode {opcode} is not allowed")

    def pop(self) -> object:
        self.top()
        return self.stack.pop()

    def top(self) -> object:
        if not self.stack:
            raise self.error("the stack is empty")
        return self.stack[-1]

    def pop_to_mark(self) -> list[object]:
        if not self.below_marks:
            raise self.error("no open mark")
        items, self.stack = self.stack, self.below_marks.pop()
        return items

    def append(self, items: list[object]) -> None:
        if not isinstance(target := self.top(), list):
            raise self.error("no list to append to")
        target.extend(items)

    def set_items(self, items: list[object]) -> None:
        if not isinstance(target := self.top(), dict) or len(items) % 2:
            raise self.error("no dict to set items of, or a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Small integers only: with large ones a file could make every key collide.
            if type(key) is not str and not (type(key) is int and 0 <= key < MAX_INTEGER_KEY):
                raise self.error(f"a dict key of type {type(key).__name__}")
            target[key] = value

    def reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Global) or type(arguments) is not tuple:
            raise self.error("REDUCE of something that is not a function")
        if function.name == ORDERED_DICT and not arguments:
            self.stack.append({})
        elif function.name == REBUILD_TENSOR and len(arguments) == 6:
            self.stack.append(self.tensor(*arguments))
        elif function.name == REBUILD_PARAMETER and len(arguments) == 3 and isinstance(arguments[0], StoredTensor):
            self.stack.append(arguments[0])
        else:
            raise self.error(f"{function.name!r} called with arguments it does not take")

    def build(self) -> None:
        """Only the `_metadata` (module versions) that state_dict() hangs on its OrderedDict; it is dropped."""
        state, target = self.pop(), self.top()
        if not isinstance(target, dict) or not isinstance(state, dict) or len(state) != 1 or "_metadata" not in state:
            raise self.error("BUILD of something other than a state dict's _metadata")

    def persistent(self) -> None:
        """('storage', type, key, location, numel); the legacy format adds a sixth, which torch leaves None."""
        match self.pop():
            case ("storage", Global(name=name), str(key), str(), int(numel), *rest) if name in STORAGE_TYPES and (
                rest in ([], [None])
            ):
                pass
            case _:
                raise self.error("a persistent id that is not a whole storage")
        if not 0 <= numel < 1 << 60:
            raise self.error(f"storage {key!r} has {numel} elements")
        known = self.storages.setdefault(key, TorchStorage(key, STORAGE_TYPES[name], numel))
        if (known.dtype, known.numel) != (STORAGE_TYPES[name], numel):
            raise self.error(f"storage {key!r} has two types or sizes")
        self.stack.append(known)

    def tensor(
        self, storage: object, offset: object, shape: object, strides: object, _grad: object, hooks: object
    ) -> StoredTensor:
        if not isinstance(storage, TorchStorage) or hooks not in ({}, None):
            raise self.error("a tensor without a storage, or with hooks")
        if not isinstance(offset, int) or not (are_sizes((offset,)) and are_sizes(shape) and are_sizes(strides)):
            raise self.error("a tensor whose offset, shape or strides are no sizes")
        if len(shape) != len(strides) or any(size > MAX_DIMENSION for size in shape):
            raise self.error(f"a tensor of shape {shape}, strides {strides}")
        # A dimension of one is never stepped along, so torch may leave any stride there.
        stepped = [size > 1 and 0 not in shape for size in shape]
        strides = tuple(stride if steps else 0 for stride, steps in zip(strides, stepped, strict=True))
        reach = 0 if 0 in shape else 1
        for stride, size, steps in sorted(zip(strides, shape, stepped, strict=True)):
            if steps and stride < reach:  # an expanded tensor could be of any size, on a storage of one element
                raise self.error("a tensor whose elements overlap")
            reach += stride * (size - 1)
        if offset + reach > storage.numel:
            raise self.error(f"a tensor that reaches outside of storage {storage.key!r}")
        return StoredTensor(storage, offset, shape, strides)


def are_sizes(value: object) -> TypeGuard[tuple[int, ...]]:
    if not isinstance(value, tuple) or len(value) > MAX_DIMENSIONS:
        return False
    return all(type(item) is int and item >= 0 for item in value)


def read_pickle(file: MappedFile, start: int, size: int = MAX_BYTES) -> PickleInterpreter:
    """Interpret the pickle that begins at `start` and takes `size` bytes at most. Raises `CheckpointError`."""
    machine = PickleInterpreter(file, start)
    machine.run(size)
    return machine
