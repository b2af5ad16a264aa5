"""Tiny models in the layouts in which models are published, compared with Hugging Face.

`tools/goldens/make_layouts.py` makes the folders and records their references; docs/models.md lists them. Each is
converted from its folder, where files of other frameworks lie beside it, and loaded from a Hub on loopback.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import shutil
import tarfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import GenerationResult, Session, load, score
from speculative_decoding.decoding.prompt import draft_text_of, first_token
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import Storage
from speculative_decoding.models.source import AudioFrames
from tests.support.hub import FakeHub, fake_hub
from tests.support.paths import GOLDENS, ROOT

RECORDS: Mapping[str, Any] = json.loads(gzip.decompress((GOLDENS / "layouts.json.gz").read_bytes()))
SOURCES = ("The house is wonderful, isn't it?", "Die Größe 12.5 % der 漢字 …")  # of the recorded tokens
NEW_TOKENS = 10
FORMER_NAMES = {"google-t5/t5-small": "t5-small"}  # also reached under these
# Their tokenizer files are of the same kind as those of another layout, so only the slow tests convert them and draft
# texts with them. All are downloaded and loaded.
OTHERS = {
    "google-t5/t5-11b",
    "google/flan-t5-small",
    "google/flan-ul2",
    "google/madlad400-3b-mt",
    "facebook/bart-large-cnn",
    "facebook/mbart-large-50-one-to-many-mmt",
    "facebook/nllb-200-3.3B",
    "Helsinki-NLP/opus-mt-tc-big-en-ko",
    "Helsinki-NLP/opus-mt-en-ROMANCE",
    "openai/whisper-tiny.en",
    "openai/whisper-large-v3",
    "distil-whisper/distil-large-v3",
    "kotoba-tech/kotoba-whisper-v1.0",
    "mlx-community/whisper-large-v3-turbo",
    "FLAN-T5 saved by transformers 4",
    "Pegasus saved by transformers 4",
    "mT5 saved by transformers 4, slow tokenizer",
    "T5 saved by transformers 4, slow tokenizer",
    "BART saved by transformers 4, slow tokenizer",
    "Pegasus saved by transformers 4, slow tokenizer",
    "mBART saved by transformers 4, slow tokenizer",
    "Marian saved by transformers 4",
    "NLLB by safetensors.torch.save_model",
    "Marian by safetensors.torch.save_model",
    "T5 by safetensors.torch.save_model",
    "Whisper with added tokens, by transformers 4",
    "FLAN-T5 saved by transformers 5",
    "mBART-50 saved by transformers 5",
    "Marian saved by transformers 5",
}
CONVERTED = [pytest.param(name, marks=pytest.mark.slow) if name in OTHERS else name for name in RECORDS]


def hub_name(name: str) -> str:
    return name if "/" in name else f"someone/{name.replace(' ', '-').replace(',', '').replace('+', 'p')}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Path]]:
    """Unpack all layouts."""
    root = tmp_path_factory.mktemp("layouts")
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress((GOLDENS / "layouts.tar.xz").read_bytes()))) as archive:
        archive.extractall(root, filter="data")
    yield {name: root / name.replace("/", "--").replace(" ", "_").replace(",", "") for name in RECORDS}
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def web(folders: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    """A Hub that has all layouts, each under its own name."""
    with fake_hub(tmp_path_factory.mktemp("cache")) as hub:
        for name, folder in folders.items():
            paths = [path for path in folder.rglob("*") if path.is_file()]
            hub.add(hub_name(name), {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths})
        hub.moved |= {former: name for name, former in FORMER_NAMES.items()}
        yield hub


def opened(path: Path | str) -> Session:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*generation_config.json: ")  # num_beams of summaries and translations
        return load(path, dtype="float32")


def check(session: Session, golden: Mapping[str, Any]) -> list[tuple[Any, GenerationResult]]:
    """Compare ids and text of hard texts, and greedy tokens, with the reference's. Returns prompts and results."""
    tokenizer, audio = session.tokenizer, session.model.audio
    for text, ids, decoded in zip(golden["texts"], golden["ids"], golden["decoded"], strict=True):
        if audio is None:
            found = tokenizer.encode(text, golden["source"])
        else:
            special = range(audio.end, audio.timestamp_begin + audio.window_frames // 2 + 1)
            found = [token for token in tokenizer.encode_output(text) if token not in special]
        assert (text, found) == (text, ids)
        assert (text, tokenizer.decode(ids)) == (text, decoded)

    options: dict[str, Any] = {"max_tokens": NEW_TOKENS, "drafter": "none"}
    if golden["source"]:
        options |= {"src_lang": golden["source"], "tgt_lang": golden["target"]}
        assert len(tokenizer.languages) == golden["languages"]
    prompts: list[Any] = [*SOURCES]
    if audio is not None:
        frames = np.random.default_rng(7).standard_normal((3000, audio.num_mel_bins)) * 0.5
        prompts = [AudioFrames(mx.array(frames.astype(np.float32)))]
        options["decoder_prefix"] = golden["prompt"]
    results = [session.generate(prompt, **options) for prompt in prompts]
    assert [result.tokens for result in results] == golden["tokens"]
    assert [result.text for result in results] == golden["outputs"]
    return [*zip(prompts, results, strict=True)]


def check_text_drafts(session: Session, golden: Mapping[str, Any], found: list[tuple[Any, GenerationResult]]) -> None:
    """A text draft begins with the forced token, once, and ends with the end token, as the output does."""
    tokenizer = session.tokenizer
    options: dict[str, Any] = {"max_tokens": NEW_TOKENS, "drafter": "text", "num_draft_tokens": 5}
    if golden["source"]:
        options |= {"src_lang": golden["source"], "tgt_lang": golden["target"]}
    if session.model.audio is not None:
        options["decoder_prefix"] = golden["prompt"]
    for prompt, result in found:
        drafted = session.generate(prompt, **options, draft_text=[f"{SOURCES[0]} {result.text}", result.text])
        assert drafted.tokens == result.tokens
        if session.model.audio is None and result.text:
            languages = {name: options[name] for name in ("src_lang", "tgt_lang") if name in options}
            first = first_token(session.model, tokenizer, options.get("tgt_lang"))
            text = draft_text_of(session.model, tokenizer, result.text, first)
            assert text.ids == score(session.model, tokenizer, prompt, result.text, **languages).tokens
            assert first is None or drafted.stats.accepted_tokens


@pytest.mark.parametrize("name", CONVERTED)
@pytest.mark.usefixtures("web")
def test_converted_layout_equals_its_reference(name: str, folders: Mapping[str, Path], tmp_path: Path) -> None:
    session, golden = opened(convert(str(folders[name]), tmp_path / "out", Storage("float32"))), RECORDS[name]
    found = check(session, golden)
    if name in OTHERS:
        check_text_drafts(session, golden, found)


@pytest.mark.parametrize("name", RECORDS)
def test_downloaded_layout_equals_its_reference(name: str, web: FakeHub) -> None:
    """Files of other frameworks, and the same weights in another format, are not downloaded."""
    before = len(web.requests)
    session, golden = opened(FORMER_NAMES.get(name, hub_name(name))), RECORDS[name]
    found = check(session, golden)
    if name not in OTHERS:
        check_text_drafts(session, golden, found)
    prefix = f"/{hub_name(name)}/resolve/"
    downloaded = {
        path.removeprefix(prefix).split("/", 1)[1] for path in web.requests[before:] if path.startswith(prefix)
    }
    junk = {*RECORDS[name]["junk"], "README.md", ".gitattributes"}
    assert downloaded and not downloaded & junk
    weights = {
        path.split(".")[0].split("-")[0] for path in downloaded if path.endswith((".bin", ".safetensors", ".npz"))
    }
    assert len(weights) == 1


def test_documents_list_every_layout() -> None:
    table = (ROOT / "docs" / "models.md").read_text("utf-8").split("## Layouts")[1]
    rows = [line.split(" | ")[0].removeprefix("| ").strip("`") for line in table.splitlines() if line.startswith("| ")]
    assert rows[1:] == list(RECORDS)
