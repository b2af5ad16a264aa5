"""Facts about Apple GPUs, from descriptions that MLX gives on a Mac."""

from __future__ import annotations

import mlx.core as mx
import pytest

from speculative_decoding.models.device import emulates_bfloat16, gpu_generation, gpu_info, uses_tf32
from tests.support.metal import pretend_gpu


@pytest.mark.parametrize(
    ("architecture", "generation", "has_no_bfloat16", "has_tf32"),
    [
        ("applegpu_g14s", 14, True, False),  # M2 Max
        ("applegpu_g15d", 15, False, False),  # M3 Ultra
        ("applegpu_g17g", 17, False, True),  # M5
        ("applegpu_g17p", 17, False, False),  # an iPhone's chip
        ("applegpu_g18p", 18, False, True),
        ("sm_90", None, False, False),
    ],
)
def test_the_architecture_decides(
    architecture: str, generation: int | None, has_no_bfloat16: bool, has_tf32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpu(monkeypatch, architecture)
    assert (gpu_generation(), emulates_bfloat16()) == (generation, has_no_bfloat16)
    monkeypatch.setenv("MLX_ENABLE_TF32", "1")
    for version, expected in (("26.2", has_tf32), ("26.10", has_tf32), ("26.1", False), ("15.6", False), ("", None)):
        pretend_gpu(monkeypatch, architecture, macos=version)
        assert uses_tf32() is expected
    monkeypatch.setenv("MLX_ENABLE_TF32", "0")
    pretend_gpu(monkeypatch, architecture, macos="26.2")
    assert uses_tf32() is False


def test_a_cpu_has_no_gpu() -> None:
    with mx.stream(mx.cpu):
        assert (gpu_info(), gpu_generation(), emulates_bfloat16()) == ({}, None, False)
