"""Tests jobs of a model with an adapter (see tests/unit/loading/test_adapter.py)."""

from __future__ import annotations

from pathlib import Path

from speculative_decoding.loading.load import open_model
from speculative_decoding.loading.pair import fingerprint
from tests.support.tiny import CONFIG, save_hugging_face, tiny_model
from tests.unit.loading.test_adapter import SIZES, matrices, write_adapter


def test_jobs_tell_the_merged_model_from_its_base(tmp_path: Path) -> None:
    base = save_hugging_face(tiny_model(**SIZES), tmp_path / "base", CONFIG | SIZES)
    adapter, other = (write_adapter(tmp_path / f"adapter-{seed}", matrices(seed=seed)) for seed in range(2))
    found = [fingerprint(open_model(base, adapter=each)) for each in (None, adapter, other)]
    assert len(set(found)) == 3
    assert fingerprint(open_model(base, adapter=adapter)) == found[1]
