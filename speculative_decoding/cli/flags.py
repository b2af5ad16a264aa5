"""Flags that several commands share. Each command builds its parser from these flags and its own."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated as A
from typing import Any

from ..errors import InputError, Message, Name
from ..runs.places import NamedFile, folded, require_file, require_writable
from ..sampling import GenerationOptions
from ..sampling.options import is_address
from ..sampling.values import BASIC, Bool, Text
from .parser import File, Parser, add_flags
from .run_config import DraftFlags, ModelFlags

PREFIX = 'text to put before every prompt, such as "translate English to German: "'
FILES_READ = ("draft_vocab_text", "draft_text_file", "memory")  # shared flags that name files
FILES_WRITTEN = ("stats_json", "trace", "ngram_store")


@dataclass(frozen=True)
class RunFlags:
    """Flags of the commands that decode. Each command supports some of them."""

    prefix: A[str, Text(may_be_empty=True), PREFIX, BASIC] = ""
    baseline: A[bool, Bool(), "decode without a draft", BASIC] = False
    stats_json: A[Path | None, File(), "write settings and statistics to this file as JSON"] = None


def add_decoding_flags(
    parser: Parser, title: str = "decoding", *, without: Collection[str] = (), lists: Collection[str] = ()
) -> None:
    """Add the flags of all commands that decode. without, lists: see `add_flags`."""
    add_flags(parser, "models", ModelFlags)
    add_flags(parser, title, GenerationOptions, without=without, lists=lists)
    add_flags(parser, "drafts, stores, memories, calibration", DraftFlags)


def all_but(cls: type, *names: str) -> list[str]:
    """Return the fields of a dataclass of flags except `names`, for use with `add_flags`."""
    return [each.name for each in fields(cls) if each.name not in names]


def check_files(given: Mapping[str, Any], read: Sequence[NamedFile] = (), written: Sequence[NamedFile] = ()) -> None:
    """Raise `InputError` if a file cannot be written, or if another flag names the same file.

    read, written: The files of a command, in addition to `FILES_READ` and `FILES_WRITTEN`. The command replaces the
        files in `written`, so they must be regular files.
    """
    for option, path, _ in read:
        if is_address(path):
            raise InputError(f"{path} is an address, not a file", option, "download it, and name the file")
    for option, path, _ in written:
        require_file(Path(path), option)
    by_flag = {name: given[name] for name in FILES_WRITTEN if name in given}
    for flag, path in by_flag.items():
        require_writable(path, flag)
    used = {identity(file.path): file for file in read}
    for flag in FILES_READ:
        paths = given.get(flag, ())
        used |= {identity(path): NamedFile(flag, path) for path in ([paths] if isinstance(paths, Path) else paths)}
    for file in reversed([*written, *(NamedFile(flag, path) for flag, path in by_flag.items())]):
        other = used.setdefault(identity(file.path), file)
        if other.option != file.option:
            user = Message("{option}{part}", option=Name(other.option), part=other.part)
            problem = Message("{path} is already used by {user}", path=file.path, user=user)
            raise InputError(problem, file.option, "name another")


def identity(path: str | Path) -> object:
    """Return a value that is equal for all paths to a file, links included, even if the file does not exist yet."""
    with suppress(OSError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return folded(os.path.realpath(path))  # also works for a link to itself
