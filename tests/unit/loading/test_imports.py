"""A model is loaded without the modules that only other models, files and commands need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from speculative_decoding.checkpoints import ADAPTER_FORMATS, FORMATS, reader
from speculative_decoding.loading.load import BUNDLED

SCRIPT = """
import sys
from speculative_decoding.loading.pair import open_pair
open_pair({target!r}, {draft!r}).load_weights()
print(*sys.modules)
"""
FOR_OTHER_FILES = {
    *(
        f"checkpoints.{name}"
        for name in ("gguf", "indexed", "lora", "pickles", "quantized", "safetensors", "torch_bin")
    ),
    *(f"loading.{name}" for name in ("adapter", "clean_up", "hub", "language_codes", "lookup", "suggested_drafts")),
    *(f"loading.{name}_tokenizer" for name in ("canonical", "reference", "sentencepiece")),
    *(f"models.{name}" for name in ("bart", "gemma", "rope", "t5_float16", "t5gemma", "t5gemma2", "whisper")),
}
FOR_OTHER_COMMANDS = {"loading.conversion", "loading.hard_texts", "loading.tokenizer_settings"}
LIBRARIES = {"gguf", "huggingface_hub", "safetensors", "sentencepiece", "torch", "transformers"}


def test_a_converted_model_with_a_head_imports_one_reader_and_one_architecture() -> None:
    folders = {"target": str(BUNDLED / "t5-web-docs"), "draft": str(BUNDLED / "t5-web-docs-head")}
    command = [sys.executable, "-c", SCRIPT.format(**folders)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    found = {name.removeprefix("speculative_decoding.") for name in result.stdout.split()}
    assert {"checkpoints.npz", "models.t5", "models.draft_head"} <= found
    assert not found & (FOR_OTHER_FILES | FOR_OTHER_COMMANDS | LIBRARIES)
    assert not any(name.split(".")[0] == "distributed" for name in found)


@pytest.mark.parametrize("name", FORMATS | ADAPTER_FORMATS)
def test_each_format_has_a_reader(name: str) -> None:
    assert callable(reader(name))
