"""The manifest of a converted folder detects damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding.checkpoints import CheckpointError
from speculative_decoding.loading import manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    manifest.write(tmp_path, source="x")
    return tmp_path


def test_a_manifest_lists_every_file_and_the_facts(folder: Path) -> None:
    content = manifest.read(folder)
    assert content["source"] == "x" and [*content["files"]] == ["a", "b"]
    assert manifest.verify(folder) == 2 and manifest.check_sizes(folder) == content


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"format_version": 2}, "unsupported format_version .got 2, expected 1.; convert the model again"),
        ({"files": []}, "not a readable manifest"),
        ({"files": {"a": 3}}, "not a readable manifest"),
        ({"files": {"a": {"bytes": "1", "sha256": ""}}}, "not a readable manifest .files."),
        ({"files": {"a": {"bytes": 1}}}, "not a readable manifest .'sha256'."),
    ],
    ids=str,
)
def test_a_damaged_manifest_is_refused(changes: dict[str, Any], problem: str, folder: Path) -> None:
    path = folder / manifest.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CheckpointError, match=rf"manifest\.json: {problem}"):
        manifest.read(folder)


@pytest.mark.parametrize(
    ("text", "problem"),
    [(None, "file is missing"), ("", "wrong size .got 0 bytes, expected 1"), ("x", "checksum mism")],
)
def test_a_damaged_file_is_named(text: str | None, problem: str, folder: Path) -> None:
    (folder / "b").unlink() if text is None else (folder / "b").write_text(text)
    with pytest.raises(CheckpointError, match=f"b: {problem}.*; copy or convert the model again"):
        manifest.verify(folder)


def test_only_converted_folders_can_be_verified(tmp_path: Path) -> None:
    assert manifest.read(tmp_path) == {"files": {}}
    with pytest.raises(CheckpointError, match=r"no manifest\.json; only folders written by convert\.py"):
        manifest.verify(tmp_path)
