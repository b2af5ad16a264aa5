"""The best setting is found again under its key, and under no other."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import InputError
from speculative_decoding.cli import tuned as module
from speculative_decoding.cli.tuned import FILE, Tuned, key, read_tuned, require_writable, write_tuned

KEYS = [
    key(draft, dtype, bits=bits, options=options)
    for draft, dtype, bits, options in product(
        (None, Path("a"), Path("b")), (None, "bfloat16"), (None, 8), ({}, {"max_ngram_size": 4})
    )
]


def test_every_key_finds_what_was_kept_under_it_and_nothing_else(tmp_path: Path) -> None:
    assert all(read_tuned(tmp_path, each) is None for each in KEYS)
    for number, each in enumerate(KEYS):
        write_tuned(tmp_path, each, Tuned("model", number), {"speed_up": 1.5})
        for other, one in enumerate(KEYS):
            assert read_tuned(tmp_path, one) == (Tuned("model", other) if other <= number else None)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_newer_setting_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    for each in KEYS[:3]:
        write_tuned(tmp_path, each, Tuned("ngram", 3), {})
    path = write_tuned(tmp_path, KEYS[1], Tuned("auto", "auto"), {"speed_up": 2.0})
    assert [read_tuned(tmp_path, each) for each in KEYS[:3]] == [
        Tuned("ngram", 3),
        Tuned("auto", "auto"),
        Tuned("ngram", 3),
    ]
    entries = json.loads(path.read_text())
    assert len(entries) == 3 and entries[-1]["speed_up"] == 2.0


def test_another_device_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    here = key(None, None)
    monkeypatch.setattr(mx, "device_info", lambda *_: {"device_name": "another"})
    assert key(None, None) != here


def test_a_draft_is_known_by_its_folders_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert key(tmp_path / "real", None) == key(tmp_path / "link", None) != key(tmp_path, None)


DAMAGE: dict[str, Any] = {
    "cut short": lambda text: text[:20],
    "empty": lambda text: "",
    "not a list": lambda text: "7",
    "other entries": lambda text: "[1, 2]",
    "no key": lambda text: text.replace('"key"', '"lock"'),
    "no drafter": lambda text: text.replace('"drafter"', '"draughter"'),
    "unknown drafter": lambda text: text.replace('"ngram"', '"oracle"'),
    "unknown schedule": lambda text: text.replace('"num_draft": 3', '"num_draft": "many"'),
    "negative": lambda text: text.replace('"num_draft": 3', '"num_draft": -3'),
    "half": lambda text: text.replace('"num_draft": 3', '"num_draft": 2.5'),
    "list": lambda text: text.replace('"num_draft": 3', '"num_draft": [3]'),
    "true": lambda text: text.replace('"num_draft": 3', '"num_draft": true'),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_one_line_and_is_not_written_over(damage: Any, tmp_path: Path) -> None:
    path = write_tuned(tmp_path, KEYS[0], Tuned("ngram", 3), {})
    whole = path.read_text()
    path.write_text(damage(whole))
    assert path.read_text() != whole
    for call in (
        lambda: read_tuned(tmp_path, KEYS[0]),
        lambda: write_tuned(tmp_path, KEYS[0], Tuned("auto", 5), {}),
    ):
        with pytest.raises(InputError, match="not what tune wrote") as error:
            call()
        assert str(path) in str(error.value) and "delete it" in str(error.value) and "\n" not in str(error.value)
    assert path.read_text() == damage(whole)


def test_bytes_that_are_no_text_and_a_folder_of_that_name_are_one_line(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not what tune wrote"):
        read_tuned(tmp_path, KEYS[0])
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    with pytest.raises(InputError, match="not what tune wrote"):
        require_writable(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_writable(tmp_path)
    assert not list(tmp_path.iterdir())  # trying leaves nothing
    with pytest.raises(InputError, match="cannot be written .* --dry-run"):
        require_writable(tmp_path / "nowhere")

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(module, "write_file", full)
    with pytest.raises(InputError, match="tuned.json: cannot be written .No space left"):
        write_tuned(tmp_path, KEYS[0], Tuned("ngram", 3), {})
