"""The interpreter of pickles gives the values that Python's does, and refuses everything else by name."""

from __future__ import annotations

import pickle
import pickletools
import random
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding.checkpoints.mapped import MappedFile
from speculative_decoding.checkpoints.pickles import NAMES, PickleInterpreter, read_pickle
from speculative_decoding.errors import CheckpointError

PREFIX = b"before"


def interpreted(folder: Path, content: bytes, start: int = len(PREFIX)) -> PickleInterpreter:
    """Read a pickle that follows other bytes in a file."""
    (folder / "file").write_bytes(PREFIX + content)
    return read_pickle(MappedFile(folder / "file", "torch"), start)


def value(rng: random.Random, depth: int = 3) -> Any:
    """Return a value that a training checkpoint may hold beside its state dict."""
    numbers = (0, 255, 256, 65_535, 65_536, -1, 1 << 31, -(1 << 31), 1 << 40, -(1 << 200), 0.1, -1e300)
    plain = (*numbers, None, True, False, "", "a", "é" * 300, (), (1, "b"), (1, 2, 3, 4), ((1, 2), (3.0,)))
    kind = rng.randrange(4) if depth else 3
    if kind == 0:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 1:
        return {rng.choice(("a", "b", 0, 7, 1000)): value(rng, depth - 1) for _ in range(rng.randrange(4))}
    if kind == 2:
        shared = value(rng, depth - 1)
        return [shared, shared]
    return rng.choice(plain)


@pytest.mark.parametrize("seed", range(12))
def test_plain_values_are_those_of_python(seed: int, tmp_path: Path) -> None:
    expected = value(random.Random(seed))
    content = pickle.dumps(expected, 2)
    found = interpreted(tmp_path, content + content)
    assert found.value == expected and found.position == len(PREFIX) + len(content)
    assert interpreted(tmp_path, content + content, found.position).value == expected


def test_shared_values_stay_shared_and_ordered_dicts_become_dicts(tmp_path: Path) -> None:
    shared = [1]
    found = interpreted(tmp_path, pickle.dumps([shared, OrderedDict(b=shared, a=2)], 2)).value
    assert found == [[1], {"b": [1], "a": 2}] and found[0] is found[1]["b"] and [*found[1]] == ["b", "a"]


def test_only_the_opcodes_of_state_dicts_are_allowed(tmp_path: Path) -> None:
    allowed = set()
    for code in map(chr, range(256)):
        with pytest.raises(CheckpointError) as error:
            interpreted(tmp_path, b"NN" + code.encode("latin-1") + b"0")
        if f"is not allowed (at byte {len(PREFIX) + 2})" not in str(error.value):
            allowed.add(code)
    assert allowed == {each.code for each in pickletools.opcodes if each.name in NAMES}


STORAGE = b"(X\x07\0\0\0storagectorch\n%sStorage\nX\1\0\0\0kX\3\0\0\0cpuK%ctQ"
LONG = b"X" + struct.pack("<I", 4090) + b"a" * 4090


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it has no end"),
        (b"N", "it has no end"),
        (b"\xff", "opcode b'.xff' is not allowed"),
        (b".", "it ends before its value is complete"),
        (b"NN.", "it ends before its value is complete"),
        (b"(N.", "it ends before its value is complete"),
        (b"X\3\0\0\0ab", "the argument of BINUNICODE is damaged, cut off or too long"),
        (LONG.replace(b"\xfa", b"\xfd", 1) + b"aaa.", "the argument of BINUNICODE is damaged, cut off or too long"),
        (b"X\1\0\0\0\xff.", "the argument of BINUNICODE is damaged"),
        (b"cos\nsystem\n.", "global 'os system' is not allowed"),
        (b"ctorch._utils\n_rebuild_tensor_v2.__globals__\n.", "__globals__' is not allowed"),
        (b"ctorch._utils\n_rebuild_tensor\n.", "_rebuild_tensor' is not allowed"),
        (b"\x80\4N.", "protocol 4 is not supported"),
        (b"hA", "memo entry 65 does not exist"),
        (b"0", "opcode POP is not allowed"),
        (b"q\0", "the stack is empty"),
        (b"\x85", "the stack is empty"),
        (b"t", "no open mark"),
        (b"(" * 33, "more than 32 open marks"),
        (b")\x85\x85\x85", "tuples of more than two levels"),
        (b")Na", "append to a value that is not a list"),
        (b")NNs", "set items of a value that is not a dict"),
        (b"}(Nu", "a key without a value"),
        (b"})Ns", "dict keys of type tuple are not allowed"),
        (b"}\x88Ns", "dict keys of type bool are not allowed"),
        (b"}J\xff\xff\xff\xffNs", "dict keys of type int are not allowed"),
        (b"N)R", "REDUCE without a function"),
        (b"ccollections\nOrderedDict\nNR", "REDUCE without a function and a tuple"),
        (b"ccollections\nOrderedDict\nN\x85R", "'collections OrderedDict' is called with unsupported arguments"),
        (b"ctorch._utils\n_rebuild_parameter\nNNN\x87R", "is called with unsupported arguments"),
        (b"}}b", "BUILD is allowed only for a state dict's _metadata"),
        (b")Q", "a persistent id that is not a complete storage"),
        (STORAGE % (b"Float", 3) + STORAGE % (b"Float", 4), "storage 'k' appears with two dtypes or sizes"),
        (STORAGE % (b"Float", 3) + STORAGE % (b"Half", 3), "storage 'k' appears with two dtypes or sizes"),
    ],
)
def test_damaged_pickles_are_refused_with_the_problem(content: bytes, problem: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"file: pickle refused: .*{problem}"):
        interpreted(tmp_path, content)


def test_the_longest_text_is_read(tmp_path: Path) -> None:
    assert interpreted(tmp_path, LONG + b".").value == "a" * 4090
