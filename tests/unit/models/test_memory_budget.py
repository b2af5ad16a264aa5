"""Weights that do not fit are refused before they are read, and limits on MLX's memory are restored."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from speculative_decoding import InputError, load, memory_limits
from speculative_decoding.cli.run_config import DraftFlags, ModelFlags, RunConfig
from speculative_decoding.draft_length.base import FixedLength
from speculative_decoding.engine import Engine
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.pair import open_pair
from speculative_decoding.models.memory_budget import available_memory, physical_memory
from speculative_decoding.sampling import GenerationOptions
from tests.support.metal import pretend_gpu, pretend_memory, pretend_metal
from tests.support.tiny import EXACT, model_drafter, tiny_model
from tests.support.together import Letters

TARGET, DRAFT = (BUNDLED / name for name in ("t5-web-docs", "t5-web-docs-draft"))


def test_memory_limits_apply_inside_the_context_only(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = pretend_metal(monkeypatch)
    before = dict(limits)
    for error in (None, RuntimeError("failed")):
        try:
            with memory_limits():
                assert limits == {"wired": 12 * 10**9, "cache": 1 << 30}
                if error is not None:
                    raise error
        except RuntimeError as raised:
            assert raised is error
        assert limits == before


def test_memory_limits_have_no_effect_without_metal() -> None:
    assert not mx.metal.is_available() or mx.default_device() == mx.cpu
    cached = mx.set_cache_limit(1000)
    with memory_limits():
        assert mx.set_cache_limit(cached) == 1000


def test_sessions_of_the_command_line_and_the_server_have_memory_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = pretend_metal(monkeypatch)
    config = RunConfig(ModelFlags(DRAFT), GenerationOptions(), DraftFlags())
    with config.session(config.open()):
        assert limits["wired"] == 12 * 10**9
    assert limits["wired"] == 0


def test_available_memory_of_a_mac_excludes_the_arrays_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch, gigabytes=16)
    assert physical_memory() == 16 * 10**9
    before = available_memory()
    used = mx.zeros((1 << 22,), mx.uint8)
    mx.eval(used)
    assert available_memory() == before - (1 << 22) <= 12 * 10**9


BYTES = {"float32": 46_168_064, "bfloat16": 23_084_032, "8 bits": 14_236_672, "4 bits": 9_518_080, "draft": 6_821_376}


@pytest.mark.parametrize(
    ("dtype", "physical", "available", "way_out"),
    [
        ("float32", BYTES["float32"] - 1, 1.1 * BYTES["bfloat16"] + 1, "load it with dtype bfloat16 (0.02 GB)"),
        ("float32", BYTES["float32"] - 1, 1.1 * BYTES["8 bits"] + 1, "convert it with --quantize 8 (0.01 GB)"),
        ("float16", BYTES["bfloat16"] - 1, 1.1 * BYTES["4 bits"] + 1, "convert it with --quantize 4 (0.01 GB)"),
        ("bfloat16", BYTES["bfloat16"] - 1, 1.1 * BYTES["4 bits"] - 1, "use a smaller model"),
    ],
)
def test_weights_above_the_physical_memory_are_refused_before_reading(
    dtype: str, physical: float, available: float, way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_memory(monkeypatch, physical, available)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    with pytest.raises(
        InputError, match=r"t5-web-docs: the weights exceed this computer's memory \(got .* GB, "
    ) as error:
        load(TARGET, dtype=dtype)
    assert str(error.value).endswith(f"; {way_out}")
    assert mx.get_peak_memory() - before < BYTES["4 bits"] / 10


@pytest.mark.parametrize("draft", [DRAFT, "self-8bit"])
def test_a_draft_that_does_not_fit_beside_the_target_is_refused(
    draft: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_memory(monkeypatch, BYTES["float32"] + 1000, 1e9)
    with pytest.raises(InputError, match=r"GB beside the target's 0\.05 GB, expected at most 0\.05 GB\)"):
        load(TARGET, draft=draft, dtype="float32")


@pytest.mark.parametrize("draft", [None, DRAFT])
def test_weights_above_the_available_memory_cause_one_warning(
    draft: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = open_pair(TARGET, draft, dtype="float32")
    size = pair.target.nbytes + (pair.draft.nbytes if pair.draft else 0)
    assert size == BYTES["float32"] + (BYTES["draft"] if draft else 0)
    pretend_memory(monkeypatch, 1e9, 1.1 * size - 1)
    with pytest.warns(UserWarning, match="the weights take 0.05 GB and .* GB are available") as caught:
        pair.load_weights()
    assert len(caught) == 1
    pretend_memory(monkeypatch, 1e9, 1.1 * size + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair.load_weights()


def test_outputs_whose_kv_cache_cannot_be_reserved_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bits depend on the capacity of the KV cache, strict passes reserve it before the first pass."""
    pretend_memory(monkeypatch, 1e9, 1 << 20)
    model, long, length = tiny_model(), GenerationOptions(max_tokens=1 << 20), FixedLength(4)
    drafter = model_drafter(model, model)
    engine = Engine(model, Letters(), drafter, slots=2, widths=replace(EXACT, reserved=8, capacity_borders=[64]))
    engine.submit("abc", GenerationOptions(max_tokens=9), length)
    with pytest.raises(
        InputError, match=r"^max_tokens: for 1048576 tokens, strict passes reserve about \d GB .* 0 GB are free"
    ):
        engine.submit("abc", long, length)
    Engine(model, Letters(), drafter, slots=2, widths=EXACT).submit("abc", long, length)
