"""The tiny CTranslate2 models that tools/goldens/make_ctranslate2_goldens.py records."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from tests.support.ctranslate2_files import Value, model_bytes, quantized, variables_of, write_folder
from tests.support.paths import GOLDENS

CASES: Mapping[str, Any] = {
    case["name"]: case for case in json.loads(gzip.decompress((GOLDENS / "ctranslate2/cases.json.gz").read_bytes()))
}


@cache
def variables(name: str) -> Mapping[str, Value]:
    case = CASES[name]
    tensors = {} if case["family"] is None else load_file(GOLDENS / case["family"] / "model.safetensors")
    return quantized(variables_of(case, tensors), case["quantization"])


def write(name: str, folder: Path, changes: Mapping[str, Value | None] | None = None, **fields: Any) -> Path:
    """Write the folder of a case.

    Args:
        changes: Other values of variables. None removes one.
        fields: Other fields of config.json, or arguments of `model_bytes`.
    """
    case = CASES[name]
    values = {key: value for key, value in (variables(name) | dict(changes or {})).items() if value is not None}
    form = {key: fields.pop(key, case[key]) for key in ("spec", "revision", "aliases", "version")}
    config = case["config"] | fields
    return write_folder(
        folder, model_bytes(variables=values, **form), config or None, case["tokens"], case["vocabulary"]
    )
