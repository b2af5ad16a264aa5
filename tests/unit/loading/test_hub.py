"""Models on the Hub: the real huggingface_hub asks a Hub on loopback."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from speculative_decoding import InputError, load
from speculative_decoding.checkpoints.files import read_json_object
from speculative_decoding.loading import hub
from speculative_decoding.loading.load import locate, open_model
from speculative_decoding.loading.reference_tokenizer import read_with_transformers
from tests.support.ctranslate2_cases import write
from tests.support.hub import GATED, SINGLE, SMALL, WAYS, FakeHub, environment, offline
from tests.support.paths import GOLDENS
from tests.support.tiny import whisper_tokenizer

SHARDED = SMALL | {
    name: name.encode()
    for name in (
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    )
}


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("how", ["401", "404", "503", "no connection", "no answer"])
def test_a_downloaded_model_is_found_if_the_hub_refuses_or_is_silent(how: str, web: FakeHub) -> None:
    web.add("org/tiny", SINGLE | {"pytorch_model.bin": b"again"})
    folder = hub.fetch("org/tiny")
    with offline(web, how):
        assert hub.fetch("org/tiny") == folder


@pytest.mark.parametrize(
    ("files", "options"),
    [
        (SINGLE | {"pytorch_model.bin": b"again"}, {}),
        (SHARDED, {}),
        (SMALL | {"weights.npz": b"weights", "manifest.json": b"{}"}, {}),
        (SINGLE, {"only_tokenizer": True}),
        (SMALL | {"sub/model.gguf": b"weights", "other.gguf": b"others"}, {"gguf_file": "sub/model.gguf"}),
        (SMALL | {"model.gguf": b"weights"}, {}),
        ({"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}, {}),
        (SINGLE, {"revision": "v1"}),
        (SINGLE, {"revision": "feature/x"}),
        (SINGLE, {"revision": "a" * 40}),
    ],
    ids=["one file", "shards", "converted", "tokenizer", "gguf", "only gguf", "adapter", "tag", "branch", "commit"],
)
def test_a_downloaded_model_is_found_without_the_hub(
    files: dict[str, bytes], options: dict[str, Any], web: FakeHub
) -> None:
    web.add("org/tiny", files).branches = ("main", "v1", "feature/x", "feature%2Fx")
    folder = hub.fetch("org/tiny", **options)
    with offline(web):
        assert hub.fetch("org/tiny", **options) == folder


def test_the_cache_can_be_moved(web: FakeHub, tmp_path: Path) -> None:
    web.add("org/tiny", SINGLE)
    expected = names_in(hub.fetch("org/tiny"))
    shutil.move(tmp_path / "cache", tmp_path / "moved")
    with offline(web):
        with pytest.raises(InputError, match=f"not in the Hub's cache {tmp_path / 'cache'}, and HF_HUB_OFFLINE is set"):
            hub.fetch("org/tiny")
        with environment(HF_HUB_CACHE=str(tmp_path / "moved")):
            assert names_in(hub.fetch("org/tiny")) == expected


@pytest.mark.parametrize(
    ("weights", "chosen"),
    [
        (["model.safetensors", "pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "rust_model.ot"], 1),
        (["pytorch_model.bin", "tf_model.h5", "model.gguf", "training_args.bin"], 1),
        (["model.safetensors", "model.fp32-00001-of-00002.safetensors", "model.safetensors.index.fp32.json"], 1),
        ([*sorted(SHARDED.keys() - SMALL.keys(), reverse=True), "pytorch_model.bin", "model-fp16.safetensors"], 3),
        (["weights.npz", "manifest.json", "model.safetensors"], 2),
        (["weights.safetensors", "manifest.json"], 1),
        (["model.bin", "vocabulary.txt", "vocabulary.json", "shared_vocabulary.json", "source_vocabulary.json"], 5),
        (["model.safetensors", "vocabulary.txt"], 1),
    ],
    ids=str,
)
def test_one_set_of_weights_and_all_tokenizer_files_are_downloaded(
    weights: list[str], chosen: int, web: FakeHub
) -> None:
    web.add("org/tiny", SMALL | {name: name.encode() for name in weights})
    folder = hub.fetch("org/tiny")
    assert names_in(folder) == {*SMALL, *weights[:chosen]}
    assert sorted(web.downloaded) == sorted(names_in(folder))
    web.requests.clear()
    assert hub.fetch("org/tiny") == folder and web.requests == ["/api/models/org/tiny"]  # all files are there


@pytest.mark.parametrize(
    ("files", "lost", "named"),
    [
        (SINGLE, "model.safetensors", "lacks model.safetensors,"),
        (SHARDED, "model-00002-of-00002.safetensors", "lacks model-00002-of-00002.safetensors,"),
        (SHARDED, "model.safetensors.index.json", "lacks model.safetensors.index.json,"),
        (SINGLE, "config.json", "lacks config.json,"),
        (SINGLE, "spiece.model", "lacks spiece.model,"),
    ],
)
@pytest.mark.parametrize("has_list", [True, False])
def test_a_part_of_a_model_is_refused_by_name(
    files: dict[str, bytes], lost: str, named: str, has_list: bool, web: FakeHub, tmp_path: Path
) -> None:
    """Only newer versions of huggingface_hub keep the list of a model's files. The others cannot tell what is lost."""
    has_list = has_list and "get_cached_repo_tree" in dir(huggingface_hub)
    web.add("org/tiny", files)
    cached = hub.fetch("org/tiny").relative_to(tmp_path / "cache")
    ignore = None if has_list else shutil.ignore_patterns("trees")
    folder = shutil.copytree(tmp_path / "cache", tmp_path / "copy", symlinks=True, ignore=ignore) / cached
    os.remove((folder / lost).resolve())  # the link to it remains
    with environment(HF_HUB_CACHE=str(tmp_path / "copy")):
        with offline(web):
            if not has_list and lost == "spiece.model":
                assert hub.fetch("org/tiny") == folder
                return
            if not has_list and lost != "config.json":
                named = "lacks its weights,"
            with pytest.raises(InputError, match=rf"the Hub's cache .*{named}.*; load it once with network access$"):
                open_model("org/tiny")
        assert hub.fetch("org/tiny") == folder and (folder / lost).read_bytes() == files[lost]


def test_an_interrupted_update_leaves_the_copy_from_before(web: FakeHub) -> None:
    web.add("org/tiny", SINGLE)
    before = hub.fetch("org/tiny")
    newer = web.add("org/tiny", SHARDED)
    newer.commit = "b" * 40
    newer.failures["model-00002-of-00002.safetensors"] = 403, {}
    assert hub.fetch("org/tiny") == before
    with offline(web):
        assert hub.fetch("org/tiny") == before
    newer.failures.clear()
    after = hub.fetch("org/tiny")
    assert after.name == newer.commit and names_in(after) == set(SHARDED)


@pytest.mark.parametrize(("way", "status"), [*((way, 403) for way in WAYS), ("model", 401)])
def test_a_gated_model_names_its_licence_and_the_login(way: str, status: int, web: FakeHub) -> None:
    web.add("org/tiny", SINGLE).failures["*"] = status, GATED
    with pytest.raises(InputError) as error:
        WAYS[way]("org/tiny")
    message = str(error.value)
    assert f"accept the licence at {constants.ENDPOINT}/org/tiny, then log in with `hf auth login`" in message
    assert "check the name" not in message and "\n" not in message


@pytest.mark.parametrize(("way", "status"), [*((way, 404) for way in WAYS), ("model", 401)])
def test_an_unknown_model_may_be_private_or_mistyped(way: str, status: int, web: FakeHub) -> None:
    web.unknown = status
    with pytest.raises(InputError, match="not a public model on the Hub; check the name.* for a private model log in"):
        WAYS[way]("org/tiny")


@pytest.mark.parametrize(
    ("status", "headers", "named"),
    [
        (401, {"X-Error-Message": "Invalid credentials in header"}, "refuses access (Invalid credentials"),
        (403, {"X-Error-Message": "The token lacks a permission"}, "refuses access (The token lacks a permission"),
        (429, {}, "the Hub answers with status 429"),
    ],
)
def test_refusals_are_told_apart(status: int, headers: dict[str, str], named: str, web: FakeHub) -> None:
    web.refusal = status, headers
    with pytest.raises(InputError) as error:
        hub.fetch("org/tiny")
    assert named in str(error.value)


@pytest.mark.parametrize("body", [b"<html>", b'{"error": "no"}', b"\xff"])
def test_an_answer_of_another_program_is_one_line(body: bytes, web: FakeHub) -> None:
    web.refusal, web.refusal_body = (200, {}), body
    with pytest.raises(InputError, match=r"and huggingface_hub fails \((JSONDecodeError|UnicodeDecodeError|KeyError)"):
        hub.fetch("org/tiny")


@pytest.mark.parametrize("endpoint", ["nonsense", "foo://hub", "http://127.0.0.1:99999"])
def test_a_wrong_endpoint_is_one_line(endpoint: str, web: FakeHub) -> None:
    failed = pytest.raises(InputError, match=r"the Hub cannot be reached \(|huggingface_hub fails \(")
    with environment(HF_ENDPOINT=endpoint), failed:
        hub.fetch("org/tiny")


def test_an_endpoint_that_is_no_address_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With such an endpoint, huggingface_hub and transformers cannot even be imported."""
    monkeypatch.setenv("HF_ENDPOINT", "http://[bad")
    for read in (lambda: hub.fetch("org/tiny"), hub.cached_names, lambda: read_with_transformers(tmp_path)):
        with pytest.raises(InputError, match=r"^HF_ENDPOINT: 'http://\[bad' is not an address \(.*; unset it, or set"):
            read()


def test_a_missing_revision_is_named(web: FakeHub) -> None:
    web.add("org/tiny", SINGLE)
    with pytest.raises(InputError, match="revision: model 'org/tiny' has no revision 'v9' on the Hub; name a branch"):
        hub.fetch("org/tiny", "v9")


@pytest.mark.parametrize(
    ("files", "options", "named"),
    [
        (SMALL | {"tf_model.h5": b""}, {}, "has no weights that can be read (expected one of weights.npz, "),
        (SMALL | {"a.gguf": b"", "b.gguf": b""}, {}, "name another model, or one of its GGUF files (a.gguf, b.gguf)"),
        (
            SMALL | {"a.gguf": b""},
            {"gguf_file": "b.gguf"},
            "gguf_file: model 'org/tiny' on the Hub has no file 'b.gguf'",
        ),
        ({"model.safetensors": b""}, {"only_tokenizer": True}, "model 'org/tiny' on the Hub has no tokenizer"),
    ],
)
def test_a_model_without_usable_files_downloads_nothing(
    files: dict[str, bytes], options: dict[str, Any], named: str, web: FakeHub
) -> None:
    web.add("org/tiny", files)
    with pytest.raises(InputError) as error:
        hub.fetch("org/tiny", **options)
    assert named in str(error.value) and web.downloaded == []


def test_a_local_gguf_file_replaces_the_weights_of_a_model_on_the_hub(web: FakeHub, tmp_path: Path) -> None:
    web.add("org/tiny", SINGLE)
    (tmp_path / "mine.gguf").write_bytes(b"weights")
    assert names_in(locate("org/tiny", tmp_path / "mine.gguf")) == set(SMALL)


def test_a_cache_that_cannot_be_written_is_named(web: FakeHub, tmp_path: Path) -> None:
    web.add("org/tiny", SINGLE)
    (tmp_path / "file").touch()
    cache = str(tmp_path / "file" / "cache")
    with (
        environment(HF_HUB_CACHE=cache),
        pytest.raises(InputError, match=rf"cannot be stored in the Hub's cache {cache} \(.*; free space there, or"),
    ):
        hub.fetch("org/tiny")


def test_an_error_of_this_program_is_not_reported_as_the_networks(web: FakeHub) -> None:
    web.add("org/tiny", SINGLE)

    class Broken(hub.Wanted):
        def require_some(self, name: str, files: object) -> None:
            raise OSError("planted")

    with pytest.raises(OSError, match="planted"):
        hub.download("org/tiny", None, Broken())


@pytest.mark.parametrize("proxy", ["nonsense", "http://127.0.0.1:9"])
def test_a_wrong_proxy_is_one_line(proxy: str, web: FakeHub) -> None:
    from huggingface_hub.utils import close_session

    close_session()  # the client that other tests made knows no proxy
    failed = pytest.raises(InputError, match=r"huggingface_hub fails \(|the Hub cannot be reached \(")
    with environment(NO_PROXY="", HTTP_PROXY=proxy, http_proxy=proxy), failed:
        hub.fetch("org/tiny")
    close_session()


def test_a_token_that_cannot_be_sent_is_one_line(web: FakeHub) -> None:
    with environment(HF_TOKEN="hf_secret\u2019"), pytest.raises(InputError) as error:
        hub.fetch("org/tiny")
    assert "hf_secret" not in str(error.value)


def test_an_endpoint_may_have_a_path(web: FakeHub) -> None:
    web.add("org/tiny", SINGLE)
    with environment(HF_ENDPOINT=constants.ENDPOINT + "/mirror"):
        assert names_in(hub.fetch("org/tiny")) == set(SINGLE)


def test_a_folder_of_faster_whisper_is_downloaded_and_opened(web: FakeHub, tmp_path: Path) -> None:
    """Its config.json is CTranslate2's, so the sizes and the special tokens come from other files."""
    config = read_json_object(GOLDENS / "whisper/config.json")
    tokenizer = whisper_tokenizer(config)
    pieces = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    pieces |= {token: piece for piece, token in tokenizer["model"]["vocab"].items()}
    folder = write("whisper", tmp_path / "whisper")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "vocabulary.json").write_text(json.dumps([pieces.get(i, f"unused {i}") for i in range(max(pieces) + 1)]))
    web.add("Systran/faster-whisper-tiny", folder)
    audio, expected = (load(name, dtype="float32").model.audio for name in ("Systran/faster-whisper-tiny", folder))
    assert audio == expected and audio is not None
    assert audio.start == config["decoder_start_token_id"] and audio.num_mel_bins == config["num_mel_bins"]
    assert sorted(web.downloaded) == ["config.json", "model.bin", "tokenizer.json", "vocabulary.json"]
