"""Models on the Hub, with a fake network."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from speculative_decoding import GenerationOptions, InputError, load
from speculative_decoding.cli.main import main
from speculative_decoding.cli.run_config import DraftFlags, ModelPaths, RunConfig
from speculative_decoding.loading import hub
from speculative_decoding.loading.load import BUNDLED

NEEDED = ["config.json", "source.spm", "target.spm", "sentencepiece.bpe.model", "model.safetensors"]


class NetworkError(Exception):
    """An error of the client's HTTP library, which differs between versions of the client."""


def unreachable(*_: object, **__: object) -> None:
    raise NetworkError("no network")


def test_only_needed_files_are_requested(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, object] = {}

    def download(name: str, **options: object) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    siblings = [SimpleNamespace(rfilename=name) for name in (*NEEDED, "tf_model.h5")]
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: SimpleNamespace(siblings=siblings))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert hub.fetch("google-t5/t5-small", "v1") == tmp_path
    assert asked == {
        "name": "google-t5/t5-small",
        "revision": "v1",
        "allow_patterns": NEEDED,
    }


def test_without_a_network_the_cache_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)

    def cached(name: str, *, revision: str | None, local_files_only: bool) -> str:
        assert local_files_only
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    assert hub.fetch("google-t5/t5-small") == tmp_path


def test_an_error_reports_a_missing_network_and_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)

    def nothing(*_: object, **__: object) -> None:
        raise LocalEntryNotFoundError("nothing cached")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", nothing)
    with pytest.raises(InputError, match="the Hub cannot be reached"):
        hub.fetch("google-t5/t5-small")


def test_an_invalid_name_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="'a/b/c'"):
        hub.fetch("a/b/c")


def test_load_accepts_a_name_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "fetch", lambda name, **_: BUNDLED / {"google-t5/t5-small": "t5-web-docs-draft"}[name])
    model, _ = load("google-t5/t5-small")
    assert model.config.vocab_size == 8192
    for local in ("./no/such", "../x/y", "no-such-model", "a/b/c"):  # paths and bare names do not use the network
        with pytest.raises(InputError, match="neither a folder"):
            load(local)


def test_the_command_line_accepts_a_name_on_the_hub(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hub, "fetch", lambda name, **_: BUNDLED / {"google/flan-t5-base": "t5-web-docs-draft"}[name])
    command = ["--model", "google/flan-t5-base", "--prompt", "a word", "--max-tokens", "2"]
    assert main(command) == 0 and "t5-web-docs-draft" in capsys.readouterr().err


def test_without_a_network_the_command_line_explains_conversion(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", "/nowhere")
    assert main(["--model", "google/no-such-model", "--prompt", "a"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "`python convert.py --model google/no-such-model`" in line and "models/no-such-model" in line


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ("google/flan-t5-xl", "google/flan-t5-small"),
        ("models/t5-11b", "google-t5/t5-small"),
        (Path("/home/me/T5-Base"), "google-t5/t5-small"),
        ("~/.cache/hub/models--google--madlad400-10b-mt/snapshots/0123abcd", "google/madlad400-3b-mt"),
        ("Salesforce/codet5-large", "Salesforce/codet5-small"),
        ("facebook/bart-large-cnn", "sshleifer/distilbart-cnn-12-6"),
        ("facebook/nllb-200-3.3B", "facebook/nllb-200-distilled-600M"),
        ("google/t5gemma-9b-9b-ul2-it", "google/t5gemma-2b-2b-ul2-it"),
        ("models/t5gemma-9b-2b-prefixlm", "google/t5gemma-2b-2b-prefixlm"),
        ("google/t5gemma-2-4b-4b", "google/t5gemma-2-270m-270m"),
        ("facebook/nllb-200-distilled-600M", None),
        ("Helsinki-NLP/opus-mt-en-de", None),
        ("google/flan-t5-small", None),
        ("me/my-t5-base-finetuned", None),
        ("t5-web-docs", None),
    ],
)
def test_a_well_known_target_has_a_suggested_draft(target: str | Path, draft: str | None) -> None:
    assert hub.suggested_draft(target) == draft


def test_a_draft_is_suggested_if_none_was_given() -> None:
    def said(draft: Path | None, **options: str) -> str:
        return RunConfig(
            ModelPaths(Path("models/flan-t5-xl"), draft), GenerationOptions(**options), DraftFlags()
        ).describe()

    assert said(None).endswith("; to use a draft model, add --draft-model google/flan-t5-small")
    assert "flan-t5-small" not in said(Path("other")) + said(None, drafter="none")
