"""Tests of the core that need a room, a folder that can be left out."""

from __future__ import annotations

import pytest

from speculative_decoding.rooms import has_room


def needs_room(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not has_room(name), reason=f"this copy lacks {name}/")
