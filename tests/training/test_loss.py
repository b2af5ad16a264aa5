"""The loss equals sums over dense distributions, and its gradients equal finite differences."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from speculative_decoding.models import backend
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.training.loss import training_loss
from speculative_decoding.training.students import Student
from tests.support.finite_differences import directional_derivatives
from tests.support.training import (
    TARGET,
    batch_of,
    head_student,
    model_student,
    random_labels,
)


def test_loss_equals_sums_over_dense_distributions() -> None:
    states, matrix, labels = random_labels()
    q = np.array(mx.softmax(states @ matrix, axis=-1)).astype(np.float64)
    kl = tv = ce = 0.0
    for i, weight in enumerate(np.array(labels.weights)):
        p = np.zeros(20)
        for token, chance in zip(np.array(labels.ids)[i], np.array(labels.probs)[i], strict=True):
            p[token] += chance
        ce -= weight * np.log(q[i, int(labels.written[i].item())])
        kl += weight * sum(x * np.log(x / y) for x, y in zip(p, q[i], strict=True) if x > 0)
        tv += weight * 0.5 * np.abs(p - q[i]).sum()
    found = [training_loss(states, matrix, labels, total_variation=each).item() for each in (False, True)]
    assert found == pytest.approx([0.1 * ce + 0.9 * kl, 0.1 * ce + 0.9 * tv], rel=1e-4)


@pytest.mark.parametrize("make", [head_student, model_student])
def test_gradients_match_finite_differences(make: Callable[[EncoderDecoder], Student]) -> None:
    """Compare slopes along random directions through all parameters; see `finite_differences`."""
    student = make(TARGET)
    batch, start = batch_of(student), student.module.trainable_parameters()

    def loss(parameters: Any) -> mx.array:
        student.module.update(parameters)
        arrays = student.states(batch), student.output_matrix(batch), batch.labels
        return training_loss(*arrays, total_variation=False, trains_output_matrix=student.trains_output_matrix)

    def exactly(parameters: Any) -> float:
        student.module.update(parameters)
        logits = np.array(student.states(batch)).astype(np.float64) @ np.array(student.output_matrix(batch)).astype(
            np.float64
        )
        chances = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        labels = [np.array(each) for each in batch.labels[1:]]
        found = np.take_along_axis(chances, labels[0], -1)
        kl = (labels[1] * (np.log(np.maximum(labels[1], 1e-9)) - found)).sum(-1)
        ce = -np.take_along_axis(chances, labels[2][:, None], -1)[:, 0]
        return float((labels[3] * (0.9 * kl + 0.1 * ce)).sum())

    value, gradients = mx.value_and_grad(loss)(start)
    assert value.item() == pytest.approx(exactly(start), abs=1e-5)
    for ours, theirs in directional_derivatives(exactly, start, dict(tree_flatten(gradients)), 3):
        assert ours == pytest.approx(theirs, abs=3e-5) and abs(ours) > 3e-4


GATHERED = {"embedding.weight", "encoder.position_biases.weight", "decoder.position_biases.weight", "head.weight"}


@pytest.mark.parametrize(("make", "gathered"), [(head_student, set()), (model_student, GATHERED)])
def test_gradients_that_a_gpu_adds_in_any_order(
    make: Callable[[EncoderDecoder], Student], gathered: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """These parameters are gathered, so their gradients are scattered. docs/training.md names all but the head.

    The ids of the head are distinct, so its gradient has one addend per value.
    """
    monkeypatch.setattr(backend, "on_gpu", lambda: True)
    student = make(TARGET)
    batch = batch_of(student)

    def loss(parameters: Any) -> mx.array:
        student.module.update(parameters)
        return training_loss(student.states(batch), student.output_matrix(batch), batch.labels, total_variation=True)

    def scatters(array: mx.array) -> int:
        mx.export_to_dot(str(tmp_path / "graph.dot"), array)
        return len(re.findall(r"\bScatter\b", (tmp_path / "graph.dot").read_text()))

    value, gradients = mx.value_and_grad(loss)(student.module.trainable_parameters())
    in_loss = scatters(value)
    assert {name for name, array in tree_flatten(gradients) if scatters(array) > in_loss} == gathered
