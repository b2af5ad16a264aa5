"""The states in which `kill -9` can leave a folder.

A killed process leaves its files as they are: the system keeps everything written, and buffers of the process are lost.
So a copy of the folder in the middle of a program is such a state. Killing forked children would give the same states,
but processes that use Metal must not fork.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class KillStates:
    """Copies of a folder at chosen moments.

    Attributes:
        paths: The copies made so far.
    """

    def __init__(self, folder: Path, copies: Path) -> None:
        self.paths: list[Path] = []
        self._folder = folder
        self._copies = copies

    def moment(self, *_: object) -> None:
        """Copy the folder."""
        copy = self._copies / str(len(self.paths))
        shutil.copytree(self._folder, copy, symlinks=True)
        self.paths.append(copy)

    def around(self, patch: pytest.MonkeyPatch, place: Any, name: str) -> None:
        """Copy the folder before and after each call of a function."""
        function: Callable[..., Any] = getattr(place, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.moment()
            result = function(*arguments, **options)
            self.moment()
            return result

        patch.setattr(place, name, wrapped)
