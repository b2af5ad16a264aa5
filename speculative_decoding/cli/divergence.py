"""Compares outputs with the baseline outputs, which are generated from the same prompts without a draft."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx

from ..decoding.acceptance import Greedy, rule_for_rows
from ..decoding.prompt import make_request
from ..decoding.results import GenerationResult
from ..draft_length import FixedLength
from ..drafters import with_default_drafter
from ..errors import InputError, Message, Name
from ..loading.tokenizer import Tokenizer
from ..models.source import AudioFrames
from ..rows.scheduling import BatchResult
from ..sampling import GenerationOptions, History
from ..session import Prompt, Session


@dataclass(frozen=True)
class Divergence:
    """The first position at which two outputs of a prompt differ.

    Args:
        position: The number of tokens before the divergence.
        baseline: The baseline's token; None if the baseline's output has ended.
        speculative: Speculative decoding's token; None if that output has ended.
        logit_gap: The target's logit for the baseline token minus its logit for the other token, both after penalties,
            constraints and noise. A gap near 0 is a near-tie, which summing in a different order may flip.
    """

    position: int
    baseline: int | None
    speculative: int | None
    logit_gap: float | None = None

    def __str__(self) -> str:
        gap = "" if self.logit_gap is None else f", logit gap {self.logit_gap:.4g}"
        return f"differs at token {self.position}{gap}"

    def with_tokens(self, tokenizer: Tokenizer) -> str:
        """Describe the divergence, including both tokens."""

        def name(token: int | None) -> str:
            return "the end" if token is None else f"{token} {tokenizer.vocabulary.pieces.get(token)!r}"

        return f"{self}: {name(self.baseline)} without the draft, {name(self.speculative)} with it"


def first_divergence(
    session: Session, prompt: Prompt, baseline: Sequence[int], speculative: Sequence[int], **options: Any
) -> Divergence | None:
    """Compare two outputs of a prompt. Returns None if they are identical.

    options: The options with which both outputs were decoded; `require_comparable` must accept them.
    """
    if list(baseline) == list(speculative):
        return None
    shortest = min(len(baseline), len(speculative))
    position = next((i for i in range(shortest) if baseline[i] != speculative[i]), shortest)
    if position == shortest:
        ends = [tokens[position] if len(tokens) > position else None for tokens in (baseline, speculative)]
        return Divergence(position, *ends)

    model = session.model
    chosen = session.options.override(options).with_values(allow_long_prompt=True)
    rule = rule_for_rows([chosen])
    assert isinstance(rule, Greedy)
    request = make_request(model, session.tokenizer, prompt, chosen, FixedLength(0))
    cache = model.make_cache(model.encode_rows([request.source])[0])
    tokens = [*request.decoder_tokens, *baseline[:position]]
    logits = model.decode(mx.array([tokens]), cache)[:, -1:]  # (1, 1, V)
    history = History([tokens], constraints=[request.constraints])
    values = rule.argmax_values(logits, [request.options], history)[0, 0].astype(mx.float32)  # (V,)
    gap = float(values[baseline[position]] - values[speculative[position]])
    return Divergence(position, baseline[position], speculative[position], gap)


def baseline_tokens(session: Session, prompt: Prompt, *, exact: bool, **options: Any) -> list[int]:
    """Decode a prompt without a draft. exact: whether to use exact passes."""
    return session.generate(prompt, **options | {"drafter": "none", "strict": exact or None}).tokens


def compare_output(session: Session, prompt: Prompt, tokens: Sequence[int]) -> Divergence | None:
    """Decode a prompt without a draft, using exact passes if the session does, and compare the output with `tokens`."""
    exact = session.planner.widths(session.options_with({})).exact
    return first_divergence(session, prompt, baseline_tokens(session, prompt, exact=exact), tokens)


def compare_outputs(
    session: Session,
    prompts: Sequence[str | AudioFrames],
    draft: dict[str, Any],
    *,
    slots: int = 1,
    baseline: Callable[..., list[int]] | None = None,
    **options: Any,
) -> Iterator[tuple[BatchResult[GenerationResult], Divergence | None]]:
    """Decode prompts in a batch with drafts, and one by one without drafts. Yield each output with its divergence.

    Args:
        session: The session to decode with.
        prompts: The prompts. Their outputs are yielded in order of completion.
        draft: Options that apply only to the outputs with drafts.
        slots: The batch size.
        baseline: `baseline_tokens` for this session (the default), or a function that caches its results.
        options: Options that apply to all outputs.
    """
    baseline = baseline or partial(baseline_tokens, session)
    chosen = with_default_drafter(session.options.override(options | draft), session.draft_model)
    exact = session.planner.widths(chosen, slots).exact
    for each in session.batch_as_completed(prompts, slots=slots, **options | draft):
        divergence = None
        if each.result is not None:
            prompt = prompts[each.index]
            expected = baseline(prompt, exact=exact, **options)
            divergence = first_divergence(session, prompt, expected, each.result.tokens, **options)
        yield each, divergence


def require_comparable(options: GenerationOptions, subject: str | None = None) -> None:
    """Raise `InputError` if outputs with and without a draft may differ."""
    if not options.is_comparable:
        name, value = ("acceptance", options.acceptance) if options.acceptance else ("delta", f"{options.delta:g}")
        found = Message(
            "independent samples differ (got {temperature} {value}, expected 0)", value=f"{options.temperature:g}"
        )
        way_out = Message("use {temperature} 0, or leave out {other} {value}", other=Name(name), value=value)
        raise InputError(found, subject, way_out)
