"""The names that the server accepts for its model."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculative_decoding.server.command import served_names

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("folder", "given", "names"),
    [
        (f"models--org--tiny/snapshots/{COMMIT}", "org/tiny", ["org/tiny", "tiny"]),
        (f"models--google-t5--t5-small/snapshots/{COMMIT}", "t5-small", ["t5-small", "google-t5/t5-small"]),
        (f"models--t5-small/snapshots/{COMMIT}", "google-t5/t5-small", ["google-t5/t5-small", "t5-small"]),
        (f"models--org--tiny/snapshots/{COMMIT}", None, ["org/tiny", "tiny"]),
        ("models/tiny", "tiny", ["tiny"]),
        ("models/tiny", "models/tiny", ["tiny", "models/tiny"]),
        ("models/snapshots/tiny", "./models/snapshots/tiny/", ["tiny", "./models/snapshots/tiny/"]),
    ],
)
def test_the_users_name_comes_first_unless_it_is_a_path(
    folder: str, given: str | None, names: list[str], tmp_path: Path
) -> None:
    assert served_names(tmp_path / folder, given) == names


def test_a_snapshot_given_as_a_path_has_the_models_name(tmp_path: Path) -> None:
    path = f"{tmp_path}/models--org--tiny/snapshots/{COMMIT}"
    assert served_names(Path(path), path) == ["org/tiny", "tiny", path]
