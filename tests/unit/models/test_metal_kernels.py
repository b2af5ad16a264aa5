"""The package gives Metal's kernels no arguments that they do not check (tests/support/metal_kernels.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from speculative_decoding import Session, load
from speculative_decoding.models import EncoderDecoder
from speculative_decoding.models.attention import attend
from speculative_decoding.models.layers import Linear, project
from speculative_decoding.models.rope import Rope
from tests.parity.test_t5 import GOLDENS, load_golden
from tests.support.families import CODES, FAMILIES, save_family
from tests.support.metal import pretend_gpu
from tests.support.metal_kernels import KernelError, checked_kernels
from tests.support.tiny import audio_frames, tiny_head, tiny_model

PROMPTS = ["w3 w5 w7 w11", "w2 w40 w9 w9 w1 w17 w23", "w8"]


@pytest.fixture(autouse=True)
def metal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pretend_gpu(monkeypatch)
    with checked_kernels():
        yield


def prompts_for(session: Session) -> list[Any]:
    audio = session.model.audio
    if audio is None:
        return [*PROMPTS]
    return [audio_frames(seed, audio.window_frames // 2, audio.num_mel_bins) for seed in range(3)]


def decode(session: Session, **options: Any) -> int:
    """Decode alone, in a batch whose rows differ in length, with sampling, and score. Returns the draft tokens."""
    prompts = prompts_for(session)
    drafted = session.generate(prompts[0], max_tokens=8, **options).stats.drafted_tokens
    for more in ({}, {"temperature": 1.0, "seed": 3}, {"repetition_penalty": 1.5}):
        found = [*session.batch(prompts, slots=3, max_tokens=8, **more, **options)]
        assert all(each.error is None for each in found), [each.error for each in found]
        drafted += sum(each.result.stats.drafted_tokens for each in found if each.result)
    return drafted


@pytest.mark.parametrize("family", FAMILIES)
def test_all_families_with_both_kinds_of_draft(family: str, tmp_path: Path) -> None:
    folder = save_family(tmp_path / "model", family)
    _, codes = CODES.get(family, ("", ()))
    languages: dict[str, Any] = dict(zip(("src_lang", "tgt_lang"), codes, strict=False))
    target = load(folder, dtype="bfloat16")
    trained = tiny_head(load(folder, dtype="float32").model)  # as training makes it
    trained.set_dtype(mx.bfloat16)
    head = Session(target.model, target.tokenizer, trained)
    model = Session(target.model, target.tokenizer, load(folder, dtype="bfloat16").model)
    decode(target, drafter="ngram", **languages)
    assert decode(head, drafter="model", num_draft_tokens=3, **languages) > 0
    assert decode(model, drafter="model", num_draft_tokens=3, **languages) > 0


@pytest.mark.parametrize("folder", GOLDENS, ids=lambda folder: folder.name)
def test_passes_over_complete_outputs_and_their_gradients(folder: Path) -> None:
    model, golden = load_golden(folder)
    source = mx.array(golden["input_ids"])
    mask = mx.array(golden["attention_mask"]).astype(mx.bool_)
    tokens = mx.array(golden["decoder_input_ids"])
    assert len(source) > 1

    def loss(model: EncoderDecoder) -> mx.array:
        states = model.teacher_forced(tokens, model.encode(source, mask), mask)
        return nn.losses.cross_entropy(model.logits(states), tokens, reduction="mean")

    value, gradients = nn.value_and_grad(model, loss)(model)
    mx.eval(value, gradients)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("bits", [None, 4, 8])
def test_heads_with_a_fused_kernel_and_quantized_layers(bits: int | None) -> None:
    model = tiny_model(d_model=64, d_kv=64, d_ff=128)
    model.set_dtype(mx.float16)
    if bits is not None:
        nn.quantize(model, 64, bits)
    model.finalize()
    mask = mx.arange(7) < mx.array([7, 4, 2])[:, None]
    cache = model.make_cache(model.encode(mx.array([[5, 9, 12, 3, 8, 6, 1]] * 3), mask), mask)
    for width in (1, 5, 9):
        assert model.decode(mx.array([[0] * width] * 3), cache).dtype == mx.float16


def rope_for_three_rows() -> None:
    mx.fast.rope(mx.zeros((3, 2, 4, 8)), 8, traditional=False, base=10.0, scale=1.0, offset=mx.array([0]))


def mask_of_another_dtype() -> None:
    queries = mx.zeros((1, 2, 3, 64), mx.float16)
    mx.fast.scaled_dot_product_attention(queries, queries, queries, scale=1.0, mask=mx.zeros((1, 1, 1, 3)))


FAULTS: dict[str, Callable[[], object]] = {
    "rope: offsets": rope_for_three_rows,
    "attention: dtypes": mask_of_another_dtype,
    "matmul: dtypes": lambda: mx.zeros((2, 3)) @ mx.zeros((3, 2), mx.float16),
    "addmm: reads behind": lambda: mx.addmm(mx.zeros((5, 512)), mx.zeros((5, 384)), mx.zeros((384, 512))),
    "take: index": lambda: mx.take(mx.zeros((4, 2)), mx.array([0, 4]), axis=0),
    "index: index": lambda: mx.zeros((4, 2))[mx.array([4])],
    "along axis: index": lambda: mx.take_along_axis(mx.zeros((2, 4)), mx.array([[0], [5]]), axis=1),
    "as_strided: element": lambda: mx.as_strided(mx.zeros(8), (2, 4), (5, 1)),
    "an empty array": lambda: mx.cumprod(mx.zeros((2, 0)), axis=1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_refused(fault: str) -> None:
    first, second = fault.split(": ") if ": " in fault else (fault, "")
    with pytest.raises(KernelError, match=rf"{first}.*{second}"):
        FAULTS[fault]()


@pytest.mark.usefixtures("device")
def test_one_offset_for_all_rows_equals_an_offset_per_row() -> None:
    x = mx.random.normal((3, 2, 4, 8), key=mx.random.key(0))
    for first in (0, 5):
        assert mx.array_equal(Rope(10.0)(x, mx.array([first])), Rope(10.0)(x, mx.array([first] * 3))).item()


@pytest.mark.usefixtures("device")
def test_a_residual_is_added_separately_where_the_kernel_reads_behind_it() -> None:
    for rows, inputs, outputs in ((1, 96, 128), (5, 96, 128), (5, 128, 128), (40, 384, 512)):
        layer = Linear(inputs, outputs, bias=False)
        x = mx.random.normal((rows, inputs), key=mx.random.key(1))
        residual = mx.random.normal((rows, outputs), key=mx.random.key(2))
        assert mx.allclose(project(layer, x, residual), residual + layer(x), atol=1e-5).item()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("length", [1, 5, 40])
def test_a_mask_with_a_row_for_each_query_is_added_within_its_bounds(length: int) -> None:
    queries, keys = (mx.random.normal((2, 3, size, 8), key=mx.random.key(size)) for size in (length, 12))
    mask = mx.random.normal((2, 3, length, 12), key=mx.random.key(3))
    weights = mx.softmax(queries @ keys.swapaxes(-1, -2) + mask, axis=-1)
    expected = (weights @ keys).transpose(0, 2, 1, 3).reshape(2 * length, 24)
    assert mx.allclose(attend(queries, keys, keys, mask), expected, atol=1e-5).item()
