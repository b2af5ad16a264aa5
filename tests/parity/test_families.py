"""Batches and languages of every family, compared with Hugging Face's outputs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import batch_generate, generate
from speculative_decoding.cli import convert as convert_command
from speculative_decoding.cli import main as main_command
from speculative_decoding.drafters import NgramDrafter
from speculative_decoding.models.audio import AudioFrames
from speculative_decoding.models.bart import FAMILIES as BART_LIKE
from tests.parity.test_gemma import NAMES as GEMMA_LIKE
from tests.parity.test_gemma import uncompiled  # noqa: F401
from tests.parity.test_scoring import Numbers, text_of
from tests.parity.test_t5 import GOLDENS, load_golden, sources_of
from tests.support.tiny import noisy_copy, save_hugging_face

WHISPERS = ("whisper", "whisper-en", "whisper-v3", "whisper-distilled")
FOLDERS = {folder.name: folder for folder in GOLDENS}
CODES = {"mbart": ("de_DE", "en_XX", "af_ZA"), "m2m_100": ("deu_Latn", "eng_Latn", "fra_Latn")}


def tokenizer_of(vocab_size: int, languages: Mapping[str, int]) -> tuple[dict[str, Any], list[str]]:
    """Return a word-level tokenizer.json and its words by id: three special tokens, the languages, and w4, w5, ..."""
    special = {"<s>": 0, "<pad>": 1, "</s>": 2, **languages}
    words = {f"w{i}": i for i in range(vocab_size) if i not in special.values()} | special
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    added = [{"id": index, "content": piece, **flags} for piece, index in special.items()]
    model = {"type": "WordLevel", "vocab": words, "unk_token": "<s>"}
    content = {"version": "1.0", "added_tokens": added, "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
    return content, sorted(words, key=words.__getitem__)


@pytest.mark.parametrize("name", CODES)
def test_job_with_a_language_per_line_matches_hugging_face(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model is converted, and decodes a job whose lines have different languages, with and without a draft."""
    model, golden = load_golden(FOLDERS[name])
    codes = dict(zip(CODES[name], golden["languages"].tolist(), strict=True))
    content, words = tokenizer_of(model.config.vocab_size, codes)
    raw = json.loads((FOLDERS[name] / "config.json").read_text())
    save_hugging_face(noisy_copy(model, 0.03), tmp_path / "draft", raw)
    shutil.copytree(FOLDERS[name], tmp_path / "hf")
    for folder in (tmp_path / "hf", tmp_path / "draft"):
        (folder / "tokenizer.json").write_text(json.dumps(content))
    shutil.copyfile(tmp_path / "hf" / "generation_config.json", tmp_path / "draft" / "generation_config.json")
    target = ["--model", str(tmp_path / "target")]
    assert convert_command.main(["--model", str(tmp_path / "hf"), "--output", target[1], "--dtype", "float32"]) == 0

    lines, expected = list[str](), list[str]()
    for i, source in enumerate(codes):
        ids = golden["input_ids"][i][golden["attention_mask"][i].astype(bool)].tolist()
        for j, into in enumerate(codes):
            fields = {"prompt": " ".join(words[each] for each in ids[1:-1]), "tgt_lang": into}
            lines.append(json.dumps(fields | ({} if source.startswith("en") else {"src_lang": source})))
            written = golden["translated_ids"][i, j, : golden["translated_lengths"][i, j]].tolist()
            expected.append(" ".join(words[each] for each in written if words[each].startswith("w")))
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    job = ["--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl"), "-m", "40", "--force"]
    for draft in (["--draft-model", str(tmp_path / "draft"), "--num-draft", "4"], ["--baseline"]):
        assert main_command.main([*target, *draft, *job]) == 0
        records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert [record["text"] for record in records] == expected

    first, *_ = codes
    for flag, language in (("--target-language", first.lower()), ("--source-language", "German")):
        wrong = ["--target-language", first, flag, language]
        capsys.readouterr()
        assert main_command.main([*target, "--baseline", "--prompt", "w5 w6", *wrong]) == 2
        err = capsys.readouterr().err
        assert f"{flag}: '{language}' is an unknown language; " in err
        assert err.endswith(f"This model has 3 languages: {', '.join(sorted(codes))}\n")


@pytest.mark.parametrize("name", sorted({*BART_LIKE, *GEMMA_LIKE, *WHISPERS}))
@pytest.mark.usefixtures("uncompiled")
def test_batch_rows_match_hugging_face_with_every_drafter(name: str) -> None:
    """Sources of different lengths share two slots. Coupled samples equal those of single requests."""
    model, golden = load_golden(FOLDERS[name])
    sources = sources_of(golden)
    prompts = [source if isinstance(source, AudioFrames) else text_of(source) for source in sources]
    lengths = [min(length, 24) for length in golden["greedy_lengths"].tolist()]
    greedy = [ids[:length].tolist() for ids, length in zip(golden["greedy_ids"], lengths, strict=True)]
    noisy: dict[str, Any] = {"temperature": 1.0, "seed": 3, "acceptance": "coupled", "max_tokens": 12}
    complete: dict[str, Any] = {"max_tokens": max(lengths)}
    shared: dict[str, Any] = {"allow_long_prompt": True}
    sampled = [generate(model, Numbers(), prompt, drafter="none", **noisy, **shared).tokens for prompt in prompts]
    drafts = {"num_draft_tokens": 4, "draft_model": noisy_copy(model, 0.03), "ngram": NgramDrafter(min_chance=0.0)}
    for drafter, left_out, expected, options in (
        ("model", "ngram", greedy, complete),
        ("ngram", "draft_model", greedy, complete),
        ("auto", "", sampled, noisy),
    ):
        draft_options = {option: value for option, value in drafts.items() if option != left_out} | {"drafter": drafter}
        found = batch_generate(model, Numbers(), prompts, slots=2, **draft_options, **shared, **options)
        assert {each.index: each.result and each.result.tokens for each in found} == dict(enumerate(expected))
