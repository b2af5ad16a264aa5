"""Names on the Hub, with the client's network replaced."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from speculative_decoding import InputError, load
from speculative_decoding.loading import hub
from speculative_decoding.loading.load import BUNDLED


class NetworkError(Exception):
    """The client raises those of its HTTP library, which is another one in each of its generations."""


def unreachable(*_: object, **__: object) -> None:
    raise NetworkError("no network")


def test_only_needed_files_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, object] = {}

    def download(name: str, **options: object) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    siblings = [SimpleNamespace(rfilename=name) for name in ("config.json", "model.safetensors", "tf_model.h5")]
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: SimpleNamespace(siblings=siblings))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert hub.fetch("google-t5/t5-small", "v1") == tmp_path
    assert asked == {
        "name": "google-t5/t5-small",
        "revision": "v1",
        "allow_patterns": ["config.json", "model.safetensors"],
    }


def test_without_a_network_the_cache_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)

    def cached(name: str, *, revision: str | None, local_files_only: bool) -> str:
        assert local_files_only
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    assert hub.fetch("google-t5/t5-small") == tmp_path


def test_without_network_and_cache_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)

    def nothing(*_: object, **__: object) -> None:
        raise LocalEntryNotFoundError("nothing cached")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", nothing)
    with pytest.raises(InputError, match="the Hub cannot be reached"):
        hub.fetch("google-t5/t5-small")


def test_an_impossible_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="'a/b/c'"):
        hub.fetch("a/b/c")


def test_load_takes_a_name_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "fetch", lambda name, **_: BUNDLED / {"google-t5/t5-small": "t5-web-docs-draft"}[name])
    model, _ = load("google-t5/t5-small")
    assert model.config.vocab_size == 8192
    for local in ("./no/such", "../x/y", "no-such-model", "a/b/c"):  # paths and bare names stay off the network
        with pytest.raises(InputError, match="neither a folder"):
            load(local)
