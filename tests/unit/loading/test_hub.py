"""Models on the Hub: the real huggingface_hub asks a Hub on loopback."""

from __future__ import annotations

import importlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from speculative_decoding import InputError, load
from speculative_decoding.cli.main import main
from speculative_decoding.cli.run_config import DraftFlags, ModelFlags, make_run_config
from speculative_decoding.loading import conversion, hub
from speculative_decoding.loading.load import BUNDLED, locate, open_model, tokenizer_folder
from speculative_decoding.loading.pair import open_pair
from speculative_decoding.loading.suggested_drafts import suggested_draft
from tests.support.hub import GATED, FakeHub, fake_hub, set_endpoint

TINY = BUNDLED / "t5-web-docs-draft"
SMALL = {name: name.encode() for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "spiece.model")}
SINGLE = SMALL | {"model.safetensors": b"weights"}
SHARDED = SMALL | {
    name: name.encode()
    for name in (
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    )
}


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.chdir(tmp_path)
    with fake_hub(tmp_path / "cache") as running:
        yield running


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def go_offline(web: FakeHub, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the Hub unreachable."""
    if how == "HF_HUB_OFFLINE":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    elif how == "no connection":
        set_endpoint(monkeypatch, "http://127.0.0.1:9")  # the discard port, which nobody serves
    elif how == "no answer":
        web.silent = True
        monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.05)
    else:
        web.refusal = int(how), {}


def forget_lists() -> None:
    """Clear the copy that newer versions of huggingface_hub keep in memory."""
    with suppress(ImportError):
        importlib.import_module("huggingface_hub._tree_cache")._IN_MEMORY_TREE_CACHE.clear()


OFFLINE = ["HF_HUB_OFFLINE", "no connection", "401", "403", "404", "429", "503", "no answer"]


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
    files: dict[str, bytes], options: dict[str, object], web: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.add("org/tiny", files).branches = ("main", "v1", "feature/x", "feature%2Fx")
    fetch: Callable[[], Path] = partial(hub.fetch, "org/tiny", **options)  # type: ignore[arg-type]
    folder = fetch()
    for how in OFFLINE:
        with monkeypatch.context() as patch:
            go_offline(web, how, patch)
            assert fetch() == folder, how


@pytest.mark.parametrize("how", ["HF_HUB_OFFLINE", "no connection", "no answer"])
def test_a_downloaded_pair_decodes_without_the_hub(
    how: str, web: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    web.add("org/tiny", TINY)
    command = ["--model", "org/tiny", "--draft-model", "org/tiny", "--max-tokens", "2", "grammar: He go home."]
    assert main(command) == 0
    expected = capsys.readouterr()
    assert "target org/tiny, draft org/tiny" in expected.err
    go_offline(web, how, monkeypatch)
    assert main(command) == 0
    assert capsys.readouterr().out == expected.out


def test_the_cache_can_be_moved(web: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    web.add("org/tiny", SINGLE)
    expected = names_in(hub.fetch("org/tiny"))
    shutil.move(tmp_path / "cache", tmp_path / "moved")
    go_offline(web, "HF_HUB_OFFLINE", monkeypatch)
    with pytest.raises(InputError, match=f"not in the Hub's cache {tmp_path / 'cache'}, and HF_HUB_OFFLINE is set"):
        hub.fetch("org/tiny")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "moved"))
    assert names_in(hub.fetch("org/tiny")) == expected


@pytest.mark.parametrize(
    ("weights", "chosen"),
    [
        (["model.safetensors", "pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "rust_model.ot"], 1),
        (["pytorch_model.bin", "tf_model.h5", "model.gguf", "openvino_model.xml", "training_args.bin"], 1),
        (["model.safetensors", "model.fp32-00001-of-00002.safetensors", "model.safetensors.index.fp32.json"], 1),
        (["model.safetensors", "model.fp32.safetensors", "model-fp16.safetensors", "pytorch_model.fp32-1.bin"], 1),
        ([*sorted(SHARDED.keys() - SMALL.keys(), reverse=True), "pytorch_model.bin", "model-fp16.safetensors"], 3),
        (["weights.npz", "manifest.json", "model.safetensors"], 2),
        (["weights.safetensors", "manifest.json"], 1),
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
        (SINGLE, "tokenizer_config.json", "lacks tokenizer_config.json,"),
        (SINGLE, "spiece.model", "lacks spiece.model,"),
    ],
)
@pytest.mark.parametrize("has_list", [True, False])
def test_a_part_of_a_model_is_refused_by_name(
    files: dict[str, bytes], lost: str, named: str, has_list: bool, web: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only newer versions of huggingface_hub keep the list of a model's files. The others cannot tell what is lost."""
    has_list = has_list and "get_cached_repo_tree" in dir(huggingface_hub)
    web.add("org/tiny", files)
    folder = hub.fetch("org/tiny")
    os.remove((folder / lost).resolve())  # the link to it remains
    if not has_list:
        shutil.rmtree(folder.parents[1] / "trees", ignore_errors=True)
        forget_lists()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    if not has_list and lost in ("tokenizer_config.json", "spiece.model"):
        assert hub.fetch("org/tiny") == folder
        return
    if not has_list and lost != "config.json":
        named = "lacks its weights,"
    with pytest.raises(InputError, match=named) as error:
        open_model("org/tiny")
    assert "the Hub's cache" in str(error.value) and str(error.value).endswith("load it once with network access")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert hub.fetch("org/tiny") == folder and (folder / lost).read_bytes() == files[lost]


def test_an_interrupted_update_leaves_the_copy_from_before(web: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    web.add("org/tiny", SINGLE)
    before = hub.fetch("org/tiny")
    newer = web.add("org/tiny", SHARDED)
    newer.commit = "b" * 40
    newer.failures["model-00002-of-00002.safetensors"] = 403, {}
    assert hub.fetch("org/tiny") == before
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.fetch("org/tiny") == before
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    newer.failures.clear()
    after = hub.fetch("org/tiny")
    assert after.name == newer.commit and names_in(after) == set(SHARDED)


WAYS: dict[str, Callable[[str], object]] = {
    "model": lambda name: load(name),
    "draft model": lambda name: open_pair(TINY, name),
    "tokenizer": lambda name: tokenizer_folder(TINY, {}, name),
    "conversion": lambda name: conversion.convert(name),
    "tokenizer of a conversion": lambda name: conversion.convert(str(TINY), Path("out"), tokenizer=name),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_model_names_its_licence_and_the_login(way: str, status: int, web: FakeHub) -> None:
    web.add("org/tiny", SINGLE).failures["*"] = status, GATED
    with pytest.raises(InputError) as error:
        WAYS[way]("org/tiny")
    message = str(error.value)
    assert f"accept the licence at {constants.ENDPOINT}/org/tiny, then log in with `hf auth login`" in message
    assert "check the name" not in message and "\n" not in message


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("status", [401, 404])
def test_an_unknown_model_may_be_private_or_mistyped(way: str, status: int, web: FakeHub) -> None:
    web.unknown = status
    with pytest.raises(InputError, match="not a public model on the Hub; check the name.* for a private model log in"):
        WAYS[way]("org/tiny")


def test_each_front_end_explains_a_gated_model_in_one_line(web: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    web.add("org/tiny", SINGLE).failures["*"] = 403, GATED
    for command in (["--model", "org/tiny"], ["--model", str(TINY), "--draft-model", "org/tiny"]):
        assert main([*command, "--prompt", "a"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{command[-2]}: model 'org/tiny' is gated" in line and "accept the licence" in line


@pytest.mark.parametrize(
    ("status", "headers", "named"),
    [
        (
            401,
            {"X-Error-Message": "Invalid credentials in Authorization header"},
            "refuses access (Invalid credentials",
        ),
        (403, {"X-Error-Message": "The token lacks a permission"}, "refuses access (The token lacks a permission"),
        (429, {}, "the Hub answers with status 429"),
        (503, {}, "the Hub answers with status 503"),
        (200, {"Content-Type": "text/html"}, "huggingface_hub fails (JSONDecodeError"),  # the page of a hotel
    ],
)
def test_refusals_are_told_apart(status: int, headers: dict[str, str], named: str, web: FakeHub) -> None:
    web.refusal = status, headers
    with pytest.raises(InputError) as error:
        hub.fetch("org/tiny")
    assert named in str(error.value)


@pytest.mark.parametrize("body", [b"<html>", b"", b'{"error": "no"}', b"\xff"])
def test_an_answer_of_another_program_is_one_line(body: bytes, web: FakeHub) -> None:
    web.refusal, web.refusal_body = (200, {}), body
    with pytest.raises(InputError, match=r"and huggingface_hub fails \((JSONDecodeError|UnicodeDecodeError|KeyError)"):
        hub.fetch("org/tiny")


@pytest.mark.parametrize("endpoint", ["nonsense", "foo://hub", "http://[bad", "http://127.0.0.1:99999", "http://"])
def test_a_wrong_endpoint_is_one_line(endpoint: str, web: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    set_endpoint(monkeypatch, endpoint)
    with pytest.raises(InputError, match=r"the Hub cannot be reached \(|huggingface_hub fails \("):
        hub.fetch("org/tiny")


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
    files: dict[str, bytes], options: dict[str, object], named: str, web: FakeHub
) -> None:
    web.add("org/tiny", files)
    with pytest.raises(InputError) as error:
        hub.fetch("org/tiny", **options)  # type: ignore[arg-type]
    assert named in str(error.value) and web.downloaded == []


def test_a_local_gguf_file_replaces_the_weights_of_a_model_on_the_hub(web: FakeHub, tmp_path: Path) -> None:
    web.add("org/tiny", SINGLE)
    (tmp_path / "mine.gguf").write_bytes(b"weights")
    assert names_in(locate("org/tiny", tmp_path / "mine.gguf")) == set(SMALL)


def test_a_cache_that_cannot_be_written_is_named(web: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    web.add("org/tiny", SINGLE)
    (tmp_path / "file").touch()
    for cache in (tmp_path / "file", tmp_path / "file" / "cache"):
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        with pytest.raises(
            InputError, match=rf"cannot be stored in the Hub's cache {cache} \(.*; free space there, or"
        ):
            hub.fetch("org/tiny")


def test_an_error_of_this_program_is_not_reported_as_the_networks(
    web: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.add("org/tiny", SINGLE)
    for error in (TypeError("planted"), OSError("planted"), ValueError("planted")):

        def planted(*_: object, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(hub, "SMALL_FILES", property(planted))
            patch.setattr(hub.Wanted, "weights", planted)
            with pytest.raises(type(error), match="planted"):
                hub.fetch("org/tiny")


@pytest.mark.parametrize("proxy", ["nonsense", "foo://127.0.0.1:9", "http://127.0.0.1:9"])
def test_a_wrong_proxy_is_one_line(proxy: str, web: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.utils import close_session

    close_session()  # the client that other tests made knows no proxy
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("HTTP_PROXY", proxy)
    monkeypatch.setenv("http_proxy", proxy)
    try:
        with pytest.raises(InputError, match=r"huggingface_hub fails \(|the Hub cannot be reached \("):
            hub.fetch("org/tiny")
    finally:
        close_session()


def test_a_token_that_cannot_be_sent_is_one_line(web: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret\u2019")
    with pytest.raises(InputError) as error:
        hub.fetch("org/tiny")
    assert "hf_secret" not in str(error.value)


def test_an_endpoint_may_have_a_path(web: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    web.add("org/tiny", SINGLE)
    set_endpoint(monkeypatch, constants.ENDPOINT + "/mirror")
    assert names_in(hub.fetch("org/tiny")) == set(SINGLE)


# Names


@pytest.mark.parametrize("downloaded_as", ["t5-small", "google-t5/t5-small"])
@pytest.mark.parametrize("name", ["t5-small", "google-t5/t5-small"])
def test_a_name_without_an_organisation_is_the_same_model(
    downloaded_as: str, name: str, web: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.add("google-t5/t5-small", TINY)
    web.moved["t5-small"] = "google-t5/t5-small"
    folder = locate(downloaded_as)
    web.requests.clear()
    assert locate(name) == folder and web.downloaded == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert locate(name) == folder
    assert conversion.convert(name) == Path("models/t5-small")


@pytest.mark.parametrize("name", ["tiny", "org/tiny"])
def test_any_name_on_the_hub_can_be_used_everywhere(name: str, web: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    web.add(name, TINY)
    for offline in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        assert open_model(name).name == name
        pair = open_pair(TINY, name)
        assert pair.draft is not None and pair.folders == {"model": str(TINY), "draft_model": name}
        folder = tokenizer_folder(TINY, {}, name)
        assert conversion.convert(name, force=True) == Path("models/tiny")
        assert json.loads(Path("models/tiny/manifest.json").read_text())["source"] == name
        shutil.rmtree("models")
        assert conversion.convert(str(folder)) == Path("models/tiny")  # not the name of its commit
        shutil.rmtree("models")


def test_a_draft_head_can_be_on_the_hub(web: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    web.add("org/head", BUNDLED / "t5-web-docs-head")
    target = BUNDLED / "t5-web-docs"
    folder = open_pair(target, "org/head").folders["draft_model"]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert folder == "org/head" == open_pair(target, "org/head").folders["draft_model"]


def test_a_local_folder_wins(web: FakeHub, tmp_path: Path) -> None:
    for name in ("t5-small", "google/flan-t5-small", "models/t5-base"):
        web.add(name, SINGLE)
        (tmp_path / name).mkdir(parents=True)
        assert locate(name) == Path(name)
    assert locate("t5-base") == Path("models/t5-base") and web.requests == []


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("t5-web-doc", "t5-web-docs"),
        ("T5-Web-Docs", "t5-web-docs"),
        ("t5webdocs", "t5-web-docs"),
        ("t5-web-docs-draf", "t5-web-docs-draft"),
        ("models/my-finetun", "models/my-finetune"),
        ("./runs/summarizer", "./runs/summariser"),
        ("my-fine-tune", "my-finetune"),
    ],
)
def test_a_typing_error_is_answered_with_the_nearest_local_name(typed: str, meant: str, web: FakeHub) -> None:
    for folder in ("models/my-finetune", "runs/summariser"):
        Path(folder).mkdir(parents=True)
        (Path(folder) / "config.json").touch()
    with pytest.raises(InputError, match=rf"'{typed}' is neither a folder nor .*; did you mean {meant}\?"):
        locate(typed)
    assert web.requests == []


@pytest.mark.parametrize("how", ["404", "no connection"])
def test_a_local_name_with_an_organisation_is_proposed_after_the_hub_was_asked(
    how: str, web: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("runs/summariser").mkdir(parents=True)
    Path("runs/summariser/config.json").touch()
    web.add("runs/summarizers", SINGLE)
    assert locate("runs/summarizers").name == "a" * 40
    go_offline(web, how, monkeypatch)
    with pytest.raises(InputError, match=r"did you mean runs/summariser\?"):
        locate("runs/summarisr")
    with pytest.raises(InputError, match=r"did you mean runs/summarizers\?"):  # in the Hub's cache
        locate("other/summarizerss")


@pytest.mark.parametrize("name", ["t5-small", "whisper-base-v2", "t5-web-docz"])
def test_the_hub_is_asked_for_names_that_it_is_known_to_have(name: str, web: FakeHub) -> None:
    """A well-known name, one with another number, and one that is in its cache."""
    for other in ("models/t5-smalls", "models/whisper-base-v3"):
        Path(other).mkdir(parents=True)
    web.add(name, SINGLE)
    if name == "t5-web-docz":
        hub.fetch(name)
    assert locate(name).name == "a" * 40


def test_conversion_proposes_paths(web: FakeHub) -> None:
    with pytest.raises(InputError, match=rf"did you mean {BUNDLED}/t5-web-docs\?"):
        conversion.convert("t5-web-doc")
    assert web.requests == []


def test_a_conversion_can_be_repeated(web: FakeHub) -> None:
    """models/NAME is then a folder of that name, but the model on the Hub is meant."""
    web.add("tiny", TINY)
    for _ in range(2):
        assert conversion.convert("tiny", force=True) == Path("models/tiny")


def test_a_former_name_with_a_typing_error_is_answered_with_that_name(web: FakeHub) -> None:
    for way in WAYS.values():
        with pytest.raises(InputError, match=r"did you mean t5-small\?"):
            way("t5-samll")
        with pytest.raises(InputError) as error:  # spelled right, but the Hub does not have it
            way("t5-small")
        assert "did you mean" not in str(error.value)


def test_a_file_is_answered_with_its_folder(web: FakeHub) -> None:
    Path("finetune").mkdir()
    Path("finetune/model.safetensors").touch()
    for way in WAYS.values():
        with pytest.raises(InputError, match="'finetune/model.safetensors' is a file; name its folder"):
            way("finetune/model.safetensors")
    assert web.requests == []


@pytest.mark.parametrize("name", ["./no/such", "../x/y", "a/b/c", "models/nothing", "-x", "a--b", "a..b", "a b", "ä/b"])
def test_a_name_that_the_hub_cannot_have_is_not_asked_for(name: str, web: FakeHub) -> None:
    for way in WAYS.values():
        with pytest.raises(InputError, match="is (not a folder|neither a folder nor a name in models/)"):
            way(name)
    assert web.requests == []


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://huggingface.co/google/flan-t5-base", "google/flan-t5-base"),
        ("https://huggingface.co/google/flan-t5-base/tree/main", "google/flan-t5-base"),
        ("huggingface.co/google/flan-t5-base?library=x", "google/flan-t5-base"),
        ("http://hf.co/t5-small", "t5-small"),
        ("https://hf.co/t5-small/blob/main/config.json", "t5-small"),
        ("hf://google/flan-t5-base", "google/flan-t5-base"),
        ("hf://models/google/flan-t5-base", "google/flan-t5-base"),
        ("https://hub.example.org/google/flan-t5-base", "google/flan-t5-base"),
    ],
)
def test_an_address_is_answered_with_the_name(address: str, name: str, web: FakeHub) -> None:
    for way in WAYS.values():
        with pytest.raises(InputError, match=rf"is an address; name the model on the Hub, {name}$"):
            way(address)
    assert web.requests == []


def test_a_folder_of_the_cache_is_answered_with_the_name(web: FakeHub) -> None:
    web.add("org/tiny", TINY)
    folder = str(hub.fetch("org/tiny").parents[1])
    for way in WAYS.values():
        with pytest.raises(InputError, match=r"is a folder of the Hub's cache; name the model, org/tiny$"):
            way(folder)


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
    assert suggested_draft(target) == draft


def test_a_draft_is_suggested_if_none_was_given() -> None:
    def said(draft: Path | None, **options: str) -> str:
        return make_run_config(ModelFlags("models/flan-t5-xl", draft), options, DraftFlags()).describe()

    assert said(None).endswith("; to use a draft model, add --draft-model google/flan-t5-small")
    assert "flan-t5-small" not in said(Path("other")) + said(None, drafter="none")
