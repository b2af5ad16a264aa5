"""Compares a job whose lines have different languages with the outputs of Hugging Face."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding.cli import convert as convert_command
from speculative_decoding.jobs import command as batch_command
from tests.parity.test_families import FOLDERS
from tests.parity.test_t5 import load_golden
from tests.support.tiny import noisy_copy, save_hugging_face

CODES = {"mbart": ("de_DE", "en_XX", "af_ZA"), "m2m_100": ("deu_Latn", "eng_Latn", "fra_Latn")}


def tokenizer_of(vocab_size: int, languages: Mapping[str, int]) -> tuple[dict[str, Any], list[str]]:
    """Return a word-level tokenizer.json and its vocabulary: three special tokens, the languages, and w4, w5, ..."""
    special = {"<s>": 0, "<pad>": 1, "</s>": 2, **languages}
    words = {f"w{i}": i for i in range(vocab_size) if i not in special.values()} | special
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    added = [{"id": index, "content": piece, **flags} for piece, index in special.items()]
    model = {"type": "WordLevel", "vocab": words, "unk_token": "<s>"}
    content = {"version": "1.0", "added_tokens": added, "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
    return content, sorted(words, key=words.__getitem__)


@pytest.mark.parametrize("name", CODES)
def test_job_with_a_language_per_line_matches_hugging_face(name: str, tmp_path: Path) -> None:
    """Converts the model, and decodes a job whose lines have different languages, with and without drafts."""
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
    job = [str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl"), "-m", "40", "--force"]
    for draft in (["--draft-model", str(tmp_path / "draft"), "--num-draft", "4"], ["--baseline"]):
        assert batch_command.main([*job, *target, *draft]) == 0
        records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert [record["text"] for record in records] == expected
