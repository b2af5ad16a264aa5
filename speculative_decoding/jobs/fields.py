"""Defines the fields of input lines and of records. All other fields of a line are copied to its record."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..checkpoints.json_text import is_json_value
from ..cli.lines import InputLine
from ..errors import InputError, Message, UnknownOption, similar_names
from ..sampling.options import MAX_DRAFT_TOKENS, OPTIONS_BY_OTHER_NAME, listed, meant_options, option_specs
from ..sampling.values import Int, Text, Value

# Options that a line may set. All prompts of a job share the decoder prefix, and records contain no logprobs. With an
# adaptive draft length, a record would depend on earlier lines, so a line may only set a fixed length.
LINE_OPTIONS: dict[str, Value] = {
    name: spec.type
    for name, spec in option_specs().items()
    if spec.per_row and name not in ("decoder_prefix", "logprobs")
}
LINE_OPTIONS["num_draft_tokens"] = Int(0, MAX_DRAFT_TOKENS)
JOB_OPTIONS = (*(name for name in option_specs() if name not in LINE_OPTIONS), "slots", "draft_model", "dtype")
PROMPT_FIELDS = {"prompt": Text(may_be_empty=True), **LINE_OPTIONS}
DRAFT_COUNTS = ("target_calls", "drafted_tokens", "accepted_tokens")
INPUT_HASH = "input_sha256"
RECORD_FIELDS = {
    "line",
    "text",
    "finish_reason",
    "prompt_tokens",
    "generated_tokens",
    "seed",
    "error",
    "score",
    "sequences",
    *DRAFT_COUNTS,
    INPUT_HASH,
}
MISSPELT = 0.87  # similarity of eight-letter names with two letters swapped; that of "drafted" and "drafter" is 0.86


@dataclass(frozen=True)
class LineFields:
    """The fields of one type of line: a line with a prompt, or a line with a recording.

    Args:
        own: The fields that the job reads: the input and the options.
        record: The fields that the job writes to the record.
        similar: Maps the `similarity_key` of a name that resembles an option to the correct options.
    """

    own: Collection[str]
    record: Collection[str]
    similar: Mapping[str, tuple[str, ...]]

    def carried(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields to copy to the record: all fields that are neither in `own` nor in `record`."""
        reserved = {*self.own, *self.record}
        return {name: value for name, value in given.items() if name not in reserved and is_json_value([name, value])}

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `own` fields. Raises `InputError` for a name that is in `record` or resembles an option."""
        for name, value in given.items():
            if not is_json_value([name, value]):
                raise InputError("is not valid JSON (a lone surrogate, NaN or Infinity)", ascii(name))
            if name in self.own:
                continue
            if name in self.record:
                raise InputError("is also a field of the output", name, "rename it")
            self._refuse_similar(name)
        return {name: value for name, value in given.items() if name in self.own}

    def _refuse_similar(self, name: str) -> None:
        """Raise `InputError` if the name of a user's field resembles an option."""
        options = self._meant_options(name)
        if options in [(each,) for each in JOB_OPTIONS]:
            raise InputError("is an option of all lines", name, "give it on the command line, or rename the field")
        if options is not None:
            use = Message("use {names}", names=listed(options)) if options else "leave it out"
            way_out = Message("{use}, or rename the field if it is not an option", use=use)
            raise UnknownOption("unknown option", name, way_out)

    def _meant_options(self, name: str) -> tuple[str, ...] | None:
        """Return the options that a name resembles, or None. Tolerates a typo in a long name."""
        key = similarity_key(name)
        if key in self.similar:
            return self.similar[key]
        known = [each for each in self.similar if len(each) > 6 and each not in key]
        close = similar_names(key, known, 1, MISSPELT)
        return self.similar[close[0]] if close else None


def input_hash(line: InputLine) -> str:
    """Return the value of the `INPUT_HASH` field for a line."""
    return line.digest.hex()[:16]


def similarity_key(name: str) -> str:
    """Return a key that ignores case, separators and a plural s, so that maxTokens and max-token have the same key."""
    return name.lower().replace("-", "").replace("_", "").removesuffix("s")


PROMPT = LineFields(
    PROMPT_FIELDS,
    RECORD_FIELDS,
    {
        **{similarity_key(name): tuple(meant_options(name, option_specs())) for name in OPTIONS_BY_OTHER_NAME},
        **{similarity_key(name): (name,) for name in (*PROMPT_FIELDS, *JOB_OPTIONS)},
    },
)
