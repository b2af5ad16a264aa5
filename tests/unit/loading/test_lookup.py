"""Names of models: local folders win, then the Hub is asked; typing errors are answered with the nearest name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from speculative_decoding import InputError
from speculative_decoding.loading import hub
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import BUNDLED, locate, open_model, tokenizer_folder
from speculative_decoding.loading.pair import open_pair
from speculative_decoding.models import default_tokenizer
from tests.support.hub import SINGLE, TINY, WAYS, FakeHub, offline


@pytest.mark.parametrize(
    ("downloaded_as", "name"), [("t5-small", "google-t5/t5-small"), ("google-t5/t5-small", "t5-small")]
)
def test_a_name_without_an_organisation_is_the_same_model(downloaded_as: str, name: str, web: FakeHub) -> None:
    web.add("google-t5/t5-small", TINY)
    web.moved["t5-small"] = "google-t5/t5-small"
    folder = locate(downloaded_as)
    web.requests.clear()
    assert locate(name) == folder and web.downloaded == []
    with offline(web):
        assert locate(name) == folder
        assert convert(name) == Path("models/t5-small")


def test_any_name_on_the_hub_can_be_used_everywhere(web: FakeHub) -> None:
    web.add(name := "org/tiny", TINY)
    assert open_model(name).name == name
    with offline(web):
        pair = open_pair(TINY, name)
        assert pair.draft is not None and pair.folders == {"model": str(TINY), "draft_model": name}
        folder = tokenizer_folder(TINY, {}, name)
        assert convert(name) == Path("models/tiny")
        assert json.loads(Path("models/tiny/manifest.json").read_text())["source"] == name
        shutil.rmtree("models")
        assert convert(str(folder)) == Path("models/tiny")  # not the name of its commit


def test_a_draft_head_can_be_on_the_hub(web: FakeHub) -> None:
    web.add("org/head", BUNDLED / "t5-web-docs-head")
    assert open_pair(BUNDLED / "t5-web-docs", "org/head").folders["draft_model"] == "org/head"


def test_a_model_without_its_usual_tokenizer_names_the_option(web: FakeHub, tmp_path: Path) -> None:
    raw = {"model_type": "whisper", "vocab_size": 51865}
    name = default_tokenizer(raw) or ""
    with pytest.raises(
        InputError, match=f"tokenizer of {name} is not available: .*: tokenizer FOLDER, or its name on the Hub$"
    ):
        tokenizer_folder(tmp_path, raw)
    web.add(name, SINGLE)
    assert tokenizer_folder(tmp_path, raw).name == "a" * 40 and "model.safetensors" not in web.downloaded


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
        ("T5-WebDocs", "t5-web-docs"),
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


@pytest.mark.parametrize("typed", ["en_de", "translate-en_de-1_9"])
def test_the_name_of_a_package_without_its_scheme_is_answered_with_the_scheme(typed: str, web: FakeHub) -> None:
    with pytest.raises(InputError, match=rf"did you mean argos:{typed}\?"):
        locate(typed)
    assert web.requests == []


@pytest.mark.parametrize("how", ["404", "no connection"])
def test_a_local_name_with_an_organisation_is_proposed_after_the_hub_was_asked(how: str, web: FakeHub) -> None:
    Path("runs/summariser").mkdir(parents=True)
    Path("runs/summariser/config.json").touch()
    web.add("runs/summarizers", SINGLE)
    assert locate("runs/summarizers").name == "a" * 40
    with offline(web, how):
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
        convert("t5-web-doc")
    assert web.requests == []


def test_a_conversion_can_be_repeated(web: FakeHub) -> None:
    """models/NAME is then a folder of that name, but the model on the Hub is meant."""
    web.add("tiny", TINY)
    for _ in range(2):
        assert convert("tiny", force=True) == Path("models/tiny")


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


@pytest.mark.parametrize("name", ["./no/such", "a/b/c", "models/nothing", "-x", "a--b", "a b", "a\0b", "x" * 300])
def test_a_name_that_the_hub_cannot_have_is_not_asked_for(name: str, web: FakeHub) -> None:
    for way in WAYS.values():
        with pytest.raises(InputError, match="is (not a folder|neither a folder nor a name in models/)"):
            way(name)
    assert web.requests == []


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://huggingface.co/google/flan-t5-base/tree/main", "google/flan-t5-base"),
        ("huggingface.co/google/flan-t5-base?library=x", "google/flan-t5-base"),
        ("http://hf.co/t5-small/blob/main/config.json", "t5-small"),
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
