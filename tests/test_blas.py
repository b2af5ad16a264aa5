"""The search for a fast BLAS: each in a fresh process, for it happens before MLX is imported."""

from __future__ import annotations

import importlib.util
import os
import shutil
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
    kinds = {"renamed": "/nowhere"} | ({"few-rows": os.environ["PATH"]} if shutil.which("cc") else {})
    for kind, path in kinds.items():  # without a C compiler, and with one
        for _ in range(2):  # the second time from the cache
            done = python(code, XDG_CACHE_HOME=str(tmp_path / kind), PATH=path)
            chosen, total = done.stdout.splitlines()
            assert str(tmp_path) in chosen and kind in chosen and total == "16384.0"
        assert len(list((tmp_path / kind / "speculative-decoding").iterdir())) == 1


def test_a_compiler_that_fails_leaves_nothing_behind(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/cc").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin/cc").chmod(0o755)
    code = "import speculative_decoding.blas as b; print(b.chosen());" + PRODUCT
    done = python(code, XDG_CACHE_HOME=str(tmp_path), PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (kept,) = (tmp_path / "speculative-decoding").iterdir()
    assert done.stdout.splitlines() == [str(kept), "16384.0"] and "renamed" in kept.name


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_products_with_few_rows_are_right() -> None:
    """Against numpy in float64: every number of rows around the tiles, both layouts of both sides, sums, batches."""
    code = """
import mlx.core as mx, numpy as np
rng = np.random.default_rng(0)
def check(x, w, product, what):
    exact = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    error = np.abs(np.asarray(product) - exact).max() / np.abs(exact).max()
    assert error < 1e-5, (what, error)
for rows in [*range(1, 26), 47, 63, 64, 65]:
    for k, n in [(8, 8), (1, 300), (300, 1), (130, 260), (260, 520)]:
        x, w = mx.array(rng.normal(size=(rows, k)), mx.float32), mx.array(rng.normal(size=(k, n)), mx.float32)
        wt, xt = mx.contiguous(w.T), mx.contiguous(x.T)
        for name, (a, b) in {"nn": (x, w), "nt": (x, wt.T), "tn": (xt.T, w), "tt": (xt.T, wt.T)}.items():
            check(x, w, a @ b, (rows, k, n, name))
            c = mx.array(rng.normal(size=(rows, n)), mx.float32)
            check(x, w, mx.addmm(c, a, b, 0.5, 2.0) * 2 - 4 * c, (rows, k, n, name, "sum"))
        wide = mx.array(rng.normal(size=(rows, 2 * k)), mx.float32)
        check(wide[:, k:], w, wide[:, k:] @ w, (rows, k, n, "part of a row"))
        many = mx.array(rng.normal(size=(3, rows, k)), mx.float32)
        check(many, w, many @ w, (rows, k, n, "batch"))
        check(many[:, ::-1], w, many[:, ::-1] @ w, (rows, k, n, "backwards"))
ones = mx.ones((2, 3), mx.complex64)
assert (ones @ ones.T).tolist() == [[3 + 0j] * 2] * 2
with mx.stream(mx.cpu):
    assert (mx.ones((2, 3), mx.float64) @ mx.ones((3, 2), mx.float64)).tolist() == [[3.0] * 2] * 2
"""
    done = python("import speculative_decoding.blas as b; assert 'few-rows' in b.chosen()\n" + code)
    assert done.returncode == 0, done.stderr


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
