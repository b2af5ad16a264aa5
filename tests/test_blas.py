"""The search for a fast BLAS: each in a fresh process, for it happens before MLX is imported."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from speculative_decoding import blas

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux needs one")

PRODUCT = "import mlx.core as mx; print((mx.ones((8, 64)) @ mx.ones((64, 32))).sum().item())"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "SPECULATIVE_DECODING_BLAS"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=variables | environment, timeout=60
    )


def test_the_installed_one_is_found_and_used(tmp_path) -> None:  # type: ignore[no-untyped-def]
    code = "import speculative_decoding.blas as b; print(b.chosen());" + PRODUCT
    kinds = {"renamed": "/nowhere"} | ({"compiled": os.environ["PATH"]} if shutil.which("cc") else {})
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


needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
CHECK = """
import os
os.sched_setaffinity(0, range(os.cpu_count()))  # this suite runs on one core; more threads than one need more
import speculative_decoding.blas as b
import ctypes, threading
import numpy as np
rng = np.random.default_rng(0)
library = ctypes.CDLL(b.chosen())
library.scipy_openblas_get_num_threads.restype = ctypes.c_int
print(b.chosen(), library.scipy_openblas_get_num_threads())
def pointer(array): return array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
def check(x, w, product, what):
    exact = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    error = np.abs(np.asarray(product) - exact).max() / np.abs(exact).max()
    assert error < 1e-5, (what, error)
"""


@pytest.fixture(params=["this processor", "without AVX-512"])
def wrapper(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """sgemm.c, compiled with and without its own kernels."""
    if request.param == "without AVX-512":
        source = tmp_path / "sgemm.c"
        source.write_text("#define WITHOUT_AVX512\n" + blas.WRAPPER.read_text())
        monkeypatch.setattr(blas, "WRAPPER", source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = next(blas.openblas_from_wheel())
    assert "compiled" in path.name
    return str(path)


@needs_compiler
@pytest.mark.parametrize("threads", ["1", "2"])
def test_products_are_right(wrapper: str, threads: str) -> None:
    """Against numpy in float64: sizes around the tiles and pieces, both layouts of both sides,
    sums, batches; and through the library itself, with strides that leave gaps, which must not be written."""
    code = """
import mlx.core as mx
for rows in [*range(1, 10), 12, 17, 23, 63, 64, 65]:
    for k, n in [(8, 8), (1, 300), (300, 1), (130, 260), (260, 521)]:
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

for m, n, k in [(1, 700, 100), (5, 130, 515), (70, 9, 8200), (300, 301, 600), (3, 2, 0), (2, 0, 3)]:
    x, w = rng.normal(size=(m, k + 3)).astype(np.float32), rng.normal(size=(n, k + 5)).astype(np.float32)
    y = np.full((m, n + 7), 7, np.float32)
    library.cblas_sgemm(101, 111, 112, m, n, k, ctypes.c_float(0.5), pointer(x), k + 3, pointer(w), k + 5,
                        ctypes.c_float(0), pointer(y), n + 7)
    assert np.all(y[:, n:] == 7)
    assert np.allclose(y[:, :n], 0.5 * x[:, :k].astype(float) @ w[:, :k].T, atol=1e-3), (m, n, k)
"""
    done = python(CHECK + code, SPECULATIVE_DECODING_BLAS=wrapper, OPENBLAS_NUM_THREADS=threads)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == wrapper and done.stdout.split()[1] in (threads, str(os.cpu_count()))


@needs_compiler
def test_a_row_has_the_same_bits_in_any_company() -> None:
    """Where the product is our own: no other row, and no other thread, changes what a row gives; so no token's logits
    depend on how many are read with it."""
    code = """
import mlx.core as mx
if "avx512f" not in open("/proc/cpuinfo").read():
    print("other processor")
    raise SystemExit
for k, n in [(64, 64), (128, 8192), (1024, 256), (333, 257)]:
    x, w = mx.array(rng.normal(size=(40, k)), mx.float32), mx.array(rng.normal(size=(n, k)), mx.float32)
    alone = mx.concatenate([x[i : i + 1] @ w.T for i in range(40)])
    for rows in range(2, 41):
        assert mx.array_equal(x[:rows] @ w.T, alone[:rows]), (rows, k, n)
    v = mx.array(rng.normal(size=(k, 5)), mx.float32)
    assert mx.array_equal(x @ v, mx.concatenate([x[i : i + 1] @ v for i in range(40)])), (k, "small")
from speculative_decoding import load
model, _ = load("t5-web-docs")
def logits(widths):
    cache, tokens, found = model.make_cache(model.encode(mx.array([[5, 9, 3, 7, 1]]))), list(range(3, 27)), []
    for width in widths:
        found.append(model.decode(mx.array([tokens[:width]]), cache))
        del tokens[:width]
    return mx.concatenate(found, axis=1)
assert all(mx.array_equal(logits([1] * 24), logits([width] * (24 // width))) for width in (2, 3, 4, 8, 12, 24))
print("the same")
"""
    done = python(CHECK + code, OPENBLAS_NUM_THREADS="2")
    if "other processor" in done.stdout:
        pytest.skip("no AVX-512 here")
    assert done.stdout.splitlines()[-1] == "the same", done.stderr


@needs_compiler
def test_products_of_several_threads_and_of_a_forked_process(wrapper: str) -> None:
    code = """
def work(seed, rounds, failed):
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        m, n, k = (int(rng.integers(1, top)) for top in (20, 900, 300))
        x, w, y = rng.normal(size=(m, k)), rng.normal(size=(n, k)), np.empty((m, n), np.float32)
        x, w = x.astype(np.float32), w.astype(np.float32)
        library.cblas_sgemm(101, 111, 112, m, n, k, ctypes.c_float(1), pointer(x), k, pointer(w), k, ctypes.c_float(0),
                            pointer(y), n)
        if not np.allclose(y, x @ w.T, atol=1e-3): failed.append((m, n, k))
def crowd():
    failed = []
    threads = [threading.Thread(target=work, args=(seed, 100, failed)) for seed in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return failed
assert not crowd()
child = os.fork()
if not child:
    os._exit(bool(crowd()))
assert os.waitpid(child, 0)[1] == 0
assert not crowd()
print("done")
"""
    done = python(CHECK + code, SPECULATIVE_DECODING_BLAS=wrapper, OPENBLAS_NUM_THREADS="2")
    assert done.stdout.splitlines()[-1:] == ["done"], done.stderr


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
