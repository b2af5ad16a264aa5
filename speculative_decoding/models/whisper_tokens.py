"""A Whisper model's special token ids, from OpenAI's layout, the tokenizer and generation_config.json."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import CheckpointError, InputError
from ..sampling.options import short_repr
from ..sampling.values import Bool, Int, ListOf, Text, Value
from .config import require
from .speech_languages import code_of_language

MULTILINGUAL_SIZE = 51865  # ids; OpenAI's English-only vocabularies have one id fewer, and large-v3's has one more
ENGLISH_END = 50256  # the end-of-text token of English-only models
NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")
SPECIAL_PIECES = {
    "<|translate|>": "translate",
    "<|transcribe|>": "transcribe",
    "<|startofprev|>": "previous",
    **dict.fromkeys(NO_SPEECH, "no_speech"),
    "<|notimestamps|>": "no_timestamps",
}


@dataclass(frozen=True, kw_only=True)
class AudioConfig:
    """A speech model's source sizes, special token ids and defaults.

    window_frames: The longest source, in frames of 10 ms.
    previous: The token that precedes the text transcribed before the window.
    timestamp_begin: The token for 0.00 s; the timestamp token for position i is `timestamp_begin` + i.
    languages: Language code -> token. Empty for English-only models.
    alignment_heads: (layer, head) of each cross-attention head that aligns tokens with the speech.
    alignment_note: The reason why `alignment_heads` differs from generation_config.json, or "".
    max_initial_timestamp_index: The maximum of the first timestamp, in encoder positions.
    unused: Ids after the timestamps that serve only as padding of the vocabulary.
    suppressed, begin_suppressed: Tokens that are never generated, or never at the start. None: as in openai-whisper.
    language, task: The model's defaults, or None.
    """

    num_mel_bins: int
    window_frames: int
    start: int
    end: int
    translate: int
    transcribe: int
    previous: int
    no_speech: int
    no_timestamps: int
    timestamp_begin: int
    is_multilingual: bool
    alignment_heads: Sequence[tuple[int, int]]
    alignment_note: str = ""
    languages: Mapping[str, int] = field(default_factory=dict)
    max_initial_timestamp_index: int = 50
    unused: Sequence[int] = ()
    suppressed: Sequence[int] | None = None
    begin_suppressed: Sequence[int] | None = None
    language: str | None = None
    task: str | None = None

    @property
    def timestamp_end(self) -> int:
        """The first id after the timestamps, where tokens that were added to the vocabulary may start."""
        return self.timestamp_begin + self.window_frames // 2 + 1

    def is_timestamp(self, token: int) -> bool:
        return self.timestamp_begin <= token < self.timestamp_end

    def is_text(self, token: int) -> bool:
        """Return whether a token is text. Text tokens precede the special tokens or were added after the timestamps."""
        return token < self.end or token >= self.timestamp_end

    @property
    def defaults(self) -> dict[str, Any]:
        """The model's defaults for transcription options."""
        return {name: value for name in ("language", "task") if (value := getattr(self, name)) is not None}

    def start_tokens(self, language: str, task: str = "transcribe") -> list[int]:
        """Return the ids that start every output: startoftranscript and, for multilingual models, language and task."""
        if not self.is_multilingual:
            return [self.start]
        return [self.start, self.languages[language], self.translate if task == "translate" else self.transcribe]


def config_by_layout(vocab_size: int, window_positions: int, **known: Any) -> AudioConfig:
    """Return the config for a vocabulary that ends with the timestamps: one per encoder position, plus one more."""
    return AudioConfig(
        **ids_by_layout(vocab_size - window_positions - 2),
        is_multilingual=vocab_size >= MULTILINGUAL_SIZE and known["end"] != ENGLISH_END,
        window_frames=2 * window_positions,
        **known,
    )


def resolved(
    audio: AudioConfig,
    pieces: Mapping[int, str],
    generation_config: Mapping[str, Any],
    decoder: tuple[int, int],
    vocab_size: int,
    file: str,
) -> AudioConfig:
    """Return the config updated with a tokenizer's tokens and the fields of generation_config.json.

    Args:
        audio: The result of `config_by_layout`.
        pieces: The tokenizer's piece for each id.
        generation_config: The parsed file.
        decoder: The number of decoder layers, and the number of heads per layer.
        vocab_size: The number of rows in the embedding.
        file: The name of the parsed file, for error messages.

    Raises:
        InputError: The tokenizer has a different vocabulary.
        CheckpointError: A field is invalid.
    """
    fields = Fields(generation_config, vocab_size, file)
    special = {piece: token for token, piece in pieces.items() if token >= audio.end}
    ids = stated_ids(special, fields, vocab_size)
    found = replace(audio, **ids)
    if found.timestamp_end > vocab_size:
        raise CheckpointError(
            f"{file}: 'no_timestamps_token_id' {found.no_timestamps} leaves no room for {found.window_frames // 2} "
            f"timestamps among {vocab_size} tokens"
        )
    languages = fields.languages() or {
        match[1]: token
        for token in range(audio.start + 1, found.translate)
        if (match := re.fullmatch(r"<\|([a-z]{2,4})\|>", pieces.get(token, "")))
    }
    require_pieces(found, languages, pieces)
    is_multilingual = fields.read("is_multilingual", Bool(), audio.is_multilingual)
    language = fields.language(languages if is_multilingual else ("en",))
    heads, note = alignment_heads(fields.read("alignment_heads", ListOf(ListOf(Int(0)))), *decoder, file)
    return replace(
        found,
        is_multilingual=is_multilingual,
        languages=languages if is_multilingual else {},
        max_initial_timestamp_index=fields.read(
            "max_initial_timestamp_index", Int(0, 1 << 16), audio.max_initial_timestamp_index
        ),
        alignment_heads=heads or audio.alignment_heads,
        alignment_note=note,
        unused=[token for token in range(found.timestamp_end, vocab_size) if token not in pieces],
        suppressed=fields.read("suppress_tokens", ListOf(fields.token)),
        begin_suppressed=fields.read("begin_suppress_tokens", ListOf(fields.token)),
        language=language if is_multilingual else None,
        task=fields.read("task", Text(("transcribe", "translate") if is_multilingual else ("transcribe",))),
    )


def require_pieces(audio: AudioConfig, languages: Mapping[str, int], pieces: Mapping[int, str]) -> None:
    """Raise `InputError` unless the tokenizer contains the expected pieces for the model's special tokens."""
    expected = {
        audio.start: ("<|startoftranscript|>",),
        audio.transcribe: ("<|transcribe|>",),
        audio.no_speech: NO_SPEECH,
        audio.no_timestamps: ("<|notimestamps|>",),
        **{token: (f"<|{code}|>",) for code, token in languages.items()},
    }
    for token, names in expected.items():
        if pieces.get(token) not in names:
            raise InputError(
                f"tokenizer: token {token} does not fit the model (got {pieces.get(token)!r}, expected "
                f"{names[0]!r}); use the tokenizer of a Whisper model with the same vocabulary"
            )


def stated_ids(special: Mapping[str, int], fields: Fields, vocab_size: int) -> dict[str, Any]:
    """Return the special token ids in generation_config.json or the tokenizer, or {} to keep OpenAI's layout.

    If the vocabulary is the same size as one of OpenAI's, ids that only the tokenizer contains are used only if it
    names every token. Otherwise, a tokenizer from a different Whisper model could not be detected.
    """
    stated = fields.ids()
    by_piece = {name: special[piece] for piece, name in SPECIAL_PIECES.items() if piece in special}
    names_all = vocab_size - 1 in special.values()
    if "no_timestamps" in stated:
        known = by_piece | stated
    elif "no_timestamps" in by_piece and (names_all or vocab_size - MULTILINGUAL_SIZE not in (-1, 0, 1)):
        known = by_piece
    else:
        return {}
    return ids_by_layout(known["no_timestamps"]) | known


def ids_by_layout(no_timestamps: int) -> dict[str, Any]:
    """Return the ids of the special tokens adjacent to notimestamps.

    All Whisper vocabularies contain these tokens in this order: startoftranscript, languages, translate, transcribe,
    startoflm, startofprev, nospeech, notimestamps, timestamps.
    """
    names = ("translate", "transcribe", "startoflm", "previous", "no_speech", "no_timestamps", "timestamp_begin")
    ids: dict[str, Any] = {name: no_timestamps - 5 + i for i, name in enumerate(names)}
    del ids["startoflm"]
    return ids


class Fields:
    """Reads fields of generation_config.json. Raises `CheckpointError` for invalid fields."""

    def __init__(self, raw: Mapping[str, Any], vocab_size: int, file: str) -> None:
        self._raw = {name: value for name, value in raw.items() if value is not None}
        self._file = file
        self.token = Int(0, vocab_size - 1)

    def read(self, name: str, value: Value, default: Any = None) -> Any:
        return require(name, value, self._raw[name], self._file) if name in self._raw else default

    def ids(self) -> dict[str, int]:
        """Return the ids specified in the file, keyed by their names in `AudioConfig`."""
        tasks = self._mapping("task_to_id")
        stated = {name: tasks.get(name) for name in ("translate", "transcribe")}
        stated["no_timestamps"] = self.read("no_timestamps_token_id", self.token)
        stated["previous"] = self.read("prev_sot_token_id", self.token)
        return {name: token for name, token in stated.items() if token is not None}

    def language(self, supported: Collection[str]) -> str | None:
        """Return the default language's code, or None if the file specifies no language."""
        language = self.read("language", Text())
        if language is None:
            return None
        language = code_of_language(language)
        if language not in supported:
            raise CheckpointError(f"{self._file}: 'language' {language[:80]!r} is not a language of this model")
        return language

    def languages(self) -> dict[str, int]:
        return {
            name.removeprefix("<|").removesuffix("|>"): token for name, token in self._mapping("lang_to_id").items()
        }

    def _mapping(self, name: str) -> dict[str, int]:
        found = self._raw.get(name, {})
        if not isinstance(found, dict):
            raise CheckpointError(f"{self._file}: {name!r} must be an object, not {short_repr(found)}")
        return {key: require(f"{name} of {key}", self.token, token, self._file) for key, token in found.items()}


def upper_half(layers: int, heads: int) -> list[tuple[int, int]]:
    """Return all heads in the upper half of the layers, OpenAI's choice for models without known alignment heads."""
    return [(layer, head) for layer in range(layers // 2, layers) for head in range(heads)]


def alignment_heads(
    pairs: Sequence[Sequence[int]] | None, layers: int, heads: int, file: str
) -> tuple[list[tuple[int, int]], str]:
    """Return the alignment heads in generation_config.json and "", or an empty list and a note that explains it.

    If the list contains a layer or head that does not exist, it was copied from the model from which this one was
    distilled, and its numbers refer to different heads.
    """
    if pairs is None:
        return [], ""
    for pair in pairs:
        if len(pair) != 2:
            raise CheckpointError(f"{file}: 'alignment_heads' must be pairs of a layer and a head, not {list(pair)}")
        if pair[0] >= layers or pair[1] >= heads:
            note = (
                f"'alignment_heads' has {list(pair)}, but this decoder has {layers} layers of {heads} heads; word "
                "times use all heads of the upper half of the layers, as for models without known heads"
            )
            return [], f"{file}: {note}"
    return [(layer, head) for layer, head in pairs], ""
