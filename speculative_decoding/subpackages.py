"""The optional subpackages: folders of this package that can be left out."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any, NamedTuple

from .errors import InputError


def has_subpackage(name: str) -> bool:
    return (Path(__file__).parent / name / "__init__.py").is_file()


def require_subpackage(name: str, field: str | None = None) -> None:
    """Raise `InputError` naming the option `field` if an optional subpackage's folder was left out."""
    if not has_subpackage(name):
        raise InputError(
            f"needs the folder speculative_decoding/{name}, which this copy lacks", field, "install the whole package"
        )


def lazy_module(name: str, field: str) -> ModuleType:
    """Return a stand-in for a module of an optional subpackage. A class body assigns the module's functions as methods.

    Args:
        name: The module's name, relative to this package.
        field: The argument that the error names if the subpackage was left out.
    """
    module = ModuleType(name)
    module.__getattr__ = partial(LazyMethod, name, field)  # type: ignore[method-assign]  # PEP 562
    return module


class LazyMethod(NamedTuple):
    """A method that is a function of a `lazy_module`. Accessing it imports the module, so `help` shows the function."""

    module: str
    field: str
    function: str

    def __get__(self, instance: object, owner: type) -> Any:
        require_subpackage(self.module.split(".")[0], self.field)
        function = getattr(import_module(f".{self.module}", __package__), self.function)
        return function if instance is None else MethodType(function, instance)
