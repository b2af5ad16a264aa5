"""The tokenizer of Argos Translate packages with bpe.model: Moses' rules for words, and byte-pair encoding.

The steps are those of `BPETokenizer` in argostranslate/tokenizer.py: sacremoses normalizes punctuation and splits a
text into words, and subword-nmt splits words into pieces. Pieces that do not end a word end with "@@". The rules of
sacremoses depend on the languages.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

from ..checkpoints.files import open_regular
from ..errors import CheckpointError, InputError
from .ctranslate2_tokenizer import ModelVocabulary
from .task_prefixes import only_languages, task_prefixes
from .tokenizer_base import MAX_FILE_BYTES, FolderTokenizer, tokenizer_errors
from .unknown_tokens import UnknownToken

MERGES = "bpe.model"
CONTINUES = "@@ "
PACKAGES = {"sacremoses": "sacremoses", "subword_nmt": "subword-nmt"}  # module -> package
INSTALL = 'pip install "speculative-decoding[argos]"'
VERSIONS = ((0, 1), (0, 2))  # of the format of bpe.model
MAX_WORD = 1000  # characters; the time to split a word grows with the square of its length
MAX_CACHED = 1 << 16  # words whose pieces are kept


def read_bpe(folder: Path, vocabulary: ModelVocabulary) -> BpeTokenizer | None:
    """Return the tokenizer of a package with bpe.model, or None for other folders. Raises `InputError`."""
    if not (path := folder / MERGES).is_file():
        return None
    for module, package in PACKAGES.items():
        if find_spec(module) is None:
            raise InputError(f"{path}: needs the package {package}", way_out=f"run {INSTALL}")
    source, target = only_languages(task_prefixes(vocabulary.config))
    if source is None or target is None:
        raise InputError(f"{path}: the languages of its package are unknown", way_out="name the package's folder")
    with tokenizer_errors(f"{path}: not a readable tokenizer"):
        return BpeTokenizer(folder, vocabulary, source, target)


class BpeTokenizer(FolderTokenizer):
    """Moses' rules and byte-pair encoding. Special tokens are added to sources only if config.json says so.

    Args:
        folder: The package.
        vocabulary: Its vocabulary, and the special tokens in its config.
        source, target: The languages, such as "en".
    """

    waits_for_end = True  # the spaces around a quotation mark depend on all marks of the text

    def __init__(self, folder: Path, vocabulary: ModelVocabulary, source: str, target: str) -> None:
        ids, config = vocabulary.ids, vocabulary.config
        super().__init__(ids, None, cleans_up=False)
        self._ids = ids
        self.unknown_id, self._end = ids[config["unk_token"]], config["eos_token_id"]
        start = [ids[config["bos_token"]]] if config["bos_token"] in ids else []
        self._before = start if config["add_source_bos"] else []
        self._after = [self._end] if config["add_source_eos"] else []
        special = {self.unknown_id, self._end, *start, config.get("forced_bos_token_id")}
        self._texts = {index: piece for piece, index in ids.items() if index not in special}
        self._bpe = read_merges(folder / MERGES)
        self._source, self._output = Moses(source), Moses(target)

    def _encode(self, text: str, *, add_special_tokens: bool, as_output: bool = False) -> list[int]:
        pieces = self._pieces((self._output if as_output else self._source).words(text))
        ids = [self._ids.get(piece, self.unknown_id) for piece in pieces]
        if not add_special_tokens:
            return ids
        return [*ids, self._end] if as_output else [*self._before, *ids, *self._after]

    def source_pieces(self, text: str) -> dict[int, str]:
        return dict(enumerate(self._pieces(self._source.words(text)), len(self._before)))

    def _pieces(self, words: Iterable[str]) -> list[str]:
        """Split words into pieces. The parts of a very long word are split separately."""
        if len(self._bpe.cache) > MAX_CACHED:
            self._bpe.cache.clear()
        pieces: list[str] = []
        for word in words:
            for start in range(0, len(word), MAX_WORD):
                if start:
                    pieces[-1] += CONTINUES.strip()
                pieces += self._bpe.segment_tokens([word[start : start + MAX_WORD]])
        return pieces

    def _decode(self, tokens: list[int]) -> str:
        pieces = (token.piece if isinstance(token, UnknownToken) else self._texts.get(token) for token in tokens)
        return self._output.text(" ".join(filter(None, pieces)).replace(CONTINUES, "").split(" "))


class Moses:
    """Moses' rules for a language, which splits texts into words and joins words to texts."""

    def __init__(self, language: str) -> None:
        from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer

        self._normalizer = MosesPunctNormalizer(language)
        self._tokenizer = MosesTokenizer(language)
        self._detokenizer = MosesDetokenizer(language)

    def words(self, text: str) -> list[str]:
        tokenized = " ".join(self._tokenizer.tokenize(self._normalizer.normalize(text)))
        return tokenized.strip("\r\n ").split(" ")

    def text(self, words: list[str]) -> str:
        return str(self._detokenizer.detokenize(words))


def read_merges(path: Path) -> Any:
    """Return subword-nmt's `BPE` for a file of merges. Raises `CheckpointError` for a damaged or unsupported file."""
    from subword_nmt.apply_bpe import BPE

    with open_regular(path, MAX_FILE_BYTES) as file:
        data = file.read(MAX_FILE_BYTES)
    try:
        text = TextIOWrapper(BytesIO(data), "utf-8").read()  # also converts the ends of lines
        merges = (text.partition("\n")[2] if text.startswith("#version:") else text).rstrip("\n").split("\n")
        if any(len(line.strip("\r\n ").split(" ")) != 2 for line in merges):  # subword-nmt would exit
            raise ValueError("a line does not consist of two pieces")
        bpe = BPE(StringIO(text))
        if bpe.version not in VERSIONS:
            raise ValueError(f"version {'.'.join(map(str, bpe.version))} is not supported")
    except ValueError as error:
        raise CheckpointError(f"{path}: not a readable list of merges ({error})") from error
    return bpe
