"""Parses generation_config.json: reads the fields that this package applies, and composes a note about ignored ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import CheckpointError, Message, Name, joined
from ..sampling import Constraints, GenerationOptions
from ..sampling.options import MAX_REPEATED, MAX_TOKENS, option_specs, short_repr
from ..sampling.values import Int, ListOf, Number, Value
from .config import require

MAX_BAD_WORDS = 1 << 16
FILE = "generation_config.json"
NUMBERS: Mapping[str, Value] = {
    "repetition_penalty": Number(1e-10, 1e10),
    "no_repeat_ngram_size": Int(0, MAX_REPEATED),
    "min_length": Int(0, MAX_TOKENS),
    "min_new_tokens": Int(0, MAX_TOKENS),
    "length_penalty": option_specs()["length_penalty"].type,
    "early_stopping": option_specs()["early_stopping"].type,
}
# Ignored field that would change the output -> the option to set instead, and that option's purpose.
IGNORED: Mapping[str, tuple[str, str]] = {
    "num_beams": ("num_beams", " to use beam search"),
    "do_sample": ("temperature", " to sample"),
    "max_length": ("max_tokens", " to change the length of outputs"),
    "max_new_tokens": ("max_tokens", " to change the length of outputs"),
    "forced_decoder_ids": ("decoder_prefix", " for a fixed start"),
    "sequence_bias": ("", ""),
    "encoder_repetition_penalty": ("", ""),
    "encoder_no_repeat_ngram_size": ("", ""),
    "exponential_decay_length_penalty": ("", ""),
    "guidance_scale": ("", ""),
    "watermarking_config": ("", ""),
}
OFF_AT_ONE = ("num_beams", "encoder_repetition_penalty", "guidance_scale")


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """The fields that are applied, with their Hugging Face names.

    min_length includes the start token and the decoder prefix. ignored: the fields in `IGNORED` that the file sets.
    """

    forced_bos_token_id: int | None = None
    forced_eos_token_id: tuple[int, ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    min_length: int = 0
    min_new_tokens: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    ignored: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(
        cls, raw: Mapping[str, Any], vocab_size: int, eos_token_ids: Sequence[int], file: str = FILE
    ) -> GenerationConfig:
        """Read the parsed file. Raises `CheckpointError` for an invalid field."""
        known = {name: value for name, value in raw.items() if value is not None}
        token = Int(0, vocab_size - 1)
        checks: dict[str, Value] = {
            "forced_bos_token_id": token,
            "forced_eos_token_id": ListOf(token),
            "suppress_tokens": ListOf(token),
            "begin_suppress_tokens": ListOf(token),
            "bad_words_ids": ListOf(ListOf(token)),
            **NUMBERS,
        }
        if isinstance(end := known.get("forced_eos_token_id"), int):
            known["forced_eos_token_id"] = [end]
        for name in (name for name, value in checks.items() if isinstance(value, ListOf)):
            most = MAX_BAD_WORDS if name == "bad_words_ids" else vocab_size
            entries = known.get(name)
            if isinstance(entries, list) and len(entries) > most:  # fail early, because checking takes time
                raise CheckpointError(f"{file}: {name!r} has too many entries (got {len(entries)}, at most {most})")
        found = {name: require(name, value, known[name], file) for name, value in checks.items() if name in known}
        bad_words = found.get("bad_words_ids", ())
        if (longest := max(map(len, bad_words), default=0)) > MAX_REPEATED:
            raise CheckpointError(
                f"{file}: an entry of 'bad_words_ids' has too many ids (got {longest}, at most {MAX_REPEATED})"
            )
        eos = {(token,) for token in eos_token_ids}  # Hugging Face drops entries that consist of a single EOS
        found["bad_words_ids"] = tuple(ids for ids in bad_words if ids and ids not in eos)
        never = {*found.get("suppress_tokens", ()), *(ids[0] for ids in found["bad_words_ids"] if len(ids) == 1)}
        if len(never.union(found.get("begin_suppress_tokens", ()))) == vocab_size:
            fields = [name for name in ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids") if name in known]
            raise CheckpointError(f"{file}: {', '.join(map(repr, fields))} leaves no token; remove ids that may occur")
        return cls(**found, ignored={name: known[name] for name in IGNORED if known.get(name)})

    def note(self, given: Collection[str] = ()) -> str | Message:
        """Return a note about the ignored fields, or "". given: options that the caller has set, which need no note."""
        notes = []
        for name, value in self.ignored.items():
            option, purpose = IGNORED[name]
            if option not in given and not (value == 1 and name in OFF_AT_ONE):
                way_out = Message(" (set {option}{purpose})", option=Name(option), purpose=purpose) if option else ""
                problem = f"{name} {short_repr(value)} is ignored"
                notes.append(Message("{problem}{way_out}", problem=problem, way_out=way_out))
        return joined("; ", notes) if notes else ""

    def with_defaults(self, options: GenerationOptions, prefix_length: int) -> GenerationOptions:
        """Return the options with each None replaced by this model's value.

        prefix_length: the number of tokens before the output, including the start token.
        """
        min_tokens = self.min_new_tokens
        if min_tokens is None:
            min_tokens = max(0, self.min_length - prefix_length)
        values: dict[str, Any] = {
            "repetition_penalty": self.repetition_penalty,
            "no_repeat_ngram_size": self.no_repeat_ngram_size,
            "min_tokens": min(min_tokens, options.max_tokens),
            "length_penalty": self.length_penalty,
            "early_stopping": self.early_stopping,
        }
        return options.with_values(**{name: value for name, value in values.items() if getattr(options, name) is None})

    def constraints(
        self, options: GenerationOptions, eos_token_ids: Sequence[int], prefix_length: int, first: int | None
    ) -> Constraints:
        """Return the constraints on one output.

        Args:
            options: The result of `with_defaults`.
            eos_token_ids: All ids that end the output.
            prefix_length: The number of tokens before the output, including the start token.
            first: The forced first token, if any.
        """
        begin = prefix_length + 1 + (first is not None)  # begin_suppress_tokens apply after the forced token
        end = prefix_length + (options.min_tokens or 0)
        forced: list[tuple[int, tuple[int, ...]]] = [] if first is None else [(prefix_length, (first,))]
        if self.forced_eos_token_id:
            forced.append((prefix_length + options.max_tokens - 1, self.forced_eos_token_id))
        return Constraints(
            options.no_repeat_ngram_size or 0,
            (*((token,) for token in self.suppress_tokens), *self.bad_words_ids),
            (*((token, begin) for token in self.begin_suppress_tokens), *((token, end) for token in eos_token_ids)),
            tuple(forced),
        )
