"""A prompt and its options -> what the loop needs, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..draft_length.adaptive import AdaptiveLength
from ..draft_length.costs import costs_of
from ..draft_length.joint import JointLength
from ..draft_length.schedules import DraftLength, FixedLength, HeuristicLength
from ..drafters.base import MODEL
from ..drafters.model import DraftModel
from ..errors import InputError
from ..loading.tokenizer import Tokenizer
from ..models.base import EncoderDecoder
from ..sampling import SamplingParams
from .acceptance import choose_rule
from .ending import Ending
from .loop import Row, Settings

MAX_TOKENS = 100
SCHEDULES = ("auto", "heuristic", "heuristic_transient")


@dataclass(frozen=True)
class Request:
    """source: the ids that the encoder reads. row: its decoding. ending: is shown the row's tokens, gives its text."""

    source: list[int]
    row: Row
    ending: Ending

    @property
    def settings(self) -> Settings:
        return self.row.settings


def prepare(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    length: DraftLength,
    sampling: SamplingParams | None = None,
    max_tokens: int = MAX_TOKENS,
    stop: Sequence[str] = (),
    eos_token_ids: Sequence[int] = (),
    acceptance: str = "rejection",
    delta: float = 0.0,
    skip_sample_adjustment: bool = False,
    strict: bool = False,
    allow_long_prompt: bool = False,
    prefix: str | Sequence[int] = "",
    logprobs: bool = False,
    timed: bool = False,
) -> Request:
    """
    sampling: default temperature 0, the most likely token each time.
    stop: the text ends in front of the first of these strings. A response never holds text that belongs to one, so
        text that may be the beginning of one comes later.
    eos_token_ids: ids that end the output besides the model's own.
    acceptance: at a temperature above 0, "rejection" (the original rule), "block" (keeps a little more), or "coupled"
        (a seed gives the same text with any draft, any num_draft, or none). All three keep the target's law.
    delta: 0 changes nothing; up to 1 accepts more than the target would write (lossy; its price is in the statistics).
    skip_sample_adjustment: draw corrections from the target, not from what the draft left of it (lossy).
    strict: compute every pass of the target in one shape that `num_draft` and `max_tokens` decide, so that also in 16
        bits the same settings with and without a draft give the same tokens. Slower.
    allow_long_prompt: accept a prompt longer than the model was trained on.
    prefix: text, or ids, that the output is made to begin with. Neither text nor tokens of the result contain it, it
        does not count for max_tokens, and stop strings are looked for behind it.
    logprobs: give every token its log-probability under the target, at temperature 1 and before any sampling option.
    timed: measure in every round how its time is spent (`Round.draft_seconds`, `verify_seconds`); a little slower.

    Raises `InputError` that names the argument.
    """
    sampling = sampling or SamplingParams()
    rule = choose_rule(sampling, acceptance, delta, skip_sample_adjustment)
    settings = Settings(length, max_tokens, sampling, rule, strict, logprobs, timed)
    check_token_ids(eos_token_ids, model.config.vocab_size)
    given = output_ids(model, tokenizer, prefix, "prefix")
    ending = Ending(tokenizer, {*model.config.eos_token_ids, *eos_token_ids}, stop, given)
    source = encode_prompt(model, tokenizer, prompt, allow_long_prompt)
    return Request(source, Row(settings, ending, [model.config.decoder_start_token_id, *given]), ending)


def encode_prompt(model: EncoderDecoder, tokenizer: Tokenizer, prompt: str, allow_long: bool = False) -> list[int]:
    """Text -> the ids that the encoder reads. Raises `InputError` for an empty or too long prompt."""
    if not prompt.strip():
        raise InputError("prompt is empty; give it some text")
    source = tokenizer.encode(prompt)
    limit = model.config.max_source_tokens
    if limit is not None and len(source) > limit and not allow_long:
        raise InputError(
            f"prompt has {len(source)} tokens, but the model was trained on at most {limit}; "
            "shorten or split it, or allow long prompts"
        )
    return source


def output_ids(model: EncoderDecoder, tokenizer: Tokenizer, text: str | Sequence[int], name: str) -> list[int]:
    """Text as the decoder would write it, without an end; ids are taken as they are. `name`: of the argument."""
    if isinstance(text, str):
        ids = tokenizer.encode(text) if text else []
        return ids[:-1] if ids and ids[-1] in model.config.eos_token_ids else ids
    check_token_ids(text, model.config.vocab_size, name)
    if ended := set(text) & set(model.config.eos_token_ids):
        raise InputError(f"{name} must not contain {min(ended)}, which ends an output")
    return list(text)


def check_token_ids(ids: Sequence[int], vocab_size: int, name: str = "eos_token_ids") -> None:
    for token in ids:
        if not 0 <= token < vocab_size:
            raise InputError(f"{name} must be between 0 and {vocab_size - 1}, not {token}")


def choose_length(
    num_draft: int | str | DraftLength,
    model: EncoderDecoder,
    draft_model: EncoderDecoder | DraftModel | None = None,
    rows: int = 1,
) -> DraftLength:
    """num_draft: a number, one of `SCHEDULES`, or a `DraftLength` as it is. "auto" measures the models if it must, with
    as many rows as are decoded together.
    """
    if isinstance(num_draft, DraftLength):
        return num_draft
    if not isinstance(num_draft, str):
        return FixedLength(num_draft)
    if num_draft not in SCHEDULES:
        raise InputError(f"num_draft must be a number or one of {', '.join(SCHEDULES)}, not {num_draft!r}")
    if num_draft == "auto":
        costs = costs_of(model, draft_model.model if isinstance(draft_model, DraftModel) else draft_model, rows)
        adaptive = AdaptiveLength if rows == 1 else JointLength
        return adaptive(costs.with_free_draft(), kinds={MODEL: costs})
    return HeuristicLength(transient=num_draft == "heuristic_transient")
