"""Reads a bare SentencePiece model with `sentencepiece`, and adds its model family's tokens and rules.

The end token, extra ids, language codes, id offsets and splitting at added tokens follow the Python classes of
transformers 4.46. Version 5 converts these files to the `tokenizers` format, which ignores some of their settings: byte
fallback, `remove_extra_whitespaces`, `add_dummy_prefix` and the scores of BPE models.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import InputError
from ..sampling.options import short_repr
from . import language_codes
from .languages import UNDERSCORES
from .tokenizer_base import FolderTokenizer, tokenizer_errors
from .tokenizer_settings import languages_of, model_type_of, settings_of, tokenizer_class

SPACE = "\u2581"  # represents a space in SentencePiece
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
LANGUAGE_CODE = re.compile(">>.+<<")  # of Marian models


@dataclass(frozen=True)
class Token:
    """An added token. The input is split at added tokens before SentencePiece encodes the parts between them.

    lstrip, rstrip: Whether the token absorbs spaces to its left or right.
    single_word: Whether the token is recognized only between spaces.
    """

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    special: bool = False


@dataclass(frozen=True)
class Settings:
    """The settings in the files next to a SentencePiece model, read as in transformers 4.46.

    options: The fields of tokenizer_config.json, and the tokens in special_tokens_map.json.
    added: The added tokens by id.
    pieces: Piece -> id, in place of a vocab.json.
    """

    options: Mapping[str, Any]
    added: Mapping[int, Token]
    pieces: Mapping[str, int] | None = None

    @classmethod
    def read(cls, folder: Path) -> Settings:
        options = settings_of(folder / "tokenizer_config.json")
        options = {key: token_of(value) if is_token(value) else value for key, value in options.items()}
        added: dict[int, Token] = {}
        if isinstance(decoder := options.get("added_tokens_decoder"), dict):
            added = {int(index): token_of(value) for index, value in decoder.items()}
            by_content = {token.content: token for token in added.values()}
            options |= {
                name: by_content.get(content_of(options[name]), options[name])
                for name in NAMED
                if options.get(name) is not None
            }
        else:
            for key, value in settings_of(folder / "special_tokens_map.json").items():
                if key == "additional_special_tokens" and isinstance(value, list):
                    tokens = [token_of(each, special=True) if isinstance(each, dict) else each for each in value]
                    known = list(options.get(key) or [])
                    options[key] = known + [each for each in tokens if each not in known]
                else:
                    options[key] = token_of(value, special=True) if isinstance(value, dict) else value
            special = {content_of(options[name]) for name in NAMED if options.get(name) is not None}
            special |= {content_of(each) for each in options.get("additional_special_tokens") or []}
            for content, index in settings_of(folder / "added_tokens.json").items():
                added[int(index)] = Token(content, special=content in special)
        if options.get("sp_model_kwargs"):
            raise InputError(f"{folder}: 'sp_model_kwargs' of its tokenizer_config.json is not supported")
        for name in NAMED:
            if not isinstance(options.get(name), Token | str | None):
                raise InputError(f"{folder}: {name} must be a text, not {short_repr(options[name])}")
        return cls(options, added)

    def additional(self) -> list[Token | str] | None:
        # The names in transformers 4 and 5
        value = self.options.get("additional_special_tokens", self.options.get("extra_special_tokens"))
        if isinstance(value, dict):
            value = list(value.values())
        return None if value is None else [token_of(each) if is_token(each) else each for each in value]

    def flag(self, name: str, default: bool) -> bool:
        value = self.options.get(name)
        return default if value is None else bool(value)


def is_token(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("content"), str)


def token_of(value: Any, special: bool | None = None) -> Token:
    """Return the token that a JSON object describes. special: overrides the object's field "special"."""
    flags = {name: value.get(name, False) is True for name in ("lstrip", "rstrip", "single_word", "special")}
    return Token(value["content"], **flags | ({} if special is None else {"special": special}))


def content_of(token: Token | str) -> str:
    return token.content if isinstance(token, Token) else str(token)


class SentencePieceTokenizer(FolderTokenizer):
    """A SentencePiece model with its family's added tokens, special tokens and languages.

    Each subclass corresponds to a class of transformers 4.46. Its `set_up` sets `pieces`, the piece of each id before
    tokens are added, and `ids`, the id of each piece that SentencePiece can produce.

    model_file: Overrides the usual name of the SentencePiece model.
    """

    model_file = "spiece.model"
    cleans_up_text = True  # False for families that transformers 5 loads as BPE models
    defaults: Mapping[str, str | Token] = MappingProxyType({})  # special tokens by name
    joins_pieces = False  # whether decoding joins pieces without calling SentencePiece
    strips = True  # whether spaces are stripped from both ends of decoded text
    has_one_model = True  # whether one model encodes both sources and outputs and has an id for each of its pieces
    before: Sequence[str] = ()  # names of the special tokens that precede a text
    after: Sequence[str] = ("eos_token",)

    def __init__(self, folder: Path, settings: Settings, model_file: str | None = None) -> None:
        self.folder, self.settings = folder, settings
        self.model_file = model_file or self.model_file
        self.processor = read_model(folder / self.model_file)
        self.named = {name: settings.options.get(name, self.defaults.get(name)) for name in NAMED}
        self.additional: list[Token | str] = settings.additional() or []
        self.added: dict[int, Token] = dict(settings.added)
        self.pieces: Sequence[str] = ()
        self.ids: Mapping[str, int] = {}
        self.unknown: int | None = None  # None means the id of `unk_token`
        self.set_up()
        vocabulary = self._add_special_tokens()
        self.unknown_id = self._added_ids[content_of(self.named["unk_token"])] if self.unknown is None else self.unknown
        self._by_id = {index: piece for piece, index in vocabulary.items()} | dict(enumerate(self.pieces))
        self._by_id |= self.language_tokens()
        self.before_ids, self.after_ids = (
            [self._added_ids[content_of(token)] for name in names if (token := self.named[name]) is not None]
            for names in (self.before, self.after)
        )
        cleans_up = self.cleans_up_text and settings.flag("clean_up_tokenization_spaces", False)
        languages = languages_of(self.language_tokens(), folder)
        super().__init__({piece: index for index, piece in self._by_id.items()} | vocabulary, languages, cleans_up)

    @abstractmethod
    def set_up(self) -> None: ...

    def language_tokens(self) -> Mapping[int, str]:
        """Return the candidates for language tokens, keyed by id."""
        return {index: token.content for index, token in self.added.items()}

    def ids_of_pieces(self) -> dict[str, int]:
        """Return the id of each piece, for families whose vocabulary is separate from the SentencePiece model."""
        pieces = self.settings.pieces
        return read_vocabulary(self.folder / "vocab.json") if pieces is None else dict(pieces)

    def _add_special_tokens(self) -> dict[str, int]:
        """Assign ids to special tokens without one, and return the ids of all tokens."""
        vocabulary: dict[str, int] = {}
        for index, piece in enumerate(self.pieces):
            vocabulary[self.added[index].content if index in self.added else piece] = index
        self._added_ids = {token.content: index for index, token in self.added.items()}
        vocabulary |= self._added_ids
        special: dict[str, Token | str] = {}
        for token in (*self.named.values(), *self.additional):
            if token is not None and (content := content_of(token)):
                special.setdefault(content, token)
        end = len(vocabulary)
        for content, token in special.items():
            if isinstance(token, str) and content in self._added_ids:
                continue
            if content not in vocabulary:
                vocabulary[content] = end
                end += 1
            index = self._added_ids[content] = vocabulary[content]
            self.added[index] = (
                replace(token, special=True) if isinstance(token, Token) else Token(content, special=True)
            )
        self.special = frozenset(special)
        self._special_ids = frozenset(self._added_ids[content] for content in special)
        longest_first = sorted(map(re.escape, self._added_ids), key=len, reverse=True)
        self._splitter = re.compile(f"({'|'.join(longest_first)})")
        return vocabulary

    def _encode(self, text: str, *, add_special_tokens: bool, as_output: bool = False) -> list[int]:
        ids = [self._id(piece) for piece in self.tokenize(text, as_output)]
        return self.with_special_tokens(ids) if add_special_tokens else ids

    def with_special_tokens(self, ids: list[int]) -> list[int]:
        return [*self.before_ids, *ids, *self.after_ids]

    def _id(self, piece: str) -> int:
        index = self._added_ids.get(piece)
        return self.ids.get(piece, self.unknown_id) if index is None else index

    def tokenize(self, text: str, as_output: bool) -> list[str]:
        """Split a text into pieces. Added tokens are never split, and may absorb adjacent spaces."""
        parts = self._splitter.split(text) if self._added_ids else [text]
        for i in range(1, len(parts), 2):  # every other part is an added token
            token, left, right = self.added[self._added_ids[parts[i]]], parts[i - 1], parts[i + 1]
            if token.rstrip:
                parts[i + 1] = right = right.lstrip()
            if token.lstrip:
                parts[i - 1] = left = left.rstrip()
            if token.single_word and left and left[-1] != " ":
                parts[i - 1 : i + 1] = [left + parts[i], ""]
            elif token.single_word and right and right[0] != " ":
                parts[i : i + 2] = ["", parts[i] + right]
        pieces: list[str] = []
        for part in filter(None, parts):
            pieces += [part] if part in self._added_ids else self.tokenize_part(part, as_output)
        return pieces

    def tokenize_part(self, text: str, as_output: bool) -> list[str]:
        """Split a text without added tokens into pieces."""
        return list(self.processor.encode(text, out_type=str))

    def _decode(self, tokens: list[int]) -> str:
        """Join decoded runs of pieces and added tokens with spaces. Skips special tokens and ids that have no piece."""
        texts: list[str] = []
        run: list[str] = []
        for token in tokens:
            piece = self._by_id.get(token)
            if piece is None or token in self._special_ids or piece in self.special:
                continue
            if piece not in self._added_ids:
                run.append(piece)
                continue
            if run and (text := self.text_of(run)):
                texts.append(text)
            run = []
            texts.append(piece)
        return " ".join([*texts, self.text_of(run)] if run else texts)

    def piece(self, token: int) -> str:
        return self._by_id[token]

    def text_of(self, pieces: list[str]) -> str:
        text = "".join(pieces).replace(SPACE, " ") if self.joins_pieces else str(self.processor.decode(pieces))
        return text.strip() if self.strips else text


class T5Like(SentencePieceTokenizer):
    """The base class of T5's and Llama's tokenizers.

    If `legacy` is false, a space is added only before the whole text, not before each part between added tokens.
    """

    def set_up(self) -> None:
        self.legacy, self.adds_space = self.settings.flag("legacy", True), self.settings.flag("add_prefix_space", True)
        if not self.legacy:
            self.processor = read_model(self.folder / self.model_file, adds_space=False)
        self.pieces = pieces_of(self.processor)
        self.ids = {piece: index for index, piece in enumerate(self.pieces)}
        self.unknown = self.processor.unk_id()

    def tokenize(self, text: str, as_output: bool) -> list[str]:
        if self.legacy or not text:
            return super().tokenize(text, as_output)
        text = text.replace(SPACE, " ")
        pieces = super().tokenize(SPACE + text if self.adds_space else text, as_output)
        return pieces[1:] if len(pieces) > 1 and pieces[0] == SPACE and pieces[1] in self.special else pieces

    def tokenize_part(self, text: str, as_output: bool) -> list[str]:
        if self.legacy or not text.startswith((SPACE, " ")):
            return super().tokenize_part(text, as_output)
        # SentencePiece would drop a space at the start, so prepend the unknown token.
        unknown = content_of(self.named["unk_token"] or "")
        return super().tokenize_part(unknown + text, as_output)[len(super().tokenize_part(unknown, as_output)) :]

    def text_of(self, pieces: list[str]) -> str:
        if self.adds_space:
            pieces = [pieces[0].removeprefix(SPACE), *pieces[1:]]
        return super().text_of(pieces)


class T5Tokenizer(T5Like):
    """T5, mT5 and umT5. Appends the end token unless it is already there. Extra ids follow the pieces in reverse."""

    defaults = MappingProxyType({"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"})

    def set_up(self) -> None:
        super().set_up()
        self.named = {
            name: Token(token, special=True) if isinstance(token, str) and name in self.defaults else token
            for name, token in self.named.items()
        }
        count = self.settings.options.get("extra_ids", 100)
        names = [f"<extra_id_{i}>" for i in range(count)]
        given = self.settings.additional()
        known = names if given is None else [each for each in given if "<extra_id_" in content_of(each)]
        if count > 0 and known and count != len(known):
            raise InputError(
                f"{self.folder}: 'extra_ids' is {count}, but {len(known)} of the special tokens are extra ids"
            )
        self.additional = [*(given or []), *([] if known and given is not None else names)]
        end = len(self.pieces) - 1 + count
        extra = {end - i: Token(f"<extra_id_{i}>", True, True, special=True) for i in range(len(known))}
        self.added = extra | self.added

    def with_special_tokens(self, ids: list[int]) -> list[int]:
        return ids if ids and ids[-1:] == self.after_ids else [*ids, *self.after_ids]


class LlamaTokenizer(T5Like):
    """The tokenizer of Pile-T5."""

    model_file = "tokenizer.model"
    cleans_up_text = False
    strips = False
    defaults = MappingProxyType({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})

    def set_up(self) -> None:
        super().set_up()
        self.before = ("bos_token",) if self.settings.flag("add_bos_token", True) else ()
        self.after = ("eos_token",) if self.settings.flag("add_eos_token", False) else ()
        self.named = {
            name: Token(token, special=True) if isinstance(token, str) and name != "mask_token" else token
            for name, token in self.named.items()
        }


class PegasusTokenizer(SentencePieceTokenizer):
    """Ids are shifted by 103, the number of tokens used only in pretraining."""

    defaults = MappingProxyType(
        {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask_2>"}
    )

    def set_up(self) -> None:
        offset = self.settings.options.get("offset", 103)
        sentence_mask = self.settings.options.get("mask_token_sent", "<mask_1>")
        masks = [] if sentence_mask is None else [content_of(sentence_mask)]
        given = self.settings.additional()
        if given is None:
            self.additional = [*masks, *(f"<unk_{i}>" for i in range(2, offset))]
        else:
            self.additional = [*([] if set(masks) <= set(map(content_of, given)) else masks), *given]
            self.additional += [f"<unk_{i}>" for i in range(len(self.additional), offset - 1)]
        first = [
            self.named["pad_token"],
            self.named["eos_token"],
            *masks,
            *([self.named["mask_token"]] if masks else []),
        ]
        contents = [*(content_of(each or "") for each in first), *(f"<unk_{i}>" for i in range(2, offset))]
        self.added |= {index: Token(content, special=True) for index, content in enumerate(contents)}
        pieces = pieces_of(self.processor)
        self.pieces = [*pieces[:offset], *[""] * (offset - len(pieces)), *pieces]
        self.ids = {piece: index + offset for index, piece in enumerate(pieces)}
        self.unknown = self.processor.unk_id() + offset


class FairseqTokenizer(SentencePieceTokenizer):
    """Ids start with four special tokens, followed by all but the first three of SentencePiece's pieces."""

    model_file = "sentencepiece.bpe.model"
    defaults = MappingProxyType(
        {
            **{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>"},
            **{"cls_token": "<s>", "pad_token": "<pad>", "mask_token": Token("<mask>", lstrip=True)},
        }
    )
    codes: Sequence[str] = ()

    def set_up(self) -> None:
        first = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
        pieces = pieces_of(self.processor)
        more = [*self.codes, "<mask>"] if self.codes else []
        self.pieces = [*first, *pieces[3:], *more]
        fixed = {piece: len(pieces) + 1 + index for index, piece in enumerate(more)}
        self.ids = {piece: index + 1 for index, piece in enumerate(pieces) if index} | first | fixed
        if unknown := self.processor.unk_id():
            self.unknown = unknown + 1
        if isinstance(mask := self.named["mask_token"], str):
            self.named["mask_token"] = Token(mask, lstrip=True)


class MBartTokenizer(FairseqTokenizer):
    """Language codes and <mask> follow the pieces."""

    codes = language_codes.MBART
    joins_pieces = True

    def set_up(self) -> None:
        super().set_up()
        self.additional = [*self.codes, *(each for each in self.additional if content_of(each) not in self.codes)]


class MBart50Tokenizer(FairseqTokenizer):
    """Language codes and <mask> follow the pieces."""

    codes = language_codes.MBART50
    defaults = MappingProxyType({name: each for name, each in FairseqTokenizer.defaults.items() if name != "bos_token"})

    def set_up(self) -> None:
        super().set_up()
        known = {content_of(each) for each in self.additional}
        self.additional += [code for code in self.codes if code not in known]


class NllbTokenizer(FairseqTokenizer):
    """<mask> and the language codes are added after the pieces."""

    cleans_up_text = False
    joins_pieces = True

    def set_up(self) -> None:
        super().set_up()
        first = ("bos_token", "pad_token", "eos_token", "unk_token")
        fixed = {index: token_from(self.named[name]) for index, name in enumerate(first)}
        self.named |= {name: fixed[index] for index, name in enumerate(first)}
        self.added = fixed | self.added
        if self.settings.additional() is None:
            self.additional = [*language_codes.NLLB]


class M2M100Tokenizer(SentencePieceTokenizer):
    """vocab.json defines the pieces' ids; language tokens follow them."""

    model_file = "sentencepiece.bpe.model"
    has_one_model = False
    defaults = MappingProxyType(
        {
            **{"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"},
            **{"pad_token": "<pad>", "unk_token": "<unk>"},
        }
    )

    def set_up(self) -> None:
        known = self.ids_of_pieces()
        codes = {"m2m100": language_codes.M2M100, "wmt21": language_codes.WMT21}
        name = self.settings.options.get("language_codes", "m2m100")
        tokens = {f"__{code}__": len(known) + index for index, code in enumerate(codes[name])}
        if self.settings.pieces is not None:  # they include the language tokens, and fillers that follow these
            languages = (token.content for token in self.added.values() if re.fullmatch(UNDERSCORES, token.content))
            tokens = {token: known[token] for token in languages}
            known = {piece: index for piece, index in known.items() if index < min(tokens.values())}
        by_id = {index: piece for piece, index in known.items()}
        unknown = content_of(self.named["unk_token"] or "")
        self.pieces = [by_id.get(index, unknown) for index in range(len(known))]
        self.own_languages = {index: piece for piece, index in tokens.items()}
        self.ids = known | tokens
        self.unknown = known[unknown]

    def language_tokens(self) -> Mapping[int, str]:
        return {**super().language_tokens(), **self.own_languages}


class MarianTokenizer(SentencePieceTokenizer):
    """Sources and outputs have separate SentencePiece models, but share a vocabulary. >>code<< may precede a source."""

    model_file = "source.spm"
    has_one_model = False
    defaults = MappingProxyType({"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"})

    def set_up(self) -> None:
        if self.settings.flag("separate_vocabs", False):
            raise InputError(f"{self.folder}: 'separate_vocabs' of its tokenizer_config.json is not supported")
        is_only = self.model_file != "source.spm"  # one model for sources and outputs
        self.target = self.processor if is_only else read_model(self.folder / "target.spm")
        self.ids = self.ids_of_pieces()
        unknown = content_of(self.named["unk_token"] or "")
        by_id = {index: piece for piece, index in self.ids.items()}
        self.pieces = [by_id.get(index, unknown) for index in range(len(self.ids))]
        self.unknown = self.ids[unknown]

    def tokenize_part(self, text: str, as_output: bool) -> list[str]:
        match = LANGUAGE_CODE.match(text)
        pieces = (self.target if as_output else self.processor).encode(LANGUAGE_CODE.sub("", text), out_type=str)
        return [match[0], *pieces] if match else list(pieces)

    def text_of(self, pieces: list[str]) -> str:
        return str(self.target.decode_pieces(pieces)).replace(SPACE, " ").strip()


class BartphoTokenizer(SentencePieceTokenizer):
    """BARTpho's tokenizer. dict.txt lists the pieces that have ids."""

    model_file = "sentencepiece.bpe.model"
    joins_pieces = True
    has_one_model = False
    defaults = FairseqTokenizer.defaults
    before, after = ("cls_token",), ("sep_token",)

    def set_up(self) -> None:
        first = ("bos_token", "pad_token", "eos_token", "unk_token", "sep_token", "cls_token")
        lines = (self.folder / "dict.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")
        mask = self.named["mask_token"]
        if isinstance(mask, str):
            mask = self.named["mask_token"] = Token(mask, lstrip=True)
        pieces = [*(content_of(self.named[name] or "") for name in first), *(line.split()[0] for line in lines)]
        self.pieces = list(dict.fromkeys([*pieces, content_of(mask or "")]))
        self.ids = {piece: index for index, piece in enumerate(self.pieces)}


CLASSES: Mapping[str, type[SentencePieceTokenizer]] = {
    "T5Tokenizer": T5Tokenizer,
    "MT5Tokenizer": T5Tokenizer,
    "LlamaTokenizer": LlamaTokenizer,
    "PegasusTokenizer": PegasusTokenizer,
    "MBartTokenizer": MBartTokenizer,
    "MBart50Tokenizer": MBart50Tokenizer,
    "NllbTokenizer": NllbTokenizer,
    "M2M100Tokenizer": M2M100Tokenizer,
    "MarianTokenizer": MarianTokenizer,
    "BartphoTokenizer": BartphoTokenizer,
}
BY_MODEL_TYPE: Mapping[str | None, str] = {
    "t5": "T5Tokenizer",
    "mt5": "T5Tokenizer",
    "umt5": "T5Tokenizer",
    None: "T5Tokenizer",
    "pegasus": "PegasusTokenizer",
    "mbart": "MBartTokenizer",
    "marian": "MarianTokenizer",
    "m2m_100": "M2M100Tokenizer",
}


def read_sentencepiece(folder: Path) -> SentencePieceTokenizer | None:
    """Read a folder's SentencePiece model. Returns None if the folder has none, or if its class is not supported."""
    name = tokenizer_class(folder) or BY_MODEL_TYPE.get(model_type_of(folder))
    if name == "M2M100Tokenizer" and not (folder / "vocab.json").is_file():
        name = "NllbTokenizer"  # both have the same `model_type`
    chosen = CLASSES.get(name or "")
    if chosen is None or not (folder / chosen.model_file).is_file():
        return None
    with tokenizer_errors(f"{folder}: its tokenizer cannot be loaded"):
        return chosen(folder, Settings.read(folder))


def read_model(path: Path, adds_space: bool | None = None) -> Any:
    """Read a SentencePiece model. adds_space: overrides its `add_dummy_prefix`."""
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

    data = path.read_bytes()
    if adds_space is not None:
        model = sentencepiece_model_pb2.ModelProto.FromString(data)  # type: ignore[attr-defined]
        model.normalizer_spec.add_dummy_prefix = adds_space
        data = model.SerializeToString()
    processor = SentencePieceProcessor()
    processor.LoadFromSerializedProto(data)
    return processor


def pieces_of(processor: Any) -> list[str]:
    return list(processor.id_to_piece(list(range(len(processor)))))


def read_vocabulary(path: Path) -> dict[str, int]:
    """Read a vocab.json."""
    vocabulary = json.loads(path.read_bytes())
    if not isinstance(vocabulary, dict) or not all(type(index) is int for index in vocabulary.values()):
        raise InputError(f"{path}: not an object of pieces and ids")
    return vocabulary


def token_from(token: Token | str | None) -> Token:
    return token if isinstance(token, Token) else Token(token or "", special=True)
