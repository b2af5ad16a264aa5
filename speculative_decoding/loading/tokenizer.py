"""Text to token ids and back, and streamed text. Knows nothing of models."""

from __future__ import annotations

import hashlib
import warnings
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from ..checkpoints.files import open_regular, read_json_object
from ..errors import InputError
from ..sampling.options import short_repr
from .languages import Languages
from .tokenizer_checks import check_sentencepiece, check_tokenizer_json

SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model")  # T5 and Pegasus; mBART, M2M-100 and NLLB-200
OTHER_SENTENCEPIECE = ("sentencepiece.model", "source.spm", "target.spm", "tokenizer.model")
# Every file that a tokenizer may use. Conversion copies the existing ones.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    *SENTENCEPIECE,
    *OTHER_SENTENCEPIECE,
    "vocab.json",
    "merges.txt",
)
MAX_EXTRA_IDS = 1 << 16
REPLACEMENT = "\ufffd"  # decoding an incomplete character yields this


class Tokenizer(Protocol):
    """The interface that the package requires of a tokenizer."""

    @property
    def languages(self) -> Mapping[str, int]:
        """Language code -> token, such as `deu_Latn`. Empty for models without language tokens."""

    def encode(self, text: str, language: str | None = None) -> list[int]:
        """Return the encoder's token ids, including the special tokens of the family (T5 appends its end token).

        language: one of `languages`, or None for the default in the tokenizer's files.
        """

    def encode_output(self, text: str) -> list[int]:
        """Return the token ids that the decoder writes for this text, without a language token."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text without special tokens."""

    @property
    def vocabulary(self) -> Vocabulary: ...


class Vocabulary:
    """The piece for each token id. A draft model must have the target's vocabulary."""

    def __init__(self, pieces: Mapping[str, int]) -> None:
        by_id = {index: piece for piece, index in sorted(pieces.items(), key=lambda item: item[1])}
        self.pieces: Mapping[int, str] = MappingProxyType(by_id)  # read-only, because models share it

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.pieces)


def fingerprint(pieces: Mapping[int, str]) -> str:
    text = "\0".join(f"{index} {piece}" for index, piece in pieces.items())
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass
class TokenizerErrors:
    """A context that turns errors of a tokenizer library into one-line `InputError`s.

    This includes panics of Rust code, which do not derive from `Exception`. A class, because a generator-based context
    takes three times as long and each token is decoded twice.
    """

    problem: str

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise InputError(f"{self.problem} ({reason})") from error


class FolderTokenizer(ABC):
    """The tokenizer in a model's folder. Subclasses wrap the library that loads it."""

    def __init__(self, folder: Path, pieces: Mapping[str, int], added: Mapping[int, Any]) -> None:
        """added: the library's token objects for special and other added tokens, by id."""
        self.vocabulary = Vocabulary(pieces)
        special = {str(token): index for index, token in added.items() if token.special}
        self._languages = Languages(special, folder)
        self.languages = self._languages.ids

    def encode(self, text: str, language: str | None = None) -> list[int]:
        with TokenizerErrors("tokenizer: cannot encode this text"):
            ids = self._encode(text, add_special_tokens=not self.languages)
        return self._languages.wrap_source(ids, language)

    def encode_output(self, text: str) -> list[int]:
        with TokenizerErrors("tokenizer: cannot encode this text"):
            ids = self._encode(text, add_special_tokens=not self.languages, as_output=not self.languages)
        return self._languages.wrap_output(ids)

    def decode(self, tokens: Sequence[int]) -> str:
        with TokenizerErrors("tokenizer: cannot decode these tokens"):
            return self._decode(list(tokens))

    @abstractmethod
    def _encode(self, text: str, *, add_special_tokens: bool, as_output: bool = False) -> list[int]: ...

    @abstractmethod
    def _decode(self, tokens: list[int]) -> str: ...


class FastTokenizer(FolderTokenizer):
    """Loads tokenizer.json with the `tokenizers` package: the same ids as transformers, without importing it."""

    def __init__(self, folder: Path) -> None:
        import tokenizers

        path = folder / "tokenizer.json"
        with TokenizerErrors(f"{path}: not a readable tokenizer"):
            check_tokenizer_json(data := path.read_bytes())
            self._backend = tokenizers.Tokenizer.from_buffer(data.removeprefix(BOM_UTF8))
            self._backend.no_truncation()
            self._backend.no_padding()
            pieces = self._backend.get_vocab(with_added_tokens=True)
            added = self._backend.get_added_tokens_decoder()
        super().__init__(folder, pieces, added)

    def _encode(self, text: str, *, add_special_tokens: bool, as_output: bool = False) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def _decode(self, tokens: list[int]) -> str:
        return str(self._backend.decode(tokens, skip_special_tokens=True))


class TransformersTokenizer(FolderTokenizer):
    """Loads any other tokenizer with transformers: a bare spiece.model, ByT5, CodeT5's BPE, Marian's pair of models."""

    def __init__(self, folder: Path) -> None:
        for model in (folder / name for name in (*SENTENCEPIECE, *OTHER_SENTENCEPIECE) if (folder / name).is_file()):
            with TokenizerErrors(f"{model}: not a readable SentencePiece model"):
                check_sentencepiece(model.read_bytes())

        from transformers import AutoTokenizer, PreTrainedTokenizerFast  # prints a note if torch is missing

        path = folder / "tokenizer_config.json"
        extra = read_json_object(path).get("extra_ids") if path.is_file() else None
        if not (extra is None or (type(extra) is int and 0 <= extra <= MAX_EXTRA_IDS)):  # a piece is made for each
            raise InputError(
                f"{path}: 'extra_ids' must be a whole number, 0 to {MAX_EXTRA_IDS}, not {short_repr(extra)}"
            )

        settings: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        if has_t5_sentencepiece(folder):
            settings["tokenizer_type"] = "t5"
        with TokenizerErrors(f"{folder}: its tokenizer cannot be loaded"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")  # Marian's class never uses it
            self._backend = AutoTokenizer.from_pretrained(folder, **settings)
            if isinstance(self._backend, PreTrainedTokenizerFast):
                restore_normalizer(self._backend.backend_tokenizer, folder)
            pieces = self._backend.get_vocab()
            added = self._backend.added_tokens_decoder
        super().__init__(folder, pieces, added)

    def _encode(self, text: str, *, add_special_tokens: bool, as_output: bool = False) -> list[int]:
        texts = {"text_target" if as_output else "text": text}
        return list(self._backend(**texts, add_special_tokens=add_special_tokens).input_ids)

    def _decode(self, tokens: list[int]) -> str:
        return str(self._backend.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def has_t5_sentencepiece(folder: Path) -> bool:
    """Return whether spiece.model is T5's. transformers decides by `model_type` and does not know umT5's."""
    if not (folder / "spiece.model").is_file():
        return False
    settings, config = (
        read_json_object(folder / name) if (folder / name).is_file() else {}
        for name in ("tokenizer_config.json", "config.json")
    )
    is_t5_class = str(settings.get("tokenizer_class") or "T5Tokenizer").startswith("T5Tokenizer")
    return is_t5_class and config.get("model_type") != "pegasus"


def restore_normalizer(backend: Any, folder: Path) -> None:
    """Normalize as the SentencePiece model does. transformers 5 keeps trailing spaces and skips mBART's rules."""
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import Regex, normalizers

    for path in (folder / name for name in SENTENCEPIECE if (folder / name).is_file()):
        model = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())  # type: ignore[attr-defined]
        steps = [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), " ")]
        if rules := model.normalizer_spec.precompiled_charsmap:
            steps.insert(0, normalizers.Precompiled(rules))
        backend.normalizer = normalizers.Sequence(steps)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer in a folder. Raises `InputError` if the folder has no readable tokenizer."""
    for name in TOKENIZER_FILES:
        if (folder / name).exists():
            open_regular(folder / name, max_bytes=64 << 20).close()  # Gemma's tokenizer.json has 34 MB
    if (folder / "tokenizer.json").is_file():
        return FastTokenizer(folder)
    if any((folder / name).is_file() for name in TOKENIZER_FILES):
        return TransformersTokenizer(folder)
    raise InputError(f"{folder}: no tokenizer found; add tokenizer.json, or the files that it was made from")


def unknown_characters(tokenizer: Tokenizer, text: str, tokens: Sequence[int]) -> list[str]:
    """Return the characters of a text that the tokenizer encodes as `<unk>`, each once. tokens: of the text."""

    def has_unknown(ids: Sequence[int]) -> bool:
        return any(tokenizer.vocabulary.pieces.get(token) == "<unk>" for token in ids)

    if not has_unknown(tokens):
        return []
    return [character for character in dict.fromkeys(text) if has_unknown(tokenizer.encode(character))]


def continuation_text(tokenizer: Tokenizer, tokens: Sequence[int], more: Sequence[int]) -> str:
    """Return the text that `more` adds after `tokens`. Tokens without text are shown as their pieces."""
    context = list(tokens[-8:])  # enough to decide whether the next piece adds a space
    text = ""
    for token in more:
        before = tokenizer.decode(context).rstrip(REPLACEMENT)
        context.append(token)
        piece = tokenizer.decode(context)[len(before) :]
        text += piece if piece.strip(REPLACEMENT) else str(tokenizer.vocabulary.pieces.get(token, token))
    return text


WINDOW = 8  # ids that are decoded together; each window of fewer ids costs a second call of the tokenizer
MAX_WINDOW = 64  # ids without text that are decoded together


class StreamingDetokenizer:
    """Decodes ids to text incrementally. Never returns an incomplete character and never changes returned text.

    Each call decodes a window of the last few ids, and returns its text without the part that was returned before.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._done = 0  # the text of the window's ids before this one has been returned
        self._returned = 0  # characters of that text

    def add(self, token: int) -> str:
        """Return the text that this id completes; empty while a character is incomplete."""
        self._window.append(token)
        text = self._pending()
        is_long = len(self._window) > MAX_WINDOW
        if text.endswith(REPLACEMENT):
            return self._text_of_invalid_bytes() if is_long else ""
        if is_long and not text:
            self._window.pop()  # one more of many special tokens
            return ""
        # A window that starts at a token without text would lose the next token's space.
        if text and len(self._window) >= WINDOW:
            self._window = self._window[self._done :]
            self._returned = len(self._tokenizer.decode(self._window))
        else:
            self._returned += len(text)
        self._done = len(self._window)
        return text

    def _text_of_invalid_bytes(self) -> str:
        """Return the text of ids that no later id can complete, and remove them from the window."""
        old, recent = self._window[:-WINDOW], self._window[-WINDOW:]
        text = self._tokenizer.decode(old)
        if text + self._tokenizer.decode(recent) != self._tokenizer.decode(self._window):
            return ""  # a character begins in `old` and ends in `recent`
        text = text[self._returned :]
        self._window, self._done, self._returned = recent, 0, 0
        return text

    def finish(self) -> str:
        """Return the remaining text, even if it ends with an incomplete character."""
        return self._pending()

    def _pending(self) -> str:
        return self._tokenizer.decode(self._window)[self._returned :]
