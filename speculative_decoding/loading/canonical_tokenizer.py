"""Writes a tokenizer as a single tokenizer.json, after checking that `tokenizers` alone reproduces the reference."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError, note
from .ctranslate2_tokenizer import ModelVocabulary
from .languages import Languages
from .reference_tokenizer import read_model_files
from .sentencepiece_tokenizer import SPACE, SentencePieceTokenizer, T5Like, T5Tokenizer
from .tokenizer import load_tokenizer, proven_record
from .tokenizer_base import (
    MAX_FILE_BYTES,
    TOKENIZER_FILES,
    FastTokenizer,
    FolderTokenizer,
    read_backend,
    tokenizer_errors,
)

IDS = 64  # ids per decoded run
UNIGRAM, BPE = 1, 2  # SentencePiece's model types
NORMAL, USER_DEFINED, UNUSED = 1, 4, 5  # SentencePiece's piece types

# Strings that expose differences between tokenizers that agree on plain sentences. Used by conversion and tests.
HARD_TEXTS = (
    "",
    " ",
    "   ",
    "The house is wonderful.",
    "UPPER Case, lower case and Title Case",
    "He does n't know , do n't you ? I 'm sure they 've 3 . 5 ! it 's ' so '",
    " leading",
    "trailing ",
    "  both  ends  and   runs    inside  ",
    "line\nbreaks\r\nof\rall\n\nkinds\n",
    "\n",
    "\ttabs\tand\x0bvertical\x0cfeeds\t",
    "naïve café — Ärger über Größe, İstanbul ßẞ",
    "e\u0301 a\u0308 o\u0302\u0323 combined, \u00e9 \u00e4 \u1ed9 composed, \u0301alone",
    "emoji 🎉, 👩\u200d👩\u200d👧, 🇩🇪, 👍🏽 and ❤\ufe0f.",
    "שלום עולם, مرحبا بالعالم \u202bright to left\u202c",
    "漢字とカナ 한국어 ㄱㅏ 这座房子很漂亮。 ｶﾞ",
    "हिन्दी ไทย தமிழ் ქართული",
    "control \x00\x01\x1f\x7f\x85 characters",
    "zero\u200bwidth\u200c\u200d\u2060\ufeff joiners, soft\u00adhyphen",
    "no-break\u00a0space, thin\u2009space, ideographic\u3000space, line\u2028separator",
    "\uff26\uff35\uff2c\uff2c \uff57idth ﬁrst ½ ² ™ … № Ⅷ ㎏",
    "x_1 = foo(bar[0]) // 100,000.5 \\n %s {} <b>&amp;</b> a@b.c",
    "▁ is SpaceSymbol▁of ▁▁ pieces, <0x41><0xE4> of bytes, ## of words, Ġ and Ċ of bytes",
    "say </s> and <s>, <unk>, <pad>, <mask>, [SEP], [UNK], <extra_id_0>, <|endoftext|> or <bos>",
    ">>deu<< <2de> __de__ deu_Latn de_DE translate it",
    "\ufffd replaced \U0010ffff \ue000 private",
    "a" * 5000,
    "letters" * 40 + " " + "漢" * 300,
)


def canonical_tokenizer(source: Path) -> FastTokenizer | None:
    """Load a folder's tokenizer, and return an equivalent that needs only tokenizer.json, or None if there is none.

    Prints a note if the folder's files disagree with each other, or if the result is None.
    """
    reference = load_tokenizer(source)
    assert isinstance(reference, FolderTokenizer)
    if (source / "tokenizer.json").is_file() and proven_record(source) is None:
        try:
            other = read_model_files(source, ModelVocabulary.find(source))
        except InputError as error:
            note(f"{error}; tokenizer.json is used")
            other = None
        if (
            isinstance(other, SentencePieceTokenizer)
            and (found := next(differences(reference, other), None)) is not None
        ):
            files = f"tokenizer.json and {other.model_file}"
            note(f"{source}: {files} differ, for example in {found}; tokenizer.json is used")
    return prove(reference, source)


def write_tokenizer(source: Path, proven: FastTokenizer | None, output: Path) -> dict[str, Any] | None:
    """Write the canonical tokenizer, or copy the files of `source` if there is none. Returns the manifest entry."""
    if proven is None:
        return copy_tokenizer(source, output)
    (output / "tokenizer.json").write_text(proven.backend.to_str(), encoding="utf-8")
    return proven.record()


def copy_tokenizer(source: Path, output: Path) -> dict[str, Any] | None:
    """Copy all files of a tokenizer, and return its manifest entry."""
    paths = [source / name for name in TOKENIZER_FILES]
    vocabulary = ModelVocabulary.find(source)
    if vocabulary is not None and vocabulary.path.parent != source:  # of an Argos package
        paths.append(vocabulary.path)
    for path in filter(Path.is_file, paths):
        shutil.copyfile(path, output / path.name)
    record = proven_record(source)
    return None if record is None else dict(record)


def prove(reference: FolderTokenizer, source: Path) -> FastTokenizer | None:
    """Return a `FastTokenizer` equivalent to the reference. If there is none, print the reason and return None."""
    try:
        fast = candidate(reference, source)
        found = None if fast is None else next(differences(reference, fast), None)
        problem = "cannot express it" if fast is None else found and f"gives another result for {found}"
    except InputError as error:  # an unusual model that only SentencePiece can load
        problem = f"rejects it: {error}"
    if problem is None:
        return fast
    note(f"{source}: the tokenizer's files are copied unchanged, because the tokenizers package {problem}")
    return None


def differences(reference: FolderTokenizer, other: FolderTokenizer) -> Iterator[str]:
    """Yield a description of each difference: in a token, in the languages, on a hard text, or on a run of ids."""
    pieces, others = reference.vocabulary.pieces, other.vocabulary.pieces
    if pieces != others:
        first = next(token for token in sorted({*pieces, *others}) if pieces.get(token) != others.get(token))
        yield f"token {first}: {pieces.get(first)!r} or {others.get(first)!r}"
    if reference.languages != other.languages:
        yield "the languages"
    for text in [*HARD_TEXTS, *texts_with(added_tokens(reference))]:
        ids = result_of(reference.encode, text)
        outputs = result_of(reference.encode_output, text)
        is_equal = ids == result_of(other.encode, text) and outputs == result_of(other.encode_output, text)
        if not is_equal or (ids is not None and decoded_differently(reference, other, ids)):
            yield f"the text {shortened(text)!r}"
    rng = random.Random(0)
    tokens = list(pieces)
    runs = [tokens[start : start + IDS] for start in range(0, len(tokens), IDS)]
    runs += [rng.choices(tokens, k=size) for size in (1, 2, 3, 30) for _ in range(50)]
    if reference.byte_tokens:
        runs += [rng.choices(sorted(reference.byte_tokens), k=3) for _ in range(50)]
    for run in runs:
        if decoded_differently(reference, other, run):
            yield f"the ids {run[:8]}"


def texts_with(tokens: Iterable[str]) -> list[str]:
    """Return a test string for each added token, in which the token occurs between spaces and between letters."""
    return [f"a {token} b{token}c  {token}  d" for token in tokens]


def result_of(encode: Callable[[str], list[int]], text: str) -> list[int] | None:
    """Return the token ids of a string, or None if the tokenizer cannot encode it."""
    try:
        return encode(text)
    except InputError:
        return None


def decoded_differently(reference: FolderTokenizer, other: FolderTokenizer, ids: list[int]) -> bool:
    return reference.decode(ids) != other.decode(ids)


def shortened(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}..."


def added_tokens(tokenizer: FolderTokenizer) -> list[str]:
    """Return the contents of the added tokens, at which the tokenizer splits its input."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return [token.content for token in tokenizer.added.values()]
    if isinstance(tokenizer, FastTokenizer):
        return [str(token) for token in tokenizer.backend.get_added_tokens_decoder().values()]
    return []


def candidate(reference: FolderTokenizer, source: Path) -> FastTokenizer | None:
    """Return the tokenizer that conversion would write as tokenizer.json, or None if that format cannot express it."""
    backend: Any = None
    strips, ends_once = False, None
    with tokenizer_errors("its model"):
        if isinstance(reference, FastTokenizer):
            backend, strips, ends_once = reference.backend, reference.strips, reference.ends_once
        elif isinstance(reference, SentencePieceTokenizer) and reference.has_one_model:
            strips, ends_once = reference.strips, reference.after_ids[0] if isinstance(reference, T5Tokenizer) else None
            if not isinstance(reference, T5Like) or reference.legacy:
                backend = sentencepiece_backend(reference)
        data = b"" if backend is None else backend.to_str().encode()
    if not 0 < len(data) <= MAX_FILE_BYTES:
        return None
    again = read_backend(data, source / "tokenizer.json")
    added = again.get_added_tokens_decoder()
    rules = reference.language_rules
    languages = None if rules is None else Languages.from_record(rules.record(), added, source)
    return FastTokenizer(again, languages, reference.cleans_up, strips, ends_once)


def sentencepiece_backend(reference: SentencePieceTokenizer) -> Any:
    """Express a SentencePiece model with `tokenizers`, or return None if that is impossible."""
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import AddedToken, Tokenizer, processors

    proto = sentencepiece_model_pb2.ModelProto.FromString(  # type: ignore[attr-defined]
        reference.processor.serialized_model_proto()
    )
    added = {token.content for token in reference.added.values()}
    unsupported = [each for each in proto.pieces if each.type in (USER_DEFINED, UNUSED) and each.piece not in added]
    contents = [reference.piece(index) for index in range(len(reference.pieces))]
    if unsupported or proto.trainer_spec.treat_whitespace_as_suffix or len(set(contents)) < len(contents):
        return None
    model = subword_model(proto, contents, reference.unknown_id)
    if model is None:
        return None
    backend = Tokenizer(model)
    backend.normalizer = normalizer_of(proto.normalizer_spec)
    backend.decoder = decoder_of(reference, proto.trainer_spec.byte_fallback)
    backend.add_tokens(
        [
            AddedToken(
                token.content,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                single_word=token.single_word,
                normalized=False,
                special=token.content in reference.special,
            )
            for _, token in sorted(reference.added.items())
        ]
    )
    around = [*reference.before_ids, *reference.after_ids]
    backend.post_processor = processors.TemplateProcessing(
        single=[*map(reference.piece, reference.before_ids), "$A", *map(reference.piece, reference.after_ids)],
        special_tokens=[(reference.piece(index), index) for index in dict.fromkeys(around)],
    )
    return backend


def subword_model(proto: Any, contents: Sequence[str], unknown_id: int) -> Any:
    """Convert a SentencePiece model of type unigram or BPE. Returns None for other types.

    contents: The piece of each id.
    """
    from tokenizers import models

    trained = proto.trainer_spec
    if trained.model_type == UNIGRAM:
        scores = {each.piece: each.score for each in proto.pieces}
        vocabulary = [(piece, scores.get(piece, 0.0)) for piece in contents]
        return models.Unigram(vocabulary, unk_id=unknown_id, byte_fallback=trained.byte_fallback)
    if trained.model_type != BPE:
        return None
    ids = {piece: index for index, piece in enumerate(contents)}
    scores = {each.piece: each.score for each in proto.pieces if each.type == NORMAL and each.piece in ids}
    merges = sorted(
        (-score, ids[piece], piece[:end], piece[end:])
        for piece, score in scores.items()
        for end in range(1, len(piece))
        if piece[:end] in scores and piece[end:] in scores
    )
    return models.BPE(
        ids,
        [(left, right) for *_, left, right in merges],
        unk_token=contents[unknown_id],
        fuse_unk=True,
        byte_fallback=trained.byte_fallback,
    )


def normalizer_of(spec: Any) -> Any:
    """Return the normalizer for a SentencePiece `NormalizerSpec`."""
    from tokenizers import Regex, normalizers

    steps: list[Any] = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.escape_whitespaces:
        steps.append(normalizers.Replace(" ", SPACE))
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    return normalizers.Sequence(steps)


def decoder_of(reference: SentencePieceTokenizer, has_bytes: bool) -> Any:
    """Return the decoder for a SentencePiece model. has_bytes: Whether pieces may be single bytes."""
    from tokenizers import decoders

    return decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            *([decoders.ByteFallback()] if has_bytes and not reference.joins_pieces else []),
            decoders.Fuse(),
            *([] if reference.strips else [decoders.Strip(" ", 1, 0)]),
        ]
    )
