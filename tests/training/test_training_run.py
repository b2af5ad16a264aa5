"""Whole training runs: the drafts improve, and a killed run gives the same weights."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from speculative_decoding import InputError, Session, load
from speculative_decoding.loading.load import open_model
from speculative_decoding.training import trainer as trainer_module
from speculative_decoding.training.students import ModelStudent
from speculative_decoding.training.teacher import Teacher
from speculative_decoding.training.trainer import Trainer, total_stats
from speculative_decoding.training.training_run import TrainingRun
from tests.support.tiny import CONFIG, save_hugging_face, tiny_model
from tests.support.together import Letters
from tests.support.training import (
    TARGET,
    batch_of,
    frequent_of,
    loss_on,
    run_all,
    training_in,
)


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
    monkeypatch.setattr("speculative_decoding.runs.log.json.dumps", bomb(dumps))
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


def test_work_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    another = r"written by another version; finish the run with that version, or delete .*work$"
    (work / "settings.json").write_text('{"format": 4, "seed": "0"}')  # of an earlier version
    with pytest.raises(InputError, match=another):
        training_in(tmp_path).begin({"seed": "0"}, resume=True)
    (work / "settings.json").unlink()
    (work / "settings.jsonl").write_text('{"version": 4, "settings": {"seed": "0"}}\n')
    with pytest.raises(InputError, match=another):
        training_in(tmp_path).begin({"seed": "0"}, resume=True)
