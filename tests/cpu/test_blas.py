"""The choice of a BLAS, which happens before MLX is imported and so needs fresh processes; the matmuls of sgemm.c."""

from __future__ import annotations

import importlib.machinery
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.wheels import installed, shared_sdist, unpacked

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the package loads a BLAS on Linux only"),
]

SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
COMPILERS = ("cc", "gcc", "g++", "c++", "clang", "clang++")
CHOSEN = "import speculative_decoding.cpu.blas as b; print(b.chosen);"
NO_SPINNING = {"OPENBLAS_THREAD_TIMEOUT": "4"}  # idle threads sleep after 2^4 cycles and free their core
PRODUCT = "import mlx.core as mx; print((mx.ones((8, 64)) @ mx.ones((64, 32))).sum().item())"
HIDE_SYSTEM_LIBRARIES = """
import ctypes
load = ctypes.CDLL
def load_visible(name, *arguments, **options):
    if "libopenblas.so" in str(name) or "libmkl" in str(name): raise OSError("hidden")
    return load(name, *arguments, **options)
ctypes.CDLL = load_visible
"""


def python(code: str, package: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh process that imports the package from this folder."""
    variables = {name: value for name, value in os.environ.items() if name != "SPECULATIVE_DECODING_BLAS"}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=package,
        capture_output=True,
        text=True,
        env=variables | NO_SPINNING | environment,
        timeout=600,
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_sdist(tmp_path_factory)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package with the extension."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    return installed(tmp_path_factory)


@pytest.fixture(scope="module")
def without_extension(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package, built without a compiler."""
    return unpacked(source, tmp_path_factory.mktemp("wheel") / "without", CC="/bin/false")


@pytest.fixture(scope="module", params=["AVX-512", "AVX2", "OpenBLAS"])
def kernels(request: pytest.FixtureRequest) -> str:
    """Return what computes a decoder's matmuls, if this processor can."""
    return str(request.param)


@pytest.fixture(scope="module")
def package(kernels: str, compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package with the extension. For OpenBLAS, compile it as on other processors, without its kernels."""
    if kernels != "OpenBLAS":
        return compiled
    copy = tmp_path_factory.mktemp("wheel") / "package"
    shutil.copytree(compiled, copy, ignore=shutil.ignore_patterns("*.so"))
    folder = copy / "speculative_decoding" / "cpu"
    command = ["cc", "-O3", "-std=gnu11", "-pthread", "-fPIC", "-shared", "-DWITHOUT_TILES"]
    source = ROOT / "speculative_decoding" / "cpu" / "sgemm.c"
    subprocess.run([*command, source, "-o", folder / f"_sgemm{SUFFIX}"], check=True)
    return copy


def test_wheel_contains_and_uses_the_extension(compiled: Path) -> None:
    extension = compiled / "speculative_decoding" / "cpu" / f"_sgemm{SUFFIX}"
    assert extension.exists() and b"openblas32" not in extension.read_bytes()  # no path of the build machine
    done = python(CHOSEN + "print(b.threads() > 0);" + PRODUCT, compiled)
    assert done.stdout.splitlines() == [str(extension), "True", "16384.0"], done.stderr


def test_wheel_built_without_a_compiler_works_and_warns_once(without_extension: Path) -> None:
    assert not list(without_extension.glob("**/*.so"))
    done = python(
        HIDE_SYSTEM_LIBRARIES + CHOSEN + "b.warn_about_problems(); b.warn_about_problems();" + PRODUCT,
        without_extension,
    )
    assert done.stdout.splitlines() == ["None", "16384.0"], done.stderr
    assert done.stderr.count("slow reference BLAS") == done.stderr.count("apt install libopenblas0-pthread") == 1


def test_importing_runs_no_compiler(compiled: Path, without_extension: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    called = tmp_path / "called"
    for name in COMPILERS:
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\necho {name} >> {called}\nexec /bin/false\n")
        program.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    code = "import speculative_decoding, speculative_decoding.cpu.blas as b; print(b.chosen)"
    for package in (compiled, without_extension):
        done = python(code, package, XDG_CACHE_HOME=str(tmp_path / "cache"), PATH=path)
        assert done.returncode == 0 and not called.exists(), done.stderr
    python("import subprocess; subprocess.run(['cc'])", PATH=path)
    assert called.read_text() == "cc\n"  # the stub compilers do record calls


CHECK = """
import os
import speculative_decoding.cpu.blas as b
import ctypes, threading
import numpy as np
rng = np.random.default_rng(0)
library = ctypes.CDLL(b.chosen)
assert "_sgemm" in b.chosen
print(b.threads())
def pointer(array): return array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
def check(x, w, product, what):
    exact = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    error = np.abs(np.asarray(product) - exact).max() / np.abs(exact).max()
    assert error < 1e-5, (what, error)
"""

USE_AVX2 = """
import mlx.core as mx
x, w = mx.array(rng.normal(size=(2, 999)), mx.float32), mx.array(rng.normal(size=(64, 999)), mx.float32)
best = x @ w.T
mx.eval(best)
ctypes.c_int.in_dll(library, "speculative_decoding_avx512").value = 0
if "avx512f" in open("/proc/cpuinfo").read(): assert not mx.array_equal(x @ w.T, best)  # another order of the terms
"""


PRODUCTS = """
import mlx.core as mx
for rows in [*range(1, 10), 12, 17, 23, 64, 65]:
    for k, n in [(8, 8), (1, 300), (300, 1), (131, 261)] + [(260, 521)] * (rows in (1, 4, 7, 23, 65)):
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


BITS = """
for k, n in [(64, 64), (128, 8192), (1024, 768), (333, 257)]:
    x, w = mx.array(rng.normal(size=(40, k)), mx.float32), mx.array(rng.normal(size=(n, k)), mx.float32)
    c = mx.array(rng.normal(size=n), mx.float32)
    single = mx.concatenate([x[i : i + 1] @ w.T for i in range(40)])
    for rows in range(2, 41):
        assert mx.array_equal(x[:rows] @ w.T, single[:rows]), (rows, k, n)
        assert mx.array_equal(mx.addmm(c, x[:rows], w.T), c + single[:rows]), (rows, k, n, "sum")
    v = mx.array(rng.normal(size=(k, 5)), mx.float32)
    assert mx.array_equal(x @ v, mx.concatenate([x[i : i + 1] @ v for i in range(40)])), (k, "small")
from speculative_decoding import load
model, _ = load(MODEL)
def logits(widths):
    cache, tokens, found = model.make_cache(model.encode(mx.array([[5, 9, 3, 7, 1]]))), list(range(3, 27)), []
    for width in widths:
        found.append(model.decode(mx.array([tokens[:width]]), cache))
        del tokens[:width]
    return mx.concatenate(found, axis=1)
assert all(mx.array_equal(logits([1] * 24), logits([width] * (24 // width))) for width in (2, 3, 4, 8, 12, 24))
"""

THREADS = """
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
    threads = [threading.Thread(target=work, args=(seed, 12, failed)) for seed in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return failed
assert not crowd()
child = os.fork()
if not child:
    os._exit(bool(crowd()))
assert os.waitpid(child, 0)[1] == 0
assert not crowd()
"""


def check(package: Path, threads: int, *checks: str) -> subprocess.CompletedProcess[str]:
    """Run these checks in one process, which prints the number of threads, and the index of each check that passed."""
    model = f"MODEL = {str(ROOT / 'models/t5-web-docs')!r}\n"
    code = "".join(f"{each}print('passed', {i})\n" for i, each in enumerate(checks))
    return python(CHECK + model + code, package, OPENBLAS_NUM_THREADS=str(threads))


def are_ours(kernels: str) -> bool:
    """Return whether the kernels of sgemm.c compute on this machine. Otherwise, OpenBLAS computes."""
    return kernels != "OpenBLAS" and "avx2" in Path("/proc/cpuinfo").read_text()


@pytest.fixture(scope="module")
def checked(kernels: str, package: Path) -> subprocess.CompletedProcess[str]:
    """Check these kernels. Two threads also cover the single-threaded path, which small matmuls take."""
    first = USE_AVX2 * (kernels == "AVX2") + THREADS
    return check(package, 2, first, PRODUCTS, *([BITS] if are_ours(kernels) else []))


def test_matmuls_of_concurrent_threads_and_after_fork(checked: subprocess.CompletedProcess[str]) -> None:
    assert "passed 0" in checked.stdout, checked.stderr


def test_matmuls_match_float64(checked: subprocess.CompletedProcess[str]) -> None:
    """Compare matmuls with numpy in float64: sizes around the tile size, transposed operands, addmm, batches.

    Calls the library directly as well, with row strides that leave gaps: the gaps must stay unwritten.
    """
    assert checked.stdout.splitlines()[0] in ("2", str(os.cpu_count()))
    assert "passed 1" in checked.stdout, checked.stderr


def test_bits_of_a_row_do_not_depend_on_other_rows(checked: subprocess.CompletedProcess[str], kernels: str) -> None:
    """With sgemm.c, a position's logits are bit-identical in passes of any width."""
    if not are_ours(kernels):
        pytest.skip("OpenBLAS kernels depend on the number of rows")
    assert "passed 2" in checked.stdout, checked.stderr


def test_decoding_calls_no_openblas_matmul(compiled: Path) -> None:
    """Idle OpenBLAS threads spin for 25 ms and would slow the next rounds. Covers a draft head, biases, long sources
    and batches."""
    code = """
import speculative_decoding.cpu.blas as b
if "avx2" not in open("/proc/cpuinfo").read():
    print("OpenBLAS computes")
    raise SystemExit
from pathlib import Path
calls = []
SGEMM, SGEMV = ([ctypes.c_int] * count + [ctypes.c_float] + [ctypes.c_void_p, ctypes.c_int] * 2
                + [ctypes.c_float, ctypes.c_void_p, ctypes.c_int] for count in (6, 4))
sgemm = ctypes.CFUNCTYPE(None, *SGEMM)(lambda *given: calls.append(given[3:6]))
sgemv = ctypes.CFUNCTYPE(None, *SGEMV)(lambda *given: calls.append(given[2:4]))
others = [getattr(b._openblas, b.PREFIX + name) for name in b.USED_BY_EXTENSION[2:]]
library.speculative_decoding_use_openblas(*[ctypes.cast(each, ctypes.c_void_p) for each in (sgemm, sgemv, *others)])
import mlx.core as mx
from speculative_decoding import load
session = load(MODELS + "/t5-web-docs", draft=MODELS + "/t5-web-docs-head")
session.generate("translate English to German: " + "The file was not found. " * 30, max_tokens=12, num_draft_tokens=3)
session.batch(["translate English to German: Yes.", "describe: name: x"], max_tokens=8, num_draft_tokens=5)
from speculative_decoding import checkpoints, models
folder = Path(GOLDENS) / "bart"
bart = models.build(checkpoints.read_config(folder), checkpoints.read(folder))
for rows in (1, 3):
    mx.eval(bart.decode(mx.array([[5, 6]] * rows), bart.make_cache(bart.encode(mx.array([[7, 8, 9]] * rows)))))
assert not calls, calls
mx.eval(mx.ones((8, 1200)) @ mx.ones((8, 1200)).T, mx.ones((1200, 8)).T @ mx.ones((1200, 9)))
assert calls == [(8, 9, 1200)], calls  # the hook records calls
print("no calls")
"""
    folders = f"MODELS, GOLDENS = {str(ROOT / 'models')!r}, {str(ROOT / 'tests' / 'parity' / 'goldens')!r}"
    done = python(CHECK + folders + code, compiled, OPENBLAS_NUM_THREADS="2")
    if "OpenBLAS computes" in done.stdout:
        pytest.skip("the extension needs AVX2")
    assert done.stdout.splitlines()[-1:] == ["no calls"], done.stderr


def test_none_keeps_the_blas_of_mlx() -> None:
    done = python(CHOSEN + "print(b.threads());" + PRODUCT, SPECULATIVE_DECODING_BLAS="none")
    assert done.stdout.splitlines() == ["None", "None", "16384.0"]


SEVENS = """
void cblas_sgemm(int order, int a, int b, int m, int n, int k, float alpha, const float *x, int ldx,
                 const float *y, int ldy, float beta, float *z, int ldz) {
    for (int i = 0; i < m * ldz; i++) z[i] = 7;
}
void cblas_dgemm(void) {}
void cblas_cgemm(void) {}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_requested_library_is_loaded_or_refused(tmp_path: Path) -> None:
    library = tmp_path / "sevens.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=SEVENS, text=True, check=True)
    code = CHOSEN + "b.warn_about_problems();" + PRODUCT
    done = python(code, SPECULATIVE_DECODING_BLAS=str(library))
    assert done.stdout.splitlines() == [str(library), str(7.0 * 8 * 32)] and not done.stderr
    for wrong, reason in (("/nonexistent.so", "cannot open"), ("libc.so.6", "libc.so.6 has no cblas_sgemm")):
        done = python(code, SPECULATIVE_DECODING_BLAS=wrong)
        assert done.stdout.splitlines() == ["None", "16384.0"]
        assert f"SPECULATIVE_DECODING_BLAS: {wrong}" in done.stderr and reason in done.stderr


def test_warns_if_mlx_was_imported_first() -> None:
    done = python("import mlx.core, speculative_decoding.cpu.blas as b; b.warn_about_problems()")
    assert "import speculative_decoding first" in done.stderr
