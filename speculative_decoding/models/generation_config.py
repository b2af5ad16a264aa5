"""What a model's generation_config.json says of its text: what is kept to, and what is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import CheckpointError
from ..sampling import Constraints, GenerationOptions
from ..sampling.options import MOST_REPEATED, MOST_TOKENS, abouts, short
from ..sampling.values import Number, Several, Value, Whole
from .config import require

MOST_STRETCHES = 1 << 16
FILE = "generation_config.json"
NUMBERS: Mapping[str, Value] = {
    "repetition_penalty": Number(1e-10, 1e10),
    "no_repeat_ngram_size": Whole(0, MOST_REPEATED),
    "min_length": Whole(0, MOST_TOKENS),
    "min_new_tokens": Whole(0, MOST_TOKENS),
    "length_penalty": abouts()["length_penalty"].value,
    "early_stopping": abouts()["early_stopping"].value,
}
INSTEAD = {  # fields that would change the text and are not kept to: what happens
    "num_beams": "one beam is followed where nobody asks for more (--num-beams)",
    "do_sample": "the likeliest token is taken unless a temperature is given",
    "sequence_bias": "it is left out",
    "encoder_repetition_penalty": "it is left out",
    "encoder_no_repeat_ngram_size": "it is left out",
    "exponential_decay_length_penalty": "it is left out",
    "guidance_scale": "it is left out",
    "watermarking_config": "it is left out",
}
OFF_AT_ONE = ("num_beams", "encoder_repetition_penalty", "guidance_scale")


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Fields under their Hugging Face names; all ids are the model's.

    min_length counts all tokens that the decoder has read, start token and prefix too. ignored: in a line, what is
    asked for and not kept to, with what happens instead.
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
    ignored: str = ""

    @classmethod
    def from_dict(
        cls, raw: Mapping[str, Any], vocab_size: int, eos_token_ids: Sequence[int], file: str = FILE
    ) -> GenerationConfig:
        """From the parsed file. Raises `CheckpointError` that names it and a field which is impossible."""
        known = {name: value for name, value in raw.items() if value is not None}
        token = Whole(0, vocab_size - 1)
        checks: dict[str, Value] = {"forced_bos_token_id": token, "bad_words_ids": Several(Several(token)), **NUMBERS}
        checks |= dict.fromkeys(("forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens"), Several(token))
        if isinstance(end := known.get("forced_eos_token_id"), int):
            known["forced_eos_token_id"] = [end]
        found: dict[str, Any] = {}
        for name, wanted in checks.items():
            if name in known:
                require(name, wanted, known[name], file)
                found[name] = wanted.accept(known[name])
        stretches = found.get("bad_words_ids", ())
        if len(stretches) > MOST_STRETCHES or max(map(len, stretches), default=0) > MOST_REPEATED:
            raise CheckpointError(
                f"{file}: 'bad_words_ids' has {len(stretches)} entries; taken are at most {MOST_STRETCHES}, of at most "
                f"{MOST_REPEATED} ids each"
            )
        alone = {(token,) for token in eos_token_ids}  # an end that is no part of a longer stretch may come
        found["bad_words_ids"] = tuple(ids for ids in stretches if ids and ids not in alone)
        return cls(**found, ignored=ignored(known))

    def settled(self, options: GenerationOptions, given: int) -> GenerationOptions:
        """The options, with this model's values where nobody chose one. given: tokens that stand at the beginning."""
        least = max(0, self.min_length - given) if self.min_new_tokens is None else self.min_new_tokens
        values: dict[str, Any] = {
            "repetition_penalty": self.repetition_penalty,
            "no_repeat_ngram_size": self.no_repeat_ngram_size,
            "min_tokens": min(least, options.max_tokens),
            "length_penalty": self.length_penalty,
            "early_stopping": self.early_stopping,
        }
        return replace(options, **{name: value for name, value in values.items() if getattr(options, name) is None})

    def constraints(
        self, options: GenerationOptions, eos_token_ids: Sequence[int], given: int, first: int | None
    ) -> Constraints:
        """Of an output. options: `settled`. eos_token_ids: all that end it. first: what it must begin with."""
        begin = given + 1 + (first is not None)  # what is forced is not the beginning
        end = given + (options.min_tokens or 0)
        forced: list[tuple[int, tuple[int, ...]]] = [] if first is None else [(given, (first,))]
        if self.forced_eos_token_id:
            forced.append((given + options.max_tokens - 1, self.forced_eos_token_id))
        return Constraints(
            options.no_repeat_ngram_size or 0,
            (*((token,) for token in self.suppress_tokens), *self.bad_words_ids),
            (*((token, begin) for token in self.begin_suppress_tokens), *((token, end) for token in eos_token_ids)),
            tuple(forced),
        )


def ignored(known: Mapping[str, Any]) -> str:
    asked = [name for name in INSTEAD if known.get(name) and not (name in OFF_AT_ONE and known[name] == 1)]
    return "; ".join(f"{name} {short(known[name])} is not kept to, {INSTEAD[name]}" for name in asked)
