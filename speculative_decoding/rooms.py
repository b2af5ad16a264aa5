"""Checks which rooms this copy of the package has. A room is a folder that can be left out."""

from pathlib import Path

from .errors import InputError


def has_room(name: str) -> bool:
    return (Path(__file__).parent / name / "__init__.py").is_file()


def require_room(name: str, field: str | None = None) -> None:
    """Raise `InputError` about the option `field` if the folder of a room was left out."""
    if not has_room(name):
        raise InputError(
            f"needs the folder speculative_decoding/{name}, which this copy lacks", field, "install the whole package"
        )
