"""The registry of architectures: complete, and without imports that a model does not need."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from speculative_decoding import models
from speculative_decoding.errors import CheckpointError, Float16Error
from speculative_decoding.models.architecture import Architecture
from speculative_decoding.models.bart import FAMILIES
from tests.support.tiny import CONFIG, WHISPER

SHARED = ("absolute_positions", "gemma", "gemma_config", "rope")
OTHERS = {*models.MODULES.values(), *models.RESCALING.values(), *SHARED} - {"t5"}
SCRIPT = """
import sys
from speculative_decoding import models
models.build({config})
print(*(name.removeprefix("speculative_decoding.models.") for name in sys.modules))
"""


@pytest.mark.parametrize("model_type", models.MODULES)
def test_each_supported_model_type_has_an_architecture(model_type: str) -> None:
    found = models.find({"model_type": model_type})
    assert isinstance(found, Architecture)
    assert found is import_module(f"speculative_decoding.models.{models.MODULES[model_type]}").ARCHITECTURE


def test_all_families_of_bart_are_supported() -> None:
    assert {name for name, module in models.MODULES.items() if module == "bart"} == {*FAMILIES}


def test_a_model_imports_no_other_architecture() -> None:
    script = SCRIPT.format(config=CONFIG)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "t5" in result.stdout.split()
    assert not {*result.stdout.split()} & OTHERS


def test_another_type_names_the_supported_ones() -> None:
    with pytest.raises(CheckpointError, match="unsupported model_type 'gpt2'; supported: t5, mt5"):
        models.find({"model_type": "gpt2"})
    with pytest.raises(CheckpointError, match="longt5.*use T5"):
        models.find({"model_type": "longt5"})


def test_only_architectures_that_cannot_overflow_keep_their_weights_in_float16() -> None:
    assert models.find(WHISPER).fits_float16(WHISPER)
    assert [name for name in FAMILIES if models.find({"model_type": name}).fits_float16({"model_type": name})] == [
        "bart",
        "marian",
    ]
    for name in ("pegasus", "t5gemma2"):
        with pytest.raises(Float16Error, match=f"{name} models may overflow in float16; use bfloat16"):
            models.for_float16({"model_type": name}, {})  # type: ignore[arg-type]
