"""Training drafts: gradients, batches, stored targets, resumed runs, and drafts that improve."""

from __future__ import annotations

import json
import random
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from speculative_decoding import CheckpointError, InputError, Session, load
from speculative_decoding.checkpoints.npz import read_npz
from speculative_decoding.decoding.results import GenerationStats
from speculative_decoding.drafters.draft_model import DraftVocabulary
from speculative_decoding.loading.load import WEIGHTS, ModelHandle, open_model
from speculative_decoding.loading.tokenizer import Vocabulary
from speculative_decoding.models import backend
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import padding_mask
from speculative_decoding.models.draft_head import DraftHead, default_layers
from speculative_decoding.training import batches as batches_module
from speculative_decoding.training import command as train_command
from speculative_decoding.training import teacher as teacher_module
from speculative_decoding.training import trainer as trainer_module
from speculative_decoding.training import training_run as training_run_module
from speculative_decoding.training.batches import (
    LIKELY_CANDIDATES,
    RANDOM_CANDIDATES,
    Labels,
    Sampler,
    make_head_batch,
    make_labels,
)
from speculative_decoding.training.loss import training_loss
from speculative_decoding.training.options import BATCH_SIZE, TrainingOptions
from speculative_decoding.training.outputs import Example, output_request, read_outputs, write_outputs
from speculative_decoding.training.students import HeadStudent, ModelStudent, Student
from speculative_decoding.training.target_store import TargetStore
from speculative_decoding.training.teacher import Teacher
from speculative_decoding.training.trainer import Schedule, Trainer, total_stats
from speculative_decoding.training.training_run import TrainingRun
from tests.parity.test_t5 import TEXT_GOLDENS, load_golden
from tests.support import training_process
from tests.support.finite_differences import directional_derivatives
from tests.support.processes import start
from tests.support.tiny import CONFIG, EOS, VOCAB, noisy_copy, save_hugging_face, small_target, tiny_model
from tests.support.together import Letters
from tests.support.training_process import arguments

TARGET = tiny_model(num_layers=3, feed_forward_proj="gelu")
LAYERS = default_layers(3)


def some_examples(target: EncoderDecoder, count: int = 30, seed: int = 0) -> list[Example]:
    """Return random sources and outputs; a student can learn the target's distributions on any text."""
    rng = np.random.default_rng(seed)
    size = target.config.vocab_size
    return [
        Example([*map(int, rng.integers(2, size, 3 + i % 5)), EOS], [*map(int, rng.integers(2, size, 4 + i % 9)), EOS])
        for i in range(count)
    ]


def frequent_of(target: EncoderDecoder) -> Any:
    return np.arange(1, target.config.vocab_size // 2, dtype=np.int32)


def head_student(target: EncoderDecoder) -> HeadStudent:
    layers = default_layers(target.config.decoder_layers)
    frequent = frequent_of(target)
    vocabulary = DraftVocabulary(tuple(map(int, frequent)))
    return HeadStudent(target, DraftHead.for_target(target, layers), frequent, vocabulary)


def model_student(target: EncoderDecoder) -> ModelStudent:
    return ModelStudent(target, tiny_model(5, num_layers=1, feed_forward_proj="gelu"), frequent_of(target))


def batch_of(student: Student) -> Any:
    examples = some_examples(student.target)[3:9]
    targets = Teacher(student.target, LAYERS).compute(examples)
    return student.batch(examples, targets, np.random.default_rng(1))


# Gradients.


def random_labels() -> tuple[mx.array, mx.array, Labels]:
    rng = np.random.default_rng(2)
    ids = np.stack([rng.permutation(20)[:6] for _ in range(10)]).astype(np.int32)
    probs = rng.dirichlet(np.ones(6), 10).astype(np.float32)
    probs[3, 2:], ids[3, 2:] = 0.0, 0  # padding, as in a small vocabulary
    probs /= probs.sum(axis=-1, keepdims=True)
    weights = rng.random(10).astype(np.float32)
    written = rng.integers(0, 20, 10).astype(np.int32)
    arrays = map(mx.array, (np.arange(20), ids, probs, written, weights))
    return mx.array(rng.normal(size=(10, 7))), mx.array(rng.normal(size=(7, 20))), Labels(*arrays)


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


# Batches.


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


@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize(("vocab_size", "k"), [(20, 20), (64, 16), (1000, 16)])
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


def test_stored_targets_equal_computed_targets_after_a_kill(tmp_path: Path) -> None:
    examples = some_examples(TARGET, 70)
    teacher = Teacher(TARGET, LAYERS)
    online, kept = TargetStore(teacher, examples), TargetStore(teacher, examples)

    def kill(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.keep(tmp_path / "f", kill)
    kept.keep(tmp_path / "f")
    assert sum(path.stat().st_size for path in (tmp_path / "f").glob("*.bin")) == kept.nbytes
    for ours, theirs in zip(kept.get([0, 40, 69]), online.get([0, 40, 69]), strict=True):
        np.testing.assert_allclose(ours.hidden, theirs.hidden, atol=1e-2)
        np.testing.assert_allclose(ours.encoder_output, theirs.encoder_output, atol=1e-2)
        np.testing.assert_allclose(np.sort(ours.probs), np.sort(theirs.probs), atol=1e-2)
    with pytest.raises(InputError, match="features of other outputs"):
        TargetStore(teacher, examples[1:]).keep(tmp_path / "f")
    (tmp_path / "f" / "ids.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"ids\.bin: shorter than"):
        TargetStore(teacher, examples).keep(tmp_path / "f")
    (tmp_path / "f" / "done.json").write_text("{")
    with pytest.raises(InputError, match=r"done\.json: damaged"):
        TargetStore(teacher, examples).keep(tmp_path / "f")


# Training runs.


class LetterTarget(Letters):
    """`Letters` with the `vocabulary` property that tokenizers of folders have."""

    @property
    def vocabulary(self) -> Vocabulary:
        return Letters().vocabulary


PROMPTS = {"one": [("abcdefgh"[i % 8 :] + "ab")[: 3 + i % 6] for i in range(40)], "two": ["cab", "dab", "e"] * 6}


def training_in(folder: Path, steps: int = 60, draft: ModelHandle | None = None, **options: Any) -> TrainingRun:
    session = Session(TARGET, LetterTarget())
    own = TrainingOptions(**{"max_tokens": 12, "slots": 8, "held_out": 8, "frequent": 10, "dtype": "float32"} | options)
    return TrainingRun(session, PROMPTS, folder / "work", Schedule(5e-3, steps=steps), own, draft)


def run_all(training: TrainingRun, *, resume: bool = False) -> list[Any]:
    training.begin({"seed": 0}, resume=resume)
    training.write_outputs(lambda done: None)
    if training.keeps_targets:
        training.keep_targets(lambda done: None)
    return list(training.train())


def test_trained_head_improves_and_its_folder_drafts(tmp_path: Path) -> None:
    reports = run_all(training := training_in(tmp_path, steps=100))
    assert reports[-1].loss < reports[0].loss and reports[-1].agreement > 0.5 > reports[0].agreement - 0.2
    measured = training.held_out_stats
    assert set(measured) == {"one", "two"} and min(each.tokens_per_target_call for each in measured.values()) > 1.3
    assert reports[-1].tokens_per_call == total_stats(measured).tokens_per_target_call
    assert training.expected_speedup(2.0) > 0.5 and training.memory_needed > 1e4
    target = save_hugging_face(TARGET, tmp_path / "target", CONFIG | {"num_layers": 3, "feed_forward_proj": "gelu"})
    training.finish(tmp_path / "head", lambda partial: None, steps=100)
    session = load(target)
    head = training.student.draft()
    rounds = Session(session.model, Letters(), head).generate(
        "abcde", drafter="model", num_draft_tokens=4, max_tokens=12
    )
    assert rounds.tokens == Session(session.model, Letters()).generate("abcde", drafter="none", max_tokens=12).tokens
    assert json.loads((tmp_path / "head" / "manifest.json").read_text())["steps"] == 100


def test_distilled_model_improves_and_loads(tmp_path: Path) -> None:
    small = tiny_model(5, num_layers=1, feed_forward_proj="gelu")
    raw = CONFIG | {"num_layers": 1, "feed_forward_proj": "gelu"}
    opened = open_model(save_hugging_face(small, tmp_path / "small", raw))
    opened.load_weights()
    batch = batch_of(student := ModelStudent(TARGET, opened.model, frequent_of(TARGET)))
    before = loss_on(student, batch)
    run_all(training := training_in(tmp_path, steps=60, draft=opened))
    assert loss_on(student, batch) < 0.8 * before
    training.finish(tmp_path / "distilled", lambda partial: None)
    model, _ = load(tmp_path / "distilled")
    for (path, ours), (_, theirs) in zip(
        tree_flatten(model.parameters()), tree_flatten(opened.model.parameters()), strict=True
    ):
        assert mx.allclose(ours, theirs), path


def test_sampled_share_depends_on_seed_and_index_only(tmp_path: Path) -> None:
    session, prompts = Session(TARGET, LetterTarget()), ["abcdefgh"[i % 7 : i % 7 + 2] for i in range(24)]

    def outputs(name: str, share: float, seed: int = 0, slots: int = 5) -> dict[int, Example]:
        (tmp_path / name).mkdir(exist_ok=True)
        options = TrainingOptions(seed=seed, max_tokens=8, slots=slots, sampled_share=share)
        return write_outputs(session, prompts, tmp_path / name, options)

    greedy, half = outputs("greedy", 0.0), outputs("half", 0.5)
    options = TrainingOptions(sampled_share=0.5)
    drawn = {i for i in range(24) if "temperature" in output_request(options, i, "")}
    assert 6 <= len(drawn) <= 18 and {i for i in greedy if greedy[i] != half[i]} <= drawn
    assert len({tuple(half[i].output) for i in drawn}) > len({tuple(greedy[i].output) for i in drawn})
    for i in drawn:
        single = session.generate(drafter="none", max_tokens=8, **output_request(options, i, prompts[i]))
        assert half[i].output == list(single.tokens)
    path = tmp_path / "half" / "outputs.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:9]))
    assert outputs("half", 0.5, slots=3) == half != outputs("other", 0.5, seed=1)


def loss_on(student: Student, batch: Any) -> float:
    return training_loss(
        student.states(batch), student.output_matrix(batch), batch.labels, total_variation=False
    ).item()  # type: ignore[return-value]


def weights_of(training: TrainingRun) -> list[Any]:
    return [np.array(array) for _, array in tree_flatten(training.student.module.parameters())]


@pytest.mark.slow
def test_run_killed_at_random_moments_gives_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(trainer_module, "REPORT_STEPS", 4)
    run_all(undisturbed := training_in(tmp_path / "a", steps=24, held_out=0))
    rng, left = random.Random(4), [0]

    def bomb(function: Callable[..., Any]) -> Callable[..., Any]:
        def exploding(*arguments: Any, **keywords: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return function(*arguments, **keywords)

        return exploding

    for owner, name in ((Trainer, "_take_step"), (Teacher, "compute"), (trainer_module, "write_npz")):
        monkeypatch.setattr(owner, name, bomb(getattr(owner, name)))
    dumps = json.dumps
    monkeypatch.setattr("speculative_decoding.training.outputs.json.dumps", bomb(dumps))
    kills = 0
    while kills < 60:
        left[0] = rng.randrange(3, 16)
        training = training_in(tmp_path / "b", steps=24, held_out=0)
        try:
            run_all(training, resume=True)
            break
        except KeyboardInterrupt:
            kills += 1
    assert 10 < kills < 60
    for ours, theirs in zip(weights_of(training), weights_of(undisturbed), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("folder", TEXT_GOLDENS, ids=lambda folder: folder.name)
def test_five_steps_lower_the_loss(folder: Path, tmp_path: Path) -> None:
    target, _ = load_golden(folder)
    student, examples = head_student(target), some_examples(target)
    store = TargetStore(Teacher(target, student.module.config.layers), examples)
    schedule = Schedule(3e-3, steps=5)
    trainer = Trainer(student, store, Sampler(examples, 0), schedule, Session(target, Letters()), {}, tmp_path / "c")
    batch = student.batch(examples[:12], store.get(range(12)), np.random.default_rng(1))

    before = loss_on(student, batch)
    assert len(list(trainer.run())) == 1
    assert loss_on(student, batch) < before


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[list[int], str]]]:
    """Train with one process and with two. Return the folder, and the statuses and stderr of the two processes."""
    folder = tmp_path_factory.mktemp("processes")
    small_target(folder)
    (folder / "prompts.txt").write_text("".join(f"{'abcdefgh'[i % 8 :]}{'ab' * (i % 3)}\n" for i in range(27)))
    started = start(2, folder, training_process.main, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches_module, "LIKELY_CANDIDATES", 4)
        patch.setattr(batches_module, "RANDOM_CANDIDATES", 4)
        patch.setattr(train_command, "plot_curves", lambda *_: None)
        status = train_command.main(arguments(folder, "one"))
    for process in started:
        process.join()
    assert status == 0
    texts = ([(folder / f"{name}-{rank}").read_text() for name in ("out", "said")] for rank in range(2))
    return folder, [(json.loads(out.splitlines()[-1]), said) for out, said in texts]


@pytest.mark.slow
def test_two_processes_give_the_weights_of_one(two_processes: tuple[Path, list[tuple[list[int], str]]]) -> None:
    """25 examples make a batch of 24 and a batch of one, which leaves the second process without examples."""
    folder, said = two_processes
    found = {name: weights_in(folder / name) for name in ("one", "two", "unaveraged")}
    assert [statuses[:2] for statuses, _ in said] == [[0, 0], [0, 0]]
    assert "2 processes" in said[0][1] and "written to" in said[0][1] and "written" not in said[1][1]
    apart = {name: max(np.abs(a - b).max() for a, b in zip(found["one"], found[name], strict=True)) for name in found}
    assert apart["two"] < 1e-5 < 1e-3 < apart["unaveraged"]
    outputs = [(folder / f"{name}.training").glob("outputs*.jsonl") for name in ("one", "two")]
    one, two = (sorted(line for path in paths for line in path.read_text().splitlines()) for paths in outputs)
    assert one == two and (folder / "two.training" / "outputs-1.jsonl").stat().st_size


@pytest.mark.slow
def test_failing_process_ends_the_others(two_processes: tuple[Path, list[tuple[list[int], str]]]) -> None:
    _, said = two_processes
    assert [statuses[2] for statuses, _ in said] == [2, 2]
    assert "No space left on device" in said[0][1] and "training: another process has ended" in said[1][1]


def weights_in(folder: Path) -> list[Any]:
    return [array for _, array in sorted(np.load(folder / WEIGHTS).items())]


# Errors.


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str]]]:
    (tmp_path / "prompts.txt").write_text("a\n" * 40)
    small_target(tmp_path)

    def call(*arguments: str, **changes: str) -> tuple[int, str]:
        flags = {"model": str(tmp_path / "target"), "output": str(tmp_path / "head"), "steps": "4"} | changes
        words = [word for name, value in flags.items() if value for word in (f"--{name.replace('_', '-')}", value)]
        parts = ["--prompts", str(tmp_path / "prompts.txt"), "--max-tokens", "6", *words, *arguments]
        status = train_command.main(parts)
        return status, capsys.readouterr().err

    return call  # type: ignore[return-value]


def test_command_writes_a_draft_head_and_resumes(command: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    status, err = command()
    assert status == 0 and "tokens per target call with 7 draft tokens" in err and "stored on disk" in err
    assert (tmp_path / "head" / "curves.png").stat().st_size > 1000
    assert isinstance(load(tmp_path / "target", draft=tmp_path / "head").draft_model, DraftHead)
    status, err = command()
    assert status == 2 and "already exists; name another folder, or replace it with --force" in err
    status, err = command("--force")
    assert status == 2 and "holds an unfinished training; continue with --resume" in err
    status, err = command("--force", "--resume", seed="3")
    assert status == 2 and "seed is '3', was '0'" in err
    status, err = command("--force", "--resume", sampled_share="0.5")
    assert status == 2 and "sampled_share is '0.5', was '0.0'" in err
    (tmp_path / "prompts.txt").write_text("a\n" * 39 + "b\n")
    status, err = command("--force", "--resume")
    assert status == 2 and "needs the options that this training was started with (prompts is [" in err
    (tmp_path / "prompts.txt").write_text("a\n" * 40)
    status, err = command("--force", "--resume", max_disk_gb="0")
    assert status == 0 and "resuming after step 4" in err and "computed when needed" in err
    path = tmp_path / "head.training" / "checkpoint.npz"
    path.write_bytes(path.read_bytes()[:-100])
    status, err = command("--force", "--resume")
    assert status == 2 and "checkpoint.npz" in err and err.count("error:") == 1
    assert isinstance(load(tmp_path / "target", draft=tmp_path / "head").draft_model, DraftHead)


def test_training_continues_from_a_head(
    command: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_command, "plot_curves", lambda *_: None)
    assert command(dtype="float32")[0] == 0
    begun, after = tmp_path / "head", tmp_path / "after"
    still = {"draft_model": str(begun), "learning_rate": "1e-12", "dtype": "float32"}
    assert command(output=str(after), **still)[0] == 0
    old, new = (read_npz(folder / "weights.npz") for folder in (begun, after))
    assert all(mx.allclose(old[name], new[name], rtol=1e-5, atol=1e-6) for name in old)
    first = DraftHead.for_target(load(tmp_path / "target").model, LAYERS)
    assert not mx.allclose(old["wo.weight"], first.wo.weight, rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"steps": ""}, "--minutes and --steps: give exactly one of them"),
        ({"minutes": "1"}, "--minutes and --steps: give exactly one of them"),
        ({"kind": "model"}, "--kind: model needs a small model"),
        ({"draft_model": "nowhere"}, "--draft-model: model 'nowhere' is neither a folder"),
        (
            {"draft_model": "models/t5-web-docs-draft"},
            "t5-web-docs-draft is of the wrong kind (got a model, expected a draft head); name another",
        ),
        ({"draft_model": "models/t5-web-docs-head"}, "belongs to another target"),
        (
            {"draft_model": "models/t5-web-docs-head", "model": "t5-web-docs", "kind": "model"},
            "wrong kind (got a draft head, expected a model)",
        ),
        ({"model": ""}, "--model and --output: both are required"),
        ({"model": "nowhere"}, "--model: model 'nowhere' is neither a folder"),
        ({"prompts": "nowhere.txt"}, "--prompts: nowhere.txt: not readable"),
        ({"held_out": "40", "max_tokens": "2"}, ""),
    ],
    ids=str,
)
def test_wrong_options_are_one_line_errors(
    command: Callable[..., tuple[int, str]], changes: dict[str, str], named: str
) -> None:
    status, err = command(**changes)
    if named:
        assert status == 2 and named in err and err.count("\n") == 1


def test_full_disk_is_a_one_line_error(
    command: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    work = tmp_path / "head.training"
    for most, missing in (
        (100, "settings.json"),
        (600, "features"),
        (4_000, "features/done.json"),
        (30_000, "c*npz"),
    ):
        with largest_file(most):  # settings, outputs, features, checkpoint
            status, err = command("--resume", "--force")
        assert status == 2 and "File too large" in err.splitlines()[-1] and not [*work.glob(missing)]
    monkeypatch.setattr(training_run_module, "write_draft_head", full)
    status, err = command("--resume", "--force")
    assert status == 2 and "No space left on device" in err.splitlines()[-1]
    assert not (tmp_path / "head").exists()


@contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_damaged_outputs_are_refused_and_an_incomplete_line_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "outputs.jsonl"
    path.write_text("[0, [3, 1], [4, 1]]\n[1]\n[2, [3")
    assert read_outputs(path, VOCAB) == {0: Example([3, 1], [4, 1]), 1: None}
    assert path.read_text().endswith("[1]\n")
    for line in ("[0, [3], 5]", "nonsense", "[0, [-1], [2]]", f"[0, [2], [{VOCAB}]]", "{}"):
        path.write_text(f"[1]\n{line}\n")
        with pytest.raises(InputError, match="line 2: damaged"):
            read_outputs(path, VOCAB)


def test_checkpoint_of_another_student_is_refused(tmp_path: Path) -> None:
    run_all(training := training_in(tmp_path, steps=4))
    training.work.joinpath("checkpoint.npz").rename(tmp_path / "other.npz")
    other = noisy_copy(tiny_model(d_model=8))
    student = head_student(other)
    store = TargetStore(Teacher(other, student.module.config.layers), some_examples(other))
    parts = student, store, Sampler(store.examples, 0), Schedule(1e-3, steps=9), Session(other, Letters()), {}
    with pytest.raises(CheckpointError, match="not a checkpoint of this training"):
        Trainer(*parts, tmp_path / "other.npz").resume()


def test_work_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for saved in ({"seed": "0"}, {"format": 2, "seed": "0"}):  # of 0.1.0, of 0.2.0
        (work / "settings.json").write_text(json.dumps(saved))
        with pytest.raises(InputError, match="holds an unfinished training of another version of this package"):
            training_in(tmp_path).begin({"seed": "0"}, resume=True)
    (work / "settings.json").write_text('{"seed": ')
    with pytest.raises(InputError, match="damaged"):
        training_in(tmp_path).begin({"seed": "0"}, resume=True)


@pytest.mark.parametrize(("speedup", "is_slow"), [(0.9, True), (1.4, False)])
def test_a_draft_that_is_slower_than_none_says_so(
    speedup: float, is_slow: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run: Any = SimpleNamespace(
        held_out_stats={"a.txt": GenerationStats(generated_tokens=9, target_calls=3)},
        expected_speedup=lambda tokens: speedup,
        trainer=SimpleNamespace(step=1, positions=1, seconds=1.0, history=[]),
        finish=lambda *arguments, **facts: None,
        work=tmp_path,
    )
    train_command.finish(run, tmp_path / "head", "target")
    err = capsys.readouterr().err
    assert ("note: for a.txt, this draft is slower than no draft on this device; train it longer" in err) == is_slow
