"""Text to ids and back, and text that streams out as ids come in. Knows nothing of models."""

from __future__ import annotations

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from ..checkpoints.files import open_regular, read_json_object
from ..errors import InputError
from ..sampling.options import short
from .languages import Languages

SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model")  # of T5 and Pegasus; of mBART, M2M-100 and NLLB-200
# Every file a tokenizer may consist of; conversion copies those that are there.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    *SENTENCEPIECE,
    "sentencepiece.model",
    "source.spm",
    "target.spm",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)
MAX_BYTES = 64 << 20  # of each; Gemma's tokenizer.json takes 34 MB
MOST_EXTRA_IDS = 1 << 16
REPLACEMENT = "\ufffd"  # what decoding yields where a character's bytes are not all there yet
UNKNOWN = "<unk>"
CONTEXT = 8  # tokens: enough to know whether a piece brings a space


class Tokenizer(Protocol):
    """What the package needs of a tokenizer."""

    @property
    def languages(self) -> Mapping[str, int]:
        """Code -> token, of models that are told them by tokens: `deu_Latn`; empty for all others."""

    def encode(self, text: str, language: str | None = None) -> list[int]:
        """Text -> the ids that the encoder reads, with the tokens that the family puts around them: T5 the end of
        sequence behind them. language: of the text, one of `languages`; None: the default of the tokenizer's files.
        """

    def encode_output(self, text: str) -> list[int]:
        """Text -> the ids that the decoder writes for it, without a language's token in front."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Text without special tokens."""

    @property
    def vocabulary(self) -> Vocabulary: ...


class Vocabulary:
    """Which piece each id stands for. A draft model must have the target's."""

    def __init__(self, pieces: Mapping[str, int]) -> None:
        by_id = {index: piece for piece, index in sorted(pieces.items(), key=lambda item: item[1])}
        self.pieces: Mapping[int, str] = MappingProxyType(by_id)  # read-only, for models share it

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.pieces)


def fingerprint(pieces: Mapping[int, str]) -> str:
    text = "\0".join(f"{index} {piece}" for index, piece in pieces.items())
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass
class FailingInOneLine:
    """Packages of tokenizers raise whatever their parts raise, Rust's panics among it, which are no `Exception`."""

    what: str  # no generator, which takes three times as long: each token is decoded twice

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise InputError(f"{self.what} ({reason})") from error


class FolderTokenizer(ABC):
    """The tokenizer of a model's folder, for which one of two packages cuts the text."""

    def __init__(self, folder: Path, pieces: Mapping[str, int], added: Mapping[int, Any]) -> None:
        self.vocabulary = Vocabulary(pieces)
        special = {str(token): index for index, token in added.items() if token.special}
        self._languages = Languages(special, folder)
        self.languages = self._languages.ids

    def encode(self, text: str, language: str | None = None) -> list[int]:
        with FailingInOneLine("the tokenizer cannot cut this text"):
            ids = self._cut(text, framed=not self.languages)
        return self._languages.around_source(ids, language)

    def encode_output(self, text: str) -> list[int]:
        with FailingInOneLine("the tokenizer cannot cut this text"):
            ids = self._cut(text, framed=not self.languages, is_output=not self.languages)
        return self._languages.around_output(ids)

    def decode(self, tokens: Sequence[int]) -> str:
        with FailingInOneLine("the tokenizer has no text for these tokens"):
            return self._text(list(tokens))

    @abstractmethod
    def _cut(self, text: str, *, framed: bool, is_output: bool = False) -> list[int]:
        """framed: with the special tokens that the package puts around it."""

    @abstractmethod
    def _text(self, tokens: list[int]) -> str: ...


class FastTokenizer(FolderTokenizer):
    """A `tokenizer.json`, read by the `tokenizers` package: the same ids as transformers, without importing it."""

    def __init__(self, folder: Path) -> None:
        import tokenizers

        path = folder / "tokenizer.json"
        with FailingInOneLine(f"{path}: not a readable tokenizer"):
            self._backend = tokenizers.Tokenizer.from_file(str(path))
            self._backend.no_truncation()
            self._backend.no_padding()
            known = self._backend.get_vocab(with_added_tokens=True), self._backend.get_added_tokens_decoder()
        super().__init__(folder, *known)

    def _cut(self, text: str, *, framed: bool, is_output: bool = False) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=framed).ids)

    def _text(self, tokens: list[int]) -> str:
        return str(self._backend.decode(tokens, skip_special_tokens=True))


class TransformersTokenizer(FolderTokenizer):
    """Whatever transformers can load from the folder: a bare spiece.model, ByT5's bytes, CodeT5's BPE, Marian's two."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        path = folder / "tokenizer_config.json"
        extra = read_json_object(path).get("extra_ids") if path.is_file() else 0
        if isinstance(extra, int) and extra > MOST_EXTRA_IDS:  # transformers makes a piece of each
            raise InputError(f"{path}: 'extra_ids' must be at most {MOST_EXTRA_IDS}, not {short(extra)}")
        given: dict[str, Any] = {"tokenizer_type": "t5"} if is_t5s(folder) else {}
        given |= {"local_files_only": True, "trust_remote_code": False}
        with FailingInOneLine(f"{folder}: no tokenizer could be loaded from it"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")  # Marian's class never uses it
            self._backend = AutoTokenizer.from_pretrained(folder, **given)
            if isinstance(self._backend, PreTrainedTokenizerFast):
                restore_normalizer(self._backend.backend_tokenizer, folder)
            known = self._backend.get_vocab(), self._backend.added_tokens_decoder
        super().__init__(folder, *known)

    def _cut(self, text: str, *, framed: bool, is_output: bool = False) -> list[int]:
        given = {"text_target" if is_output else "text": text}
        return list(self._backend(**given, add_special_tokens=framed).input_ids)

    def _text(self, tokens: list[int]) -> str:
        return str(self._backend.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def is_t5s(folder: Path) -> bool:
    """Whether its spiece.model is T5's. transformers goes by `model_type`, and knows no tokenizer of umT5's."""
    if not (folder / "spiece.model").is_file():
        return False
    names = [folder / name for name in ("tokenizer_config.json", "config.json")]
    settings, config = (read_json_object(path) if path.is_file() else {} for path in names)
    by_class = str(settings.get("tokenizer_class") or "T5Tokenizer").startswith("T5Tokenizer")
    return by_class and config.get("model_type") != "pegasus"


def restore_normalizer(backend: Any, folder: Path) -> None:
    """As the SentencePiece model has it. transformers 5 keeps spaces at the end, and leaves mBART's text as it is."""
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import Regex, normalizers

    for path in (folder / name for name in SENTENCEPIECE if (folder / name).is_file()):
        model = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())  # type: ignore[attr-defined]
        steps = [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), " ")]
        if rules := model.normalizer_spec.precompiled_charsmap:
            steps.insert(0, normalizers.Precompiled(rules))
        backend.normalizer = normalizers.Sequence(steps)


def load_tokenizer(folder: Path) -> Tokenizer:
    for name in TOKENIZER_FILES:
        if (folder / name).exists():
            open_regular(folder / name, MAX_BYTES).close()
    if (folder / "tokenizer.json").is_file():
        return FastTokenizer(folder)
    if any((folder / name).is_file() for name in TOKENIZER_FILES):
        return TransformersTokenizer(folder)
    raise InputError(f"{folder}: no tokenizer found; it needs a tokenizer.json or the files that made it")


def unknown_characters(tokenizer: Tokenizer, text: str) -> list[str]:
    """Those that the vocabulary does not have: what it reads in their place is `UNKNOWN`."""

    def is_unknown(part: str) -> bool:
        return any(tokenizer.vocabulary.pieces.get(token) == UNKNOWN for token in tokenizer.encode(part))

    return [each for each in dict.fromkeys(text) if is_unknown(each)] if is_unknown(text) else []


def text_behind(tokenizer: Tokenizer, tokens: Sequence[int], more: Sequence[int]) -> str:
    """What `more` would read behind `tokens`, as pieces where it has no text of its own."""
    context, text = list(tokens[-CONTEXT:]), ""
    for token in more:
        before = tokenizer.decode(context).rstrip(REPLACEMENT)
        context.append(token)
        piece = tokenizer.decode(context)[len(before) :]
        text += piece if piece.strip(REPLACEMENT) else str(tokenizer.vocabulary.pieces.get(token, token))
    return text


class StreamingDetokenizer:
    """Ids in, text out, piece by piece: never half a character, and nothing already given is taken back.

    Decodes only the last few ids each time: the text of `ids[anchor:]` minus the text of `ids[anchor:done]`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._anchor = 0  # decoding starts here: far enough back for spaces to come out right
        self._done = 0  # ids before this one have been given out as text

    def add(self, token: int) -> str:
        """The text that this id completes; empty while a character is incomplete."""
        self._tokens.append(token)
        text = self._pending()
        if text.endswith(REPLACEMENT):
            return ""
        if text:  # a special token has none, and would not keep the space in front of what follows it
            self._anchor = self._done
        self._done = len(self._tokens)
        return text

    def finish(self) -> str:
        """What is left, even if it ends in a broken character."""
        return self._pending()

    def _pending(self) -> str:
        before = self._tokenizer.decode(self._tokens[self._anchor : self._done])
        return self._tokenizer.decode(self._tokens[self._anchor :])[len(before) :]
