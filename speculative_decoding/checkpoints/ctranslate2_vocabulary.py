"""The vocabulary files beside a CTranslate2 model: one token per line, or a JSON list. A token's position is its id."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import CheckpointError
from .argos_metadata import MODEL_FOLDER
from .files import open_regular

SHARED = ("shared_vocabulary.json", "shared_vocabulary.txt")
SEPARATE = ("source_vocabulary.json", "source_vocabulary.txt", "source_1_vocabulary.json", "source_1_vocabulary.txt")
SPEECH = ("vocabulary.json", "vocabulary.txt")  # of Whisper
END_OF_TEXT, START_OF_TRANSCRIPT = "<|endoftext|>", "<|startoftranscript|>"  # tokens of Whisper
MAX_BYTES = 32 << 20
MAX_TOKENS = 1 << 20
MAX_TOKEN = 4096  # bytes; see `MAX_PIECE` in loading/tokenizer_checks.py


def find_vocabulary(folder: Path) -> Path | None:
    """Return the vocabulary file of a model folder or an Argos Translate package, or None."""
    paths = (parent / name for parent in (folder, folder / MODEL_FOLDER) for name in SHARED)
    return next(filter(Path.is_file, paths), None)


def find_separate(folder: Path) -> Path | None:
    """Return the vocabulary file of the sources of a model folder, or None."""
    return next((path for name in SEPARATE if (path := folder / name).is_file()), None)


def find_speech_vocabulary(folder: Path) -> Path | None:
    """Return the vocabulary file of a Whisper folder, or None."""
    return next((path for name in SPEECH if (path := folder / name).is_file()), None)


def read_vocabulary(path: Path, unknown: str) -> list[str]:
    """Return the tokens in the order of their ids. `unknown` is appended if it is missing, as in CTranslate2.

    Raises `CheckpointError` for a file that is damaged or too large.
    """
    with open_regular(path, MAX_BYTES) as file:
        data = file.read(MAX_BYTES)
    try:
        is_json = path.suffix == ".json"
        # A bound that needs no memory. Tokens may be commas.
        if data.count(b"," if is_json else b"\n") > 2 * MAX_TOKENS:
            raise ValueError(f"more than {MAX_TOKENS} tokens")
        tokens = json_tokens(data) if is_json else text_tokens(data)
        if not 0 < len(tokens) <= MAX_TOKENS:
            raise ValueError(f"{len(tokens)} tokens, expected 1 to {MAX_TOKENS}")
        if max(map(len, tokens)) > MAX_TOKEN:
            raise ValueError(f"a token is longer than {MAX_TOKEN} characters")
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a readable vocabulary ({error})") from error
    return tokens if unknown in tokens else [*tokens, unknown]


def json_tokens(data: bytes) -> list[str]:
    tokens = json.loads(data)
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ValueError("not a list of strings")
    "".join(tokens).encode()  # JSON can contain halves of surrogate pairs, which no text contains
    return tokens


def text_tokens(data: bytes) -> list[str]:
    """Split lines at line feeds only. A carriage return is part of a token, unless every line ends with one."""
    lines = data.decode("utf-8").split("\n")
    if not lines[-1]:
        lines.pop()
    if all(line.endswith("\r") for line in lines):
        lines = [line[:-1] for line in lines]
    return lines
