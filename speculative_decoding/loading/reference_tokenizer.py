"""Reads a tokenizer with the library that defines its format: transformers, or SentencePiece for bare models.

No code from the folder is executed: transformers reads a temporary folder that contains only data, without `auto_map`.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
import warnings
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..checkpoints.argos_metadata import METADATA
from ..checkpoints.files import open_regular, read_json_object
from ..errors import InputError
from ..sampling.options import short_repr
from .ctranslate2_tokenizer import SEPARATE_MODELS, SHARED_MODELS, WAY_OUT, ModelVocabulary, read_beside_vocabulary
from .hub import require_address
from .languages import Languages
from .sentencepiece_tokenizer import read_sentencepiece
from .tokenizer_base import (
    MAX_FILE_BYTES,
    SENTENCEPIECE,
    SIDE_FILES,
    TOKENIZER_FILES,
    FastTokenizer,
    FolderTokenizer,
    read_backend,
    tokenizer_errors,
)
from .tokenizer_checks import check_added_tokens, check_sentencepiece, check_tokenizer_json, check_vocabulary
from .tokenizer_settings import family_config, languages_of, model_type_of, settings_of, tokenizer_class

BYTES = "ByT5Tokenizer"  # a tokenizer class that needs no files
MAX_EXTRA_IDS = 1 << 11  # T5 has 100; loading time in transformers is quadratic in this number
MODEL_TYPE = re.compile(rb'"model"\s*:\s*\{\s*"type"\s*:\s*"(\w+)"')


def read_reference(folder: Path) -> FolderTokenizer:
    """Read a folder's tokenizer. tokenizer.json takes precedence over other vocabularies. Raises `InputError`."""
    vocabulary = ModelVocabulary.find(folder)
    check_files(folder, vocabulary)
    check_contents(folder)
    if not (folder / "tokenizer.json").is_file():
        if (tokenizer := read_model_files(folder, vocabulary)) is not None:
            return tokenizer
        if vocabulary is not None:
            require_class(folder, vocabulary)
    tokenizer = read_with_transformers(folder, vocabulary)
    if vocabulary is not None:
        vocabulary.check(tokenizer)
    return tokenizer


def read_model_files(folder: Path, vocabulary: ModelVocabulary | None) -> FolderTokenizer | None:
    """Read the files of a folder without its tokenizer.json. Returns None if transformers must read them."""
    if vocabulary is None:
        return read_sentencepiece(folder)
    from .argos_bpe import read_bpe

    return read_bpe(folder, vocabulary) or read_beside_vocabulary(folder, vocabulary)


def require_class(folder: Path, vocabulary: ModelVocabulary) -> None:
    """Raise `InputError` if nothing tells how to read the files beside a CTranslate2 vocabulary."""
    if not vocabulary.family_config(folder):
        found = ", ".join(
            {vocabulary.path.name: None} | {name: None for name in TOKENIZER_FILES if (folder / name).is_file()}
        )
        needed = ", ".join(("tokenizer.json", *SHARED_MODELS, " and ".join(SEPARATE_MODELS)))
        is_inside = folder.name == "model" and (folder.parent / METADATA).is_file()
        way_out = f"name its package, {folder.parent}" if is_inside else WAY_OUT
        raise InputError(f"{folder}: found {found}, but no tokenizer (expected one of {needed})", way_out=way_out)


def check_files(folder: Path, vocabulary: ModelVocabulary | None = None) -> None:
    """Raise `InputError` for a folder without tokenizer files, or with files that are too large or hostile."""
    found = [folder / name for name in TOKENIZER_FILES if (folder / name).exists()]
    for path in found:
        open_regular(path, MAX_FILE_BYTES).close()
    if not found and vocabulary is None and tokenizer_class(folder) != BYTES:
        raise InputError(f"{folder}: no tokenizer found; add tokenizer.json, or the files that it was made from")
    for path in found:
        if path.name in SIDE_FILES:
            with tokenizer_errors(f"{path}: not readable"):
                check_added_tokens(read_json_object(path))


def check_contents(folder: Path) -> None:
    """Raise `InputError` for files that the tokenizer libraries cannot read safely."""
    settings = settings_of(path := folder / "tokenizer_config.json")
    for name in ("extra_ids", "offset"):  # the libraries create this many pieces
        count = settings.get(name)
        if not (count is None or (type(count) is int and 0 <= count <= MAX_EXTRA_IDS)):
            raise InputError(f"{path}: {name!r} must be a whole number, 0 to {MAX_EXTRA_IDS}, not {short_repr(count)}")
    checks = {"tokenizer.json": (check_tokenizer_json, "tokenizer")}
    checks |= {name: (check_sentencepiece, "SentencePiece model") for name in (*SENTENCEPIECE, "sentencepiece.model")}
    checks |= {name: (check_vocabulary, "vocabulary") for name in ("vocab.json", "merges.txt", "vocab.txt", "dict.txt")}
    for name, (check, content) in checks.items():
        if (path := folder / name).is_file():
            with tokenizer_errors(f"{path}: not a readable {content}"):
                check(path.read_bytes())


def read_with_transformers(folder: Path, vocabulary: ModelVocabulary | None = None) -> FolderTokenizer:
    """Read a folder with `AutoTokenizer`.

    The class that a folder names, or that its `model_type` implies, always builds one type of model, such as BPE.
    transformers 5 does not check that the model in tokenizer.json is of this type. If it is not, the general class
    `PreTrainedTokenizerFast` reads the file.
    """
    require_address()
    with quiet():  # on import, transformers reports that torch is missing
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

    stated = stated_model(folder / "tokenizer.json")
    classes: list[Any] = [AutoTokenizer] if stated is None else [AutoTokenizer, PreTrainedTokenizerFast]
    reason = ""
    with data_only(folder, vocabulary) as data, quiet():
        for each in classes:
            try:
                loaded = each.from_pretrained(data, local_files_only=True, trust_remote_code=False)
                pieces, added = loaded.get_vocab(), loaded.added_tokens_decoder
            except BaseException as error:
                if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                    raise
                reason = reason or next(iter(str(error).strip().splitlines()), type(error).__name__)
                continue
            if stated is None or (loaded.is_fast and type(loaded.backend_tokenizer.model).__name__ == stated):
                break
        else:
            if (path := folder / "tokenizer.json").is_file():
                read_backend(path.read_bytes(), path)  # if the file is damaged, this raises an error that names it
            reason = reason.replace(str(data), str(folder))
            raise InputError(f"{folder}: its tokenizer cannot be loaded ({reason})")
    languages, cleans_up = languages_of(added, folder), cleans_up_spaces(loaded, folder)
    if loaded.is_fast:
        return FastTokenizer(loaded.backend_tokenizer, languages, cleans_up)
    return PythonTokenizer(loaded, pieces, languages, cleans_up)


def stated_model(path: Path) -> str | None:
    """Return the type of a tokenizer.json's model, such as "BPE", or None if the file does not specify it."""
    found = MODEL_TYPE.findall(path.read_bytes()) if path.is_file() else []
    return found[-1].decode() if found else None


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress libraries' notes and warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def data_only(folder: Path, vocabulary: ModelVocabulary | None = None) -> Iterator[Path]:
    """Yield a folder with only a tokenizer's data: no Python files, and no fields that name code or other files."""
    with ExitStack() as stack:
        try:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            copy_data(folder, data, vocabulary)
        except OSError as error:
            raise InputError(
                f"{folder}: its tokenizer's files cannot be copied to a temporary folder ({error.strerror or error})",
                way_out="free space, or let TMPDIR name another folder",
            ) from error
        yield data


def copy_data(folder: Path, data: Path, vocabulary: ModelVocabulary | None = None) -> None:
    """Copy the files that define a tokenizer, leaving out fields that name code or other files."""
    for path in (folder / name for name in TOKENIZER_FILES if (folder / name).is_file()):
        if path.name == "tokenizer_config.json":
            settings = {key: value for key, value in read_json_object(path).items() if not names_a_file(key)}
            (data / path.name).write_text(json.dumps(settings), encoding="utf-8")
        elif path.name == "special_tokens_map.json":
            (data / path.name).write_text(json.dumps(with_tokens_of_version_5(path)), encoding="utf-8")
        elif path.suffix == ".json" and (content := path.read_bytes()).startswith(BOM_UTF8):
            (data / path.name).write_bytes(content.removeprefix(BOM_UTF8))
        else:
            (data / path.name).symlink_to(path.resolve())
    family = family_config(folder) if vocabulary is None else vocabulary.family_config(folder)
    (data / "config.json").write_text(json.dumps(family), encoding="utf-8")


def with_tokens_of_version_5(path: Path) -> dict[str, Any]:
    """Read special_tokens_map.json, and rename its list of additional tokens if transformers 5 requires that.

    Version 5 reads a list of objects, such as CodeT5's, only under the new name, and ignores it if
    tokenizer_config.json contains a list under either name.
    """
    content = read_json_object(path)
    tokens = content.get("additional_special_tokens")
    settings = settings_of(path.with_name("tokenizer_config.json"))
    has_list = any(name in settings for name in ("additional_special_tokens", "extra_special_tokens"))
    if isinstance(tokens, list) and any(isinstance(each, dict) for each in tokens) and not has_list:
        del content["additional_special_tokens"]
        content["extra_special_tokens"] = [
            {key: value for key, value in each.items() if key not in ("special", "__type")}
            if isinstance(each, dict)
            else each
            for each in tokens
        ]
    return content


def names_a_file(key: str) -> bool:
    """Whether a field of tokenizer_config.json names code, a template or another file."""
    return key in ("auto_map", "chat_template", "custom_pipelines", "name_or_path") or key.endswith(("_file", "_files"))


def cleans_up_spaces(loaded: Any, folder: Path) -> bool:
    """Return whether transformers cleans up decoded text. BPE and Whisper models are excluded."""
    if model_type_of(folder) == "whisper" or not loaded.clean_up_tokenization_spaces:
        return False
    is_bpe = loaded.is_fast and type(loaded.backend_tokenizer.model).__name__ == "BPE"
    return not is_bpe or bool(loaded.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output)


class PythonTokenizer(FolderTokenizer):
    """A tokenizer implemented in Python by transformers, such as ByT5's."""

    def __init__(self, loaded: Any, pieces: dict[str, int], languages: Languages | None, cleans_up: bool) -> None:
        super().__init__(pieces, languages, cleans_up)
        self._loaded = loaded

    def _encode(self, text: str, *, add_special_tokens: bool, as_output: bool = False) -> list[int]:
        texts = {"text_target" if as_output else "text": text}
        return list(self._loaded(**texts, add_special_tokens=add_special_tokens).input_ids)

    def _decode(self, tokens: list[int]) -> str:
        return str(self._loaded.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))
