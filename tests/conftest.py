"""Chooses the device of the tests, and opens the bundled models once for all tests that do not change them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import mlx.core as mx
import pytest

from speculative_decoding import Session, load
from speculative_decoding.loading.load import BUNDLED
from tests.support.device import use

use(mx.cpu)
os.environ["HF_HUB_OFFLINE"] = "1"  # no test uses the network, except a Hub on loopback (tests/support/hub.py)


@pytest.fixture(params=["cpu", "gpu"] if mx.is_available(mx.gpu) else ["cpu"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test on the CPU, and also on a GPU if there is one."""
    use(getattr(mx, request.param))
    yield request.param
    use(mx.cpu)


@pytest.fixture
def compilation() -> Iterator[None]:
    """Enable `mx.compile` on a Mac's CPU, too. Only the evaluation of fused operations needs a C++ compiler."""
    mx.enable_compile()
    yield
    use(mx.cpu)


@pytest.fixture(scope="session")
def pair() -> Session:
    """The bundled target and draft model. Its tokens are always the same; its speed depends on earlier requests."""
    return load(BUNDLED / "t5-web-docs", draft=BUNDLED / "t5-web-docs-draft")


@pytest.fixture
def new_session(pair: Session) -> Callable[..., Session]:
    """A function that makes a session of the bundled pair that has learned nothing; fields of `Session` may change."""

    def make(**fields: object) -> Session:
        return Session(**{"model": pair.model, "tokenizer": pair.tokenizer, "draft_model": pair.draft_model} | fields)  # type: ignore[arg-type]

    return make
