"""The search for a fast BLAS: each in a fresh process, for it happens before MLX is imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux needs one")

PRODUCT = "import mlx.core as mx; print((mx.ones((8, 64)) @ mx.ones((64, 32))).sum().item())"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "SPECULATIVE_DECODING_BLAS"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=variables | environment, timeout=60
    )


def test_the_installed_one_is_found_and_used(tmp_path) -> None:  # type: ignore[no-untyped-def]
    code = "import speculative_decoding.blas as b; print(b.chosen());" + PRODUCT
    for _ in range(2):  # the second time from the cache
        done = python(code, XDG_CACHE_HOME=str(tmp_path))
        chosen, total = done.stdout.splitlines()
        assert str(tmp_path) in chosen and total == "16384.0"
    assert len(list((tmp_path / "speculative-decoding").iterdir())) == 1


def test_none_keeps_what_mlx_brings() -> None:
    done = python(
        "import speculative_decoding.blas as b; print(b.chosen());" + PRODUCT, SPECULATIVE_DECODING_BLAS="none"
    )
    assert done.stdout.splitlines() == ["None", "16384.0"]


def test_where_there_is_none_it_says_so_once_and_works() -> None:
    path = importlib.util.find_spec("speculative_decoding").submodule_search_locations[0]  # type: ignore
    code = f"""
import sys
sys.path.insert(0, {path!r})
import blas  # on its own, for importing the package would load one
blas.candidates = lambda: iter(["/nonexistent.so"])
blas.load_fast_blas()
blas.warn_if_slow()
blas.warn_if_slow()
"""
    done = python(code + PRODUCT)
    assert done.stderr.count("pip install scipy-openblas32") == 1 and done.stdout == "16384.0\n"


def test_mlx_imported_too_early_is_said() -> None:
    done = python("import mlx.core, speculative_decoding.blas as b; b.warn_if_slow()")
    assert "import it after" in done.stderr
