"""Checks which optional subpackages this copy of the package has: folders that can be left out."""

from pathlib import Path

from .errors import InputError


def has_subpackage(name: str) -> bool:
    return (Path(__file__).parent / name / "__init__.py").is_file()


def require_subpackage(name: str, field: str | None = None) -> None:
    """Raise `InputError` about the option `field` if the folder of an optional subpackage was left out."""
    if not has_subpackage(name):
        raise InputError(
            f"needs the folder speculative_decoding/{name}, which this copy lacks", field, "install the whole package"
        )
