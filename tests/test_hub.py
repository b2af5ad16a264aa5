"""Names on the Hub, with the client's network replaced."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from speculative_decoding import InputError, hub


def unreachable(*_: object, **__: object) -> None:
    raise ConnectionError("no network")


def test_only_needed_files_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, object] = {}

    def download(name: str, **options: object) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(
        huggingface_hub.HfApi, "list_repo_files", lambda *_, **__: ["config.json", "model.safetensors", "tf_model.h5"]
    )
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert hub.fetch("google-t5/t5-small", "v1") == tmp_path
    assert asked == {
        "name": "google-t5/t5-small",
        "revision": "v1",
        "allow_patterns": ["config.json", "model.safetensors"],
    }


def test_without_a_network_the_cache_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", unreachable)

    def cached(name: str, *, revision: str | None, local_files_only: bool) -> str:
        assert local_files_only
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    assert hub.fetch("google-t5/t5-small") == tmp_path


def test_without_network_and_cache_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", unreachable)

    def nothing(*_: object, **__: object) -> None:
        raise LocalEntryNotFoundError("nothing cached")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", nothing)
    with pytest.raises(InputError, match="the Hub cannot be reached"):
        hub.fetch("google-t5/t5-small")


def test_an_impossible_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="'a/b/c'"):
        hub.fetch("a/b/c")
