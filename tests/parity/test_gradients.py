"""Teacher-forced passes: logits and gradients equal Hugging Face's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map

from speculative_decoding.models.base import EncoderDecoder
from tests.parity.test_t5 import GOLDENS as FAMILIES_WITH_GOLDENS
from tests.parity.test_t5 import NOISE, load_golden
from tests.support.device import within
from tests.support.paths import GOLDENS
from tests.support.tiny import tiny_model

SOURCE, MASK = mx.array([[5, 9, 3, 7, 1], [2, 8, 1, 0, 0]]), mx.array([[True] * 5, [True] * 3 + [False] * 2])


def loss_of(source: mx.array, mask: mx.array, tokens: mx.array) -> Callable[[EncoderDecoder], mx.array]:
    """Return a function of a model: the mean cross-entropy of each next token."""

    def loss(model: EncoderDecoder) -> mx.array:
        states = model.teacher_forced(tokens[:, :-1], model.encode(source, mask), mask)
        return nn.losses.cross_entropy(model.logits(states), tokens[:, 1:], reduction="mean")

    return loss


def gradients(model: EncoderDecoder, loss: Callable[[EncoderDecoder], mx.array]) -> tuple[float, dict[str, mx.array]]:
    value, found = nn.value_and_grad(model, loss)(model)
    return value.item(), dict(tree_flatten(found))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("folder", FAMILIES_WITH_GOLDENS, ids=lambda folder: folder.name)
def test_teacher_forced_logits_match_hugging_face(folder: Path) -> None:
    model, golden = load_golden(folder)
    mask = mx.array(golden["attention_mask"]).astype(mx.bool_)
    encoder_output, tokens = model.encode(mx.array(golden["input_ids"]), mask), mx.array(golden["decoder_input_ids"])
    whole = np.array(model.logits(model.teacher_forced(tokens, encoder_output, mask)))
    assert np.abs(whole - golden["logits"]).max() < within(NOISE)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", ["t5", "umt5"])
def test_gradients_match_hugging_face(name: str) -> None:
    """make_gradients.py stores the gradient of every tensor in the checkpoint, including position biases."""
    model, golden = load_golden(GOLDENS / name)
    expected = np.load(GOLDENS / "gradients.npz")
    source, mask, tokens = (mx.array(golden[key]) for key in ("input_ids", "attention_mask", "decoder_input_ids"))
    value, found = gradients(model, loss_of(source, mask.astype(mx.bool_), tokens))
    assert value == pytest.approx(float(expected[f"{name} loss"]), abs=within(1e-5))
    compared = set()
    for path, names in model.parameter_sources(model.config, {"shared.weight"}).items():
        for tensor, share in zip(names, mx.split(found[path], len(names)), strict=True):
            ours, theirs = np.array(share), expected[f"{name} {tensor}"]
            step = len(ours) // 4 if ours.ndim == 2 and ours.shape[1] > 8 else 1
            assert ours[::step].shape == theirs.shape and np.abs(theirs).max() > 1e-3, tensor
            assert np.abs(ours[::step] - theirs).max() < within(1e-4), tensor
            compared.add(f"{name} {tensor}")
    assert compared == {key for key in expected.files if key.startswith(f"{name} ")} - {f"{name} loss"}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("model_type", ["t5", "umt5"])
def test_gradients_include_derived_weights(model_type: str) -> None:
    """Compare before and after cached passes with the same number of positions, and after a weight update."""
    model = tiny_model(model_type=model_type)
    tokens = mx.random.randint(2, 24, (2, 65), key=mx.random.key(1))
    loss = loss_of(SOURCE, MASK, tokens)
    value, before = gradients(model, loss)
    cache = model.make_cache(model.encode(SOURCE, MASK), MASK)
    cached = model.decode(tokens[:, :64], cache)
    assert cache.capacity == 64
    again, after = gradients(model, loss)
    assert again == pytest.approx(value, abs=within(1e-6))
    for path, gradient in before.items():
        assert mx.allclose(gradient, after[path], atol=within(1e-5)), path
        assert mx.abs(gradient).max().item() > 1e-4, path
    model.update(
        tree_map(lambda parameter, slope: parameter - 0.5 * slope, model.parameters(), tree_like(model, after))
    )
    assert loss(model).item() < value
    model.finalize()
    trained = model.decode(tokens[:, :64], model.make_cache(model.encode(SOURCE, MASK), MASK))
    assert mx.abs(trained - cached).max().item() > 1e-3
    whole = model.logits(model.teacher_forced(tokens[:, :64], model.encode(SOURCE, MASK), MASK))
    assert mx.abs(trained - whole).max().item() < within(1e-4)


def tree_like(model: EncoderDecoder, flat: dict[str, mx.array]) -> dict[str, object]:
    paths = iter(path for path, _ in tree_flatten(model.parameters()))
    return tree_map(lambda _: flat[next(paths)], model.parameters())
