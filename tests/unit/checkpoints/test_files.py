"""Files are opened only if they are regular and small, and JSON is read only if it is shallow."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from speculative_decoding.checkpoints.files import MAX_JSON_BYTES, MAX_JSON_DEPTH, open_regular, read_json_object
from speculative_decoding.errors import CheckpointError

SPECIAL: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": os.mkdir,
}


@pytest.mark.parametrize("make", SPECIAL.values(), ids=SPECIAL)
def test_special_files_are_not_opened(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "a.json")
    for read in (open_regular, read_json_object):
        with pytest.raises(CheckpointError, match=r"a\.json: cannot be read \(not a regular file"):
            read(tmp_path / "a.json")


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def test_json_of_the_largest_size_and_depth_is_read(tmp_path: Path) -> None:
    text = nested(MAX_JSON_DEPTH - 1)
    (path := tmp_path / "a.json").write_text(text + " " * (MAX_JSON_BYTES - len(text)))
    assert read_json_object(path) == json.loads(text)
    with path.open("a") as file:
        file.write(" ")
    with pytest.raises(CheckpointError, match=f"larger than {MAX_JSON_BYTES} bytes"):
        read_json_object(path)


@pytest.mark.parametrize("text", [nested(MAX_JSON_DEPTH), "[]", "1", "", '"\xff', "{} {}", '{"a": 1'])
def test_other_json_is_refused(text: str, tmp_path: Path) -> None:
    (path := tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"a\.json: not (a|readable as) JSON"):
        read_json_object(path)
