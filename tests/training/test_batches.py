"""Batches: states, labels and candidates of every example, and parts for several processes."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import padding_mask
from speculative_decoding.training.batches import (
    LIKELY_CANDIDATES,
    RANDOM_CANDIDATES,
    Sampler,
    make_head_batch,
    make_labels,
)
from speculative_decoding.training.options import BATCH_SIZE
from speculative_decoding.training.students import Student
from speculative_decoding.training.teacher import Teacher
from tests.support.tiny import VOCAB
from tests.support.training import (
    LAYERS,
    TARGET,
    batch_of,
    head_student,
    loss_on,
    model_student,
    some_examples,
)


def test_training_states_equal_drafting_states() -> None:
    """For every anchor, a drafter that reads the same tokens one by one computes the same states."""
    student, examples = head_student(TARGET), some_examples(TARGET)[:6]
    targets = Teacher(TARGET, LAYERS).compute(examples)
    batch = make_head_batch(examples, targets, student.frequent, 0, VOCAB, np.random.default_rng(3))
    states = np.array(student.states(batch)).reshape(*batch.tokens.shape, -1)
    weights = np.array(batch.labels.weights).reshape(batch.tokens.shape)
    head, checked, firsts = student.module, 0, 0
    for b, example in enumerate(examples):
        encoder_output = TARGET.encode(mx.array([example.source]))
        keys, values = TARGET.cross_projections(encoder_output)[-1]
        read = [0, *example.output]
        hidden = TARGET.teacher_forced_hidden(mx.array([read[:-1]]), encoder_output)
        for a in np.flatnonzero(weights[0, b]):
            live = int((weights[:, b, a] > 0).sum())
            tokens = [int(each) for each in np.array(batch.tokens)[:live, b, a]]
            places = [i for i in range(len(example.output)) if read[i : i + live] == tokens]
            expected = []
            for place in places:
                state = head.start_state[None, None]
                if place:
                    state = head.features(
                        mx.concatenate([hidden[layer][:, place - 1 : place] for layer in LAYERS], axis=-1)
                    )
                own = []
                for token in tokens:
                    mask = padding_mask(mx.ones((1, len(example.source)), mx.bool_), mx.float32)
                    state, _ = head.step(TARGET.embed(mx.array([[token]])), state, keys, values, mask)
                    own.append(np.array(head.outputs(state))[0, 0])
                expected.append(np.array(own))
                firsts += place == 0
            assert any(np.allclose(states[:live, b, a], each, atol=2e-2) for each in expected)
            checked += 1
    assert checked > 10 and firsts


def test_labels_are_the_targets_distributions() -> None:
    student, examples = head_student(TARGET), some_examples(TARGET)[:4]
    batch = student.batch(examples, Teacher(TARGET, LAYERS).compute(examples), np.random.default_rng(3))
    candidates = np.array(batch.labels.candidates)
    assert {*map(int, student.frequent)} <= {*map(int, candidates)} and len({*candidates}) == len(candidates)
    assert np.array(batch.labels.weights).sum() == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_allclose(np.array(batch.labels.probs).sum(-1)[np.array(batch.labels.weights) > 0], 1, rtol=1e-3)
    sequences = model_student(TARGET)
    taught = sequences.batch(examples, Teacher(TARGET, ()).compute(examples), np.random.default_rng(3))
    logits = TARGET.logits(TARGET.teacher_forced(taught.tokens, TARGET.encode(taught.source, taught.mask), taught.mask))
    likeliest = np.array(mx.argmax(logits, axis=-1)).ravel()
    best = np.array(taught.labels.probs).argmax(-1)
    ids = np.array(taught.labels.candidates)[np.take_along_axis(np.array(taught.labels.ids), best[:, None], -1)[:, 0]]
    real = np.array(taught.labels.weights) > 0
    assert (ids[real] == likeliest[real]).all()


@pytest.mark.parametrize("make", [head_student, model_student])
def test_mean_loss_of_the_parts_equals_the_loss_of_the_batch(make: Callable[[EncoderDecoder], Student]) -> None:
    """This also holds with more parts than examples."""
    batch = batch_of(student := make(TARGET))
    for size in (2, 4, 7):
        parts = [loss_on(student, batch.part(rank, size)) for rank in range(size)]
        assert np.mean(parts) == pytest.approx(loss_on(student, batch), rel=1e-5) and np.std(parts) > 1e-3


def test_an_epoch_has_every_example_once_and_depends_on_the_seed_only() -> None:
    examples = some_examples(TARGET, 100)
    sampler = Sampler(examples, 3)
    steps = -(-100 // BATCH_SIZE)
    for epoch in range(2):
        seen = [index for step in range(steps) for index in sampler.indices(epoch * steps + step)]
        assert sorted(seen) == list(range(100))
    assert Sampler(examples, 3).indices(7) == sampler.indices(7) != Sampler(examples, 4).indices(7)


def test_label_ids_are_always_candidates_and_every_id_sometimes() -> None:
    frequent, size, rng = np.arange(5, 105, dtype=np.int32), 3000, np.random.default_rng(0)
    ids = rng.integers(0, size, (40, 16)).astype(np.int32)
    probs, written = np.full((40, 16), 1 / 16, np.float32), ids[:, 0]
    seen = set[int]()
    for _ in range(60):
        labels = make_labels(ids, probs, written, np.ones(40, np.float32), frequent, size, rng)
        found: list[int] = labels.candidates.tolist()  # type: ignore[assignment]
        assert len(set(found)) == len(found) == 100 + LIKELY_CANDIDATES + RANDOM_CANDIDATES
        assert found[:100] == frequent.tolist() and set(ids.ravel().tolist()) <= set(found)
        assert [found[i] for i in labels.written.tolist()] == written.tolist()  # type: ignore[index,union-attr]
        seen |= set(found)
    assert seen == set(range(size))
