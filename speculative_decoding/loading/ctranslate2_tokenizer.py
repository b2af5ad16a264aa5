"""Reads the SentencePiece model beside a CTranslate2 vocabulary, and adds the special tokens that the model expects.

CTranslate2 adds special tokens to a source only as its config.json says. For models converted from Hugging Face, its
users add the end token and the language token before each call, so the vocabulary must show which tokens these are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..checkpoints import find_ctranslate2, read_config
from ..checkpoints.ctranslate2_vocabulary import END_OF_TEXT, find_speech_vocabulary, find_vocabulary, read_vocabulary
from ..errors import InputError, Message
from .languages import PLAIN, UNDERSCORES, codes_in
from .sentencepiece_tokenizer import (
    CLASSES,
    SPACE,
    SentencePieceTokenizer,
    Settings,
    Token,
    pieces_of,
    read_model,
)
from .tokenizer_base import FolderTokenizer, Tokenizer, tokenizer_errors
from .tokenizer_settings import GENERAL_CLASSES, family_config, tokenizer_class
from .unknown_tokens import UnknownToken

# One model for sources and outputs, or one for each
SHARED_MODELS = ("sentencepiece.model", "sentencepiece.bpe.model", "spiece.model", "tokenizer.model")
SEPARATE_MODELS = ("source.spm", "target.spm")

FILLER = re.compile(r"madeupword\w*|<extra_id_\d+>")  # fill a vocabulary up to the number of rows of the embedding
EXTRA_ID = re.compile(r"<extra_id_(\d+)>")
FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]  # the first tokens of fairseq's vocabularies, and of BART's and mBART's
PEGASUS = ["<pad>", "</s>", "<mask_1>", "<mask_2>"]
PAD = "<pad>"  # of Marian's models, which have no token for it
BLANK = "<blank>"  # the padding token of OpenNMT-py, OpenNMT-tf and Eole
SAME = ({"<|nospeech|>", "<|nocaptions|>"},)  # tokens of Whisper that have been renamed
LEAST_KNOWN = 0.5  # the share of SentencePiece's pieces that a vocabulary made from them has at least
MAX_LANGUAGES = 1 << 11  # the input is split at these tokens; NLLB-200 has 202
WAY_OUT = Message("use the model's own tokenizer: {tokenizer} FOLDER, or its name on the Hub")


@dataclass(frozen=True)
class ModelVocabulary:
    """The vocabulary of a CTranslate2 model, an Argos package, or a folder converted from either.

    path: its file.
    tokens: Token of each id.
    config: `read_config`'s fields.
    """

    path: Path
    tokens: Sequence[str]
    config: Mapping[str, Any]

    @classmethod
    def find(cls, folder: Path) -> ModelVocabulary | None:
        """Return a folder's vocabulary, or None if the folder has none. Raises `CheckpointError` if it is damaged.

        A file with such a name is ignored if the folder's model is neither CTranslate2's nor converted from one.
        """
        path = find_vocabulary(folder)
        if path is None and find_ctranslate2(folder) is not None:
            path = find_speech_vocabulary(folder)
        if path is None:
            return None
        config = read_config(folder)
        unknown = END_OF_TEXT if config.get("model_type") == "whisper" else config.get("unk_token")
        if not isinstance(unknown, str):
            return None
        return cls(path, read_vocabulary(path, unknown), config)

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """The id of each token, and of the padding token that Marian's models lack.

        A token that occurs twice has its first id, as in CTranslate2.
        """
        ids: dict[str, int] = {}
        for index, token in enumerate(self.tokens):
            ids.setdefault(token, index)
        if self.lacks_padding:
            ids.setdefault(PAD, len(self.tokens))
        return ids

    @property
    def lacks_padding(self) -> bool:
        """Whether the decoder starts from zeros in place of a token, as Marian's does."""
        return self.config.get("pad_token_id") == len(self.tokens)

    def family_config(self, folder: Path) -> dict[str, str]:
        """Return `tokenizer_settings.family_config` of a folder without a SentencePiece model.

        If the folder names no tokenizer class, tokenizer.json is read unchanged. Without tokenizer.json, vocab.json and
        merges.txt belong to BART.
        """
        fields = family_config(folder)
        fields.pop("model_type", None)
        files = all((folder / name).is_file() for name in ("vocab.json", "merges.txt"))
        if not fields and files and not (folder / "tokenizer.json").is_file() and list(self.tokens[:4]) == FAIRSEQ:
            return {"model_type": "bart"}
        return fields

    def check(self, tokenizer: Tokenizer, *, is_whole: bool = False) -> None:
        """Raise `InputError` unless the ids of a tokenizer have the same meaning in the vocabulary.

        Fillers may have any meaning.

        is_whole: Whether the tokenizer must have all ids, except those of fillers and of repeated tokens.
        """
        pieces, tokens = tokenizer.vocabulary.pieces, self.tokens
        for index, piece in pieces.items():
            if index >= len(tokens) or not piece or piece == (token := tokens[index]) or FILLER.fullmatch(token):
                continue
            if not any({piece, token} <= names for names in SAME):
                raise InputError(
                    f"{self.path}: token {index} is {token!r}, but in the tokenizer it is {piece!r}", way_out=WAY_OUT
                )
        if is_whole:
            first = self.ids
            for index, token in enumerate(tokens):
                if index not in pieces and first[token] == index and not FILLER.fullmatch(token):
                    raise InputError(
                        f"{self.path}: token {index}, {token!r}, is not in the folder's tokenizer", way_out=WAY_OUT
                    )


def read_beside_vocabulary(folder: Path, vocabulary: ModelVocabulary) -> FolderTokenizer | None:
    """Read the model files beside a vocabulary, other than tokenizer.json.

    Returns None if there are none, or if the folder names a tokenizer class that only transformers can read. Raises
    `InputError` if the files do not fit the vocabulary, or do not determine the tokenizer.
    """
    shared = [name for name in SHARED_MODELS if (folder / name).is_file()]
    separate = [name for name in SEPARATE_MODELS if (folder / name).is_file()]
    if len(separate) == 1:
        missing = next(name for name in SEPARATE_MODELS if name not in separate)
        raise InputError(f"{folder}: found {separate[0]}, but {missing} is missing", way_out=WAY_OUT)
    if not shared and not separate:
        return None
    name = tokenizer_class(folder)
    if name in GENERAL_CLASSES:
        name = class_of(vocabulary, folder)
    elif name not in CLASSES:
        return None
    chosen = OpenNmtTokenizer if name is None else CLASSES[name]
    own = [chosen.model_file] if chosen.model_file in (*shared, *separate) else []
    first = (own or shared or separate)[0]
    with tokenizer_errors(f"{folder}: its tokenizer cannot be loaded"):
        settings = settings_for(name, vocabulary, folder, first)
        tokenizer = chosen(folder, settings, first)
    vocabulary.check(tokenizer, is_whole=True)
    return tokenizer


def class_of(vocabulary: ModelVocabulary, folder: Path) -> str | None:
    """Return the name of the class for a vocabulary, judging by its special tokens; None for `OpenNmtTokenizer`.

    Raises `InputError` if it is unclear.
    """
    config, tokens = vocabulary.config, vocabulary.tokens
    if config.get("replace_unknowns"):  # an Argos Translate package, whose sources are pieces only
        return None
    if config.get("model_type") == "t5":
        return "T5Tokenizer"
    if vocabulary.lacks_padding:
        return "MarianTokenizer"
    if list(tokens[:4]) == PEGASUS:
        return "PegasusTokenizer"
    if list(tokens[:4]) == FAIRSEQ:
        plain, underscores = (codes_in(vocabulary.ids, form) for form in (PLAIN, UNDERSCORES))
        for name, codes, default in (
            ("NllbTokenizer", plain, "eng_Latn"),
            ("MBart50Tokenizer" if "af_ZA" in plain else "MBartTokenizer", plain, "en_XX"),
            ("M2M100Tokenizer", underscores, "en"),
        ):
            if default in codes and len(codes) > 1:
                return name
    if BLANK in tokens[:8] or config.get("add_source_bos") or config.get("add_source_eos"):
        return None
    raise InputError(
        f"{folder}: neither {vocabulary.path.name} nor config.json shows which special tokens surround a source",
        way_out=WAY_OUT,
    )


def settings_for(name: str | None, vocabulary: ModelVocabulary, folder: Path, model_file: str) -> Settings:
    """Return the settings in a folder's files, completed with the special tokens in the vocabulary.

    name: The name of the class, or None for `OpenNmtTokenizer`.
    """
    ids = vocabulary.ids
    settings = replace(Settings.read(folder), pieces=ids)
    options, added = dict(settings.options), dict(settings.added)
    if name == "T5Tokenizer" and settings.additional() is None and "extra_ids" not in options:
        count = len(pieces_of(read_model(folder / model_file)))
        options["extra_ids"] = number_of_extra_ids(vocabulary.tokens[count:])
    if name in ("NllbTokenizer", "MBartTokenizer", "MBart50Tokenizer", "M2M100Tokenizer"):
        form = UNDERSCORES if name == "M2M100Tokenizer" else PLAIN
        count = len(pieces_of(read_model(folder / model_file)))
        # A piece of the model may look like a language token, so only tokens that follow the pieces count.
        languages = [token for token, index in ids.items() if index >= count and re.fullmatch(form, token)]
        if len(languages) > MAX_LANGUAGES:
            raise InputError(f"{vocabulary.path}: has {len(languages)} language tokens (expected <= {MAX_LANGUAGES})")
        if settings.additional() is None:
            options["additional_special_tokens"] = languages
        added = {ids[token]: Token(token, special=True) for token in languages} | added
        if name == "NllbTokenizer" and "<mask>" in ids:
            added.setdefault(ids["<mask>"], Token("<mask>", lstrip=True, special=True))
    if name in ("MarianTokenizer", None):
        config = vocabulary.config
        pad = config.get("pad_token_id")
        named = {key: config.get(key) for key in ("unk_token", "bos_token", "eos_token")}
        if type(pad) is int and 0 <= pad < len(vocabulary.tokens):
            named["pad_token"] = vocabulary.tokens[pad]
        elif vocabulary.lacks_padding:
            named["pad_token"] = PAD
        for key, token in named.items():
            if isinstance(token, str) and token in ids:
                options.setdefault(key, token)
        prefix = config.get("forced_bos_token_id")
        if type(prefix) is int and 0 <= prefix < len(vocabulary.tokens):
            options["additional_special_tokens"] = [vocabulary.tokens[prefix]]
    if name is None:
        options |= opennmt_options(vocabulary, ids, options.get("additional_special_tokens", []))
    return replace(settings, options=options, added=added)


def number_of_extra_ids(tokens: Sequence[str]) -> int:
    """Return how many extra ids a T5 tokenizer has. They are in descending order; fillers are in ascending order."""
    match = EXTRA_ID.fullmatch(tokens[0]) if tokens else None
    if match is None or len(match[1]) > 4:
        return 0
    count = int(match[1]) + 1
    if list(tokens[:count]) != [f"<extra_id_{index}>" for index in reversed(range(count))]:
        return 0
    return 0 if list(tokens[:2]) == ["<extra_id_0>", "<extra_id_1>"] else count


def opennmt_options(vocabulary: ModelVocabulary, ids: Mapping[str, int], special: Sequence[str]) -> dict[str, Any]:
    """Return the options of an `OpenNmtTokenizer`. special: Special tokens in addition to the usual ones."""
    config = vocabulary.config
    if (end := config.get("eos_token")) not in ids:
        raise InputError(f"{vocabulary.path}: has no end token {end!r}", way_out=WAY_OUT)
    return {
        "additional_special_tokens": [*special, *([BLANK] if BLANK in ids else [])],
        "add_bos_token": config.get("add_source_bos") is True,
        "add_eos_token": config.get("add_source_eos") is True,
    }


class OpenNmtTokenizer(SentencePieceTokenizer):
    """The vocabulary defines the ids of SentencePiece's pieces. A text contains no special tokens."""

    model_file = "sentencepiece.model"
    has_one_model = False

    def set_up(self) -> None:
        known = self.settings.pieces
        assert known is not None
        self.before = ("bos_token",) if self.settings.flag("add_bos_token", False) else ()
        self.after = ("eos_token",) if self.settings.flag("add_eos_token", False) else ()
        self.target = self.processor if self.model_file != "source.spm" else read_model(self.folder / "target.spm")
        by_id = {index: piece for piece, index in known.items()}
        self.pieces = [by_id.get(index, "") for index in range(max(by_id) + 1)]  # "" if a token occurs again
        special = {str(token) for token in (*self.named.values(), *self.additional) if token is not None}
        self.ids = {piece: index for piece, index in known.items() if piece not in special}
        self.unknown = known[str(self.named["unk_token"])]
        normal = [piece for piece in pieces_of(self.processor) if piece not in special]
        if sum(piece in self.ids for piece in normal) < LEAST_KNOWN * len(normal):
            raise InputError(
                f"{self.folder}: its vocabulary has few of the pieces in {self.model_file}", way_out=WAY_OUT
            )

    def language_tokens(self) -> Mapping[int, str]:
        return {}  # a target prefix may look like one

    def _encode(self, text: str, *, add_special_tokens: bool, as_output: bool = False) -> list[int]:
        processor = self.target if as_output else self.processor
        ids = [self.ids.get(piece, self.unknown_id) for piece in processor.encode(text, out_type=str)]
        if as_output and add_special_tokens:
            return [*ids, self._added_ids[str(self.named["eos_token"])]]
        return self.with_special_tokens(ids) if add_special_tokens else ids

    def source_pieces(self, text: str) -> dict[int, str]:
        return dict(enumerate(self.processor.encode(text, out_type=str), len(self.before_ids)))

    def _decode(self, tokens: list[int]) -> str:
        pieces = (token.piece if isinstance(token, UnknownToken) else self._by_id.get(token, "") for token in tokens)
        return self.text_of([piece for piece in pieces if piece and piece not in self.special])

    def text_of(self, pieces: list[str]) -> str:
        return str(self.target.decode_pieces(pieces)).replace(SPACE, " ").strip()
