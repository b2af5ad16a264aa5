"""Reads the pickles of torch checkpoints without unpickling: an interpreter of the few opcodes that state dicts need.

Nothing that a file names is looked up, imported or called. A global is compared, as text, with the list below, and
only decides which inert value is built; anything else is refused. (Block-lists lose: even torch's own
`weights_only` has been breached, CVE-2025-32434.) Every size is bounded. No value is walked that the memo could hand
out again, so that time and memory grow with the opcodes alone, however they refer to themselves and each other. Knows
nothing of the file around the pickle.
"""

from __future__ import annotations

import mmap
import pickletools
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

import mlx.core as mx

from ..errors import CheckpointError

# An opcode pushes one value at most, so this bounds the stack and the memo too. T5-11B needs 25,000.
MAX_OPCODES = 250_000
MAX_BYTES = 32 << 20
MAX_MARKS = 64
MAX_STRING_BYTES = 4096
MAX_INTEGER_BYTES = 16
MAX_INTEGER_KEY = 1 << 20
MAX_DIMENSIONS = 16
MAX_DIMENSION = (1 << 31) - 1  # MLX counts in int32

STORAGE_TYPES: Mapping[str, mx.Dtype] = {
    "torch FloatStorage": mx.float32,
    "torch HalfStorage": mx.float16,
    "torch BFloat16Storage": mx.bfloat16,
    "torch DoubleStorage": mx.float64,
    "torch LongStorage": mx.int64,
    "torch IntStorage": mx.int32,
    "torch ShortStorage": mx.int16,
    "torch CharStorage": mx.int8,
    "torch ByteStorage": mx.uint8,
    "torch BoolStorage": mx.bool_,
}
ORDERED_DICT = "collections OrderedDict"
REBUILD_TENSOR = "torch._utils _rebuild_tensor_v2"
REBUILD_PARAMETER = "torch._utils _rebuild_parameter"
GLOBALS = {ORDERED_DICT, REBUILD_TENSOR, REBUILD_PARAMETER, *STORAGE_TYPES}
OPCODE_NAMES = {opcode.code.encode("latin-1"): opcode.name for opcode in pickletools.opcodes}  # for messages only


@dataclass(frozen=True, eq=False)
class Global:
    """The name of an allowed global: "module attribute". Never looked up."""

    name: str


@dataclass(frozen=True, eq=False)
class Storage:
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

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Pickle:
    value: object
    storages: Mapping[str, Storage]
    stop: int  # where the pickle ends in the data


@dataclass(eq=False)
class Machine:
    """The pickle machine: a stack, a memo and a place in the data."""

    path: Path
    data: mmap.mmap | bytes
    position: int
    stop: int
    stack: list[object] = field(default_factory=list)
    below_marks: list[list[object]] = field(default_factory=list)  # the stacks under each open mark
    memo: dict[int, object] = field(default_factory=dict)
    storages: dict[str, Storage] = field(default_factory=dict)

    def run(self) -> Pickle:
        for _ in range(MAX_OPCODES):
            opcode = self.take(1)
            if opcode == b".":
                if self.below_marks or len(self.stack) != 1:
                    raise self.error("it ends with an unfinished value")
                return Pickle(self.stack[0], self.storages, self.position)
            if opcode not in OPCODES:
                raise self.error(f"opcode {OPCODE_NAMES.get(opcode, opcode)} is not allowed")
            OPCODES[opcode](self)
        raise self.error(f"more than {MAX_OPCODES} opcodes")

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: pickle refused, {problem} (before byte {self.position})")

    def take(self, size: int) -> bytes:
        if not 0 <= size <= self.stop - self.position:
            raise self.error(f"it is cut short, or larger than {MAX_BYTES} bytes")
        self.position += size
        return self.data[self.position - size : self.position]

    def line(self) -> str:
        end = self.data.find(b"\n", self.position, min(self.stop, self.position + MAX_STRING_BYTES))
        if end < 0:
            raise self.error("a name is too long or cut short")
        return self.take(end + 1 - self.position)[:-1].decode("utf-8", "backslashreplace")

    def unsigned(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def signed(self, size: int) -> int:
        if size > MAX_INTEGER_BYTES:
            raise self.error(f"an integer of {size} bytes")
        return int.from_bytes(self.take(size), "little", signed=True)

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self) -> object:
        self.top()
        return self.stack.pop()

    def top(self) -> object:
        if not self.stack:
            raise self.error("the stack is empty")
        return self.stack[-1]

    def mark(self) -> None:
        if len(self.below_marks) >= MAX_MARKS:
            raise self.error(f"more than {MAX_MARKS} open marks")
        self.below_marks.append(self.stack)
        self.stack = []

    def pop_to_mark(self) -> list[object]:
        if not self.below_marks:
            raise self.error("no open mark")
        items, self.stack = self.stack, self.below_marks.pop()
        return items

    def pop_tuple(self, size: int) -> None:
        items = [self.pop() for _ in range(size)]
        self.push(tuple(reversed(items)))

    def remember(self, index: int) -> None:
        if index >= MAX_OPCODES:
            raise self.error(f"memo index {index}")
        self.memo[index] = self.top()

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise self.error(f"nothing in the memo at {index}")
        self.push(self.memo[index])

    def string(self) -> None:
        size = self.unsigned(4)
        if size > MAX_STRING_BYTES:
            raise self.error(f"a string of {size} bytes")
        try:
            self.push(self.take(size).decode("utf-8"))
        except UnicodeDecodeError as error:
            raise self.error("a string that is not UTF-8") from error

    def protocol(self) -> None:
        if (version := self.unsigned(1)) != 2:  # the only one that torch.save writes unasked
            raise self.error(f"protocol {version} instead of 2")

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

    def name_global(self) -> None:
        name = f"{self.line()} {self.line()}"
        if name not in GLOBALS:
            raise self.error(f"global {name!r} is not allowed")
        self.push(Global(name))

    def reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Global) or type(arguments) is not tuple:
            raise self.error("REDUCE of something that is not a function")
        if function.name == ORDERED_DICT and not arguments:
            self.push({})
        elif function.name == REBUILD_TENSOR and len(arguments) == 6:
            self.push(self.tensor(*arguments))
        elif function.name == REBUILD_PARAMETER and len(arguments) == 3 and isinstance(arguments[0], StoredTensor):
            self.push(arguments[0])
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
            case ("storage", Global(name=name), str(key), str(), int(numel)) if name in STORAGE_TYPES:
                pass
            case ("storage", Global(name=name), str(key), str(), int(numel), None) if name in STORAGE_TYPES:
                pass
            case _:
                raise self.error("a persistent id that is not a whole storage")
        if not 0 <= numel < 1 << 60:
            raise self.error(f"storage {key!r} has {numel} elements")
        known = self.storages.setdefault(key, Storage(key, STORAGE_TYPES[name], numel))
        if (known.dtype, known.numel) != (STORAGE_TYPES[name], numel):
            raise self.error(f"storage {key!r} has two types or sizes")
        self.push(known)

    def tensor(
        self, storage: object, offset: object, shape: object, strides: object, _grad: object, hooks: object
    ) -> StoredTensor:
        if not isinstance(storage, Storage) or hooks not in ({}, None):
            raise self.error("a tensor without a storage, or with hooks")
        if not (is_size(offset) and are_sizes(shape) and are_sizes(strides) and len(shape) == len(strides)):
            raise self.error("a tensor whose offset, shape or strides are no sizes")
        if any(size > MAX_DIMENSION for size in shape):
            raise self.error(f"a tensor of shape {shape}")
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


def is_size(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def are_sizes(value: object) -> TypeGuard[tuple[int, ...]]:
    return type(value) is tuple and len(value) <= MAX_DIMENSIONS and all(is_size(item) for item in value)


# Protocol 2, less all that builds other objects (INST, OBJ, NEWOBJ, EXT*), and what torch.save has no use for.
OPCODES: Mapping[bytes, Callable[[Machine], None]] = {
    b"\x80": Machine.protocol,
    b"(": Machine.mark,
    b"N": lambda machine: machine.push(None),
    b"\x88": lambda machine: machine.push(True),
    b"\x89": lambda machine: machine.push(False),
    b"K": lambda machine: machine.push(machine.unsigned(1)),
    b"M": lambda machine: machine.push(machine.unsigned(2)),
    b"J": lambda machine: machine.push(machine.signed(4)),
    b"\x8a": lambda machine: machine.push(machine.signed(machine.unsigned(1))),
    b"G": lambda machine: machine.push(struct.unpack(">d", machine.take(8))[0]),
    b"X": Machine.string,
    b")": lambda machine: machine.push(()),
    b"\x85": lambda machine: machine.pop_tuple(1),
    b"\x86": lambda machine: machine.pop_tuple(2),
    b"\x87": lambda machine: machine.pop_tuple(3),
    b"t": lambda machine: machine.push(tuple(machine.pop_to_mark())),
    b"]": lambda machine: machine.push([]),
    b"a": lambda machine: machine.append([machine.pop()]),
    b"e": lambda machine: machine.append(machine.pop_to_mark()),
    b"}": lambda machine: machine.push({}),
    b"s": lambda machine: machine.set_items([machine.pop(), machine.pop()][::-1]),
    b"u": lambda machine: machine.set_items(machine.pop_to_mark()),
    b"q": lambda machine: machine.remember(machine.unsigned(1)),
    b"r": lambda machine: machine.remember(machine.unsigned(4)),
    b"h": lambda machine: machine.recall(machine.unsigned(1)),
    b"j": lambda machine: machine.recall(machine.unsigned(4)),
    b"c": Machine.name_global,
    b"R": Machine.reduce,
    b"b": Machine.build,
    b"Q": Machine.persistent,
}


def read_pickle(path: Path, data: mmap.mmap | bytes, start: int, stop: int) -> Pickle:
    """Interpret the pickle that begins at `start`; `stop` is where the data ends. Raises `CheckpointError`."""
    return Machine(path, data, start, min(stop, start + MAX_BYTES)).run()
