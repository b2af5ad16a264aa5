"""What holds for all tests."""

from __future__ import annotations

import pytest

from speculative_decoding.cli.tuned import FILE
from speculative_decoding.loading.load import BUNDLED


@pytest.fixture(autouse=True, scope="session")
def untuned() -> None:
    """Commands would take it by themselves, and the tests would test something else."""
    if found := [str(path) for path in BUNDLED.glob(f"t5-web-docs*/{FILE}")]:
        pytest.exit(f"{', '.join(found)}: what tune kept changes what the tests run; move it away first", 1)
