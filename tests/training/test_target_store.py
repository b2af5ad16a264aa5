"""Stored targets equal computed ones, and damaged files are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from speculative_decoding import InputError
from speculative_decoding.training.teacher import TargetStore, Teacher
from tests.support.training import (
    LAYERS,
    TARGET,
    some_examples,
)


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
    other = r"done\.jsonl was written with other settings \(bytes was .*; give the same settings, or delete .*f$"
    with pytest.raises(InputError, match=other):
        TargetStore(teacher, examples[1:]).keep(tmp_path / "f")
    (tmp_path / "f" / "ids.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"ids\.bin: shorter than"):
        TargetStore(teacher, examples).keep(tmp_path / "f")
    (tmp_path / "f" / "done.jsonl").write_text("my notes\n")
    with pytest.raises(InputError, match=r"done\.jsonl is needed to record what is finished, but is another file"):
        TargetStore(teacher, examples).keep(tmp_path / "f")
