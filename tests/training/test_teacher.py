"""The teacher labels each position with the target's most likely ids."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding.models import backend
from speculative_decoding.training import teacher as teacher_module
from speculative_decoding.training.teacher import Teacher
from tests.support.training import (
    LAYERS,
    TARGET,
    some_examples,
)


@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize(("vocab_size", "k"), [(20, 20), (1000, 16)])
@pytest.mark.parametrize("gpu", [False, True])
def test_labels_are_the_most_likely_ids(
    gpu: bool, vocab_size: int, k: int, has_ties: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "on_gpu", lambda: gpu)
    logits = np.random.default_rng(1).normal(size=(9, vocab_size)).astype(np.float32)
    logits = logits.round() if has_ties else logits
    ids, probs = teacher_module.most_likely(mx.array(logits), k)
    likeliest = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    kept = np.take_along_axis(logits, ids, axis=-1)
    assert (-np.sort(-kept, axis=-1) == np.take_along_axis(logits, likeliest, axis=-1)).all()
    assert all(len({*row}) == k for row in ids.tolist())
    if not has_ties:
        assert (np.sort(ids, axis=-1) == np.sort(likeliest, axis=-1)).all()
    highest = logits.max(axis=-1, keepdims=True)
    expected = np.exp(kept - highest) / np.exp(logits - highest).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(probs, expected, rtol=1e-3 if gpu else 6e-4)  # half precision


def test_each_example_gets_its_own_targets() -> None:
    """The outputs of a batch differ in length, and the output matrix reads no padding."""
    examples = some_examples(TARGET)[:6]
    teacher = Teacher(TARGET, LAYERS)
    for example, targets in zip(examples, teacher.compute(examples), strict=True):
        alone = teacher.compute([example])[0]
        assert targets.ids.shape == alone.ids.shape == (len(example.output), 16)
        np.testing.assert_allclose(np.sort(targets.probs), np.sort(alone.probs), atol=1e-3)
        np.testing.assert_allclose(targets.hidden, alone.hidden, atol=1e-2)
