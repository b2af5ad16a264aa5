"""Writes a tokenizer as one tokenizer.json, after proving that `tokenizers` alone gives the reference's results."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import InputError, note
from .hard_texts import HARD_TEXTS, texts_with
from .languages import Languages
from .sentencepiece_tokenizer import SPACE, SentencePieceTokenizer, T5Like, T5Tokenizer, read_sentencepiece
from .tokenizer import load_tokenizer, proven_record
from .tokenizer_base import (
    MAX_FILE_BYTES,
    TOKENIZER_FILES,
    FastTokenizer,
    FolderTokenizer,
    read_backend,
    tokenizer_errors,
)

IDS = 64  # number of ids that a proof decodes together
UNIGRAM, BPE = 1, 2  # SentencePiece's model types
USER_DEFINED, UNUSED = 4, 5  # SentencePiece's types of pieces


def canonical_tokenizer(source: Path) -> FastTokenizer | None:
    """Load a folder's tokenizer, and return an equal one that needs only a tokenizer.json, or None if there is none.

    Notes report differences between the folder's files, and explain a result of None.
    """
    reference = load_tokenizer(source)
    assert isinstance(reference, FolderTokenizer)
    if (source / "tokenizer.json").is_file() and proven_record(source) is None:
        try:
            other = read_sentencepiece(source)
        except InputError as error:
            note(f"{error}; tokenizer.json is used")
            other = None
        if other is not None and (found := next(differences(reference, other), None)) is not None:
            files = f"tokenizer.json and {other.model_file}"
            note(f"{source}: {files} differ, for example in {found}; tokenizer.json is used")
    return prove(reference, source)


def write_tokenizer(source: Path, proven: FastTokenizer | None, output: Path) -> dict[str, Any] | None:
    """Write the canonical tokenizer of `source`, or copy its files if it has none. Returns its manifest entry."""
    if proven is None:
        return copy_tokenizer(source, output)
    (output / "tokenizer.json").write_text(proven.backend.to_str(), encoding="utf-8")
    return proven.record()


def copy_tokenizer(source: Path, output: Path) -> dict[str, Any] | None:
    """Copy all files of a tokenizer, and return their entry for a manifest."""
    for path in filter(Path.is_file, (source / name for name in TOKENIZER_FILES)):
        shutil.copyfile(path, output / path.name)
    record = proven_record(source)
    return None if record is None else dict(record)


def prove(reference: FolderTokenizer, source: Path) -> FastTokenizer | None:
    """Return a `FastTokenizer` that equals the reference. If that fails, note the reason and return None."""
    try:
        fast = candidate(reference, source)
        found = None if fast is None else next(differences(reference, fast), None)
        problem = (
            "it has no equal in the tokenizers package" if fast is None else found and f"that package reads {found}"
        )
    except InputError as error:  # an unusual model that only SentencePiece accepts
        problem = f"the tokenizers package refuses them: {error}"
    if problem is None:
        return fast
    note(f"{source}: the tokenizer's files are copied as they are; {problem}")
    return None


def differences(reference: FolderTokenizer, other: FolderTokenizer) -> Iterator[str]:
    """Yield a description of each difference: a token, the languages, a hard text, or a run of ids."""
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


def result_of(encode: Callable[[str], list[int]], text: str) -> list[int] | None:
    """Return the ids of a text, or None if the tokenizer cannot encode it."""
    try:
        return encode(text)
    except InputError:
        return None


def decoded_differently(reference: FolderTokenizer, other: FolderTokenizer, ids: list[int]) -> bool:
    return reference.decode(ids) != other.decode(ids)


def shortened(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}..."


def added_tokens(tokenizer: FolderTokenizer) -> list[str]:
    """Return the contents of the tokens at which the tokenizer splits a text."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return [token.content for token in tokenizer.added.values()]
    if isinstance(tokenizer, FastTokenizer):
        return [str(token) for token in tokenizer.backend.get_added_tokens_decoder().values()]
    return []


def candidate(reference: FolderTokenizer, source: Path) -> FastTokenizer | None:
    """Return a tokenizer that may equal the reference, read from the tokenizer.json that conversion would write."""
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
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors

    proto = sentencepiece_model_pb2.ModelProto.FromString(  # type: ignore[attr-defined]
        reference.processor.serialized_model_proto()
    )
    trained, normal = proto.trainer_spec, proto.normalizer_spec
    added = {token.content for token in reference.added.values()}
    unsupported = [each for each in proto.pieces if each.type in (USER_DEFINED, UNUSED) and each.piece not in added]
    contents = [reference.piece(index) for index in range(len(reference.pieces))]
    if unsupported or trained.treat_whitespace_as_suffix or len(set(contents)) < len(contents):
        return None
    scores = {each.piece: each.score for each in proto.pieces}
    has_bytes = trained.byte_fallback
    model: Any
    if trained.model_type == UNIGRAM:
        vocabulary = [(piece, scores.get(piece, 0.0)) for piece in contents]
        model = models.Unigram(vocabulary, unk_id=reference.unknown_id, byte_fallback=has_bytes)
    elif trained.model_type == BPE:
        ids = {piece: index for index, piece in enumerate(contents)}
        normal_pieces = {each.piece: each.score for each in proto.pieces if each.type == 1 and each.piece in ids}
        merges = sorted(
            (-score, ids[piece], piece[:end], piece[end:])
            for piece, score in normal_pieces.items()
            for end in range(1, len(piece))
            if piece[:end] in normal_pieces and piece[end:] in normal_pieces
        )
        model = models.BPE(
            ids,
            [(left, right) for *_, left, right in merges],
            unk_token=contents[reference.unknown_id],
            fuse_unk=True,
            byte_fallback=has_bytes,
        )
    else:
        return None
    backend = Tokenizer(model)

    steps: list[Any] = [normalizers.Precompiled(normal.precompiled_charsmap)] if normal.precompiled_charsmap else []
    if normal.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if normal.escape_whitespaces:
        steps.append(normalizers.Replace(" ", SPACE))
    if normal.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    backend.normalizer = normalizers.Sequence(steps)

    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            *([decoders.ByteFallback()] if has_bytes and not reference.joins_pieces else []),
            decoders.Fuse(),
            *([] if reference.strips else [decoders.Strip(" ", 1, 0)]),
        ]
    )
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
