"""Decodes requests in one batch, with a tokenizer of letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from speculative_decoding.decoding.prompt import DecoderPrompt
from speculative_decoding.decoding.results import Round
from speculative_decoding.draft_length import DraftLength, FixedLength
from speculative_decoding.drafters import BatchDrafter, Drafter, RequestView, SeparateDrafters
from speculative_decoding.engine import Engine
from speculative_decoding.loading.tokenizer import Vocabulary
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.sampling import Constraints, GenerationOptions
from tests.support.tiny import DRAFTERS, EOS, VOCAB, GivesTexts, OneLanguage


class Letters(OneLanguage):
    """A tokenizer for tests: the id of "a" is 2, the id of "b" is 3 and so on."""

    def encode(self, text: str, language: str | None = None) -> list[int]:
        return [*(ord(letter) - ord("a") + 2 for letter in text), EOS]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(ord("a") + token - 2) for token in tokens if token >= 2)

    vocabulary = Vocabulary({chr(ord("a") + i - 2): i for i in range(2, VOCAB)})


@dataclass
class RequestLog:
    """The rounds of one request, and its text after each token."""

    rounds: list[Round] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [token for event in self.rounds for token in event.tokens]

    @property
    def text(self) -> str:
        return self.texts[-1]

    @property
    def finish_reason(self) -> str | None:
        return self.rounds[-1].finish_reason


class ForEachRow(SeparateDrafters):
    """Makes a separate drafter for each request."""

    def __init__(self, make_for: Callable[[RequestView], Drafter]) -> None:
        super().__init__(lambda: make_for(self._request), VOCAB)

    def begin(self, request: RequestView, encoder_output: mx.array | None = None) -> None:
        self._request = request
        super().begin(request, encoder_output)


def drafter_of_rows(
    name: str, target: EncoderDecoder, draft: EncoderDecoder, baseline_of: Callable[[RequestView], Sequence[int]]
) -> BatchDrafter:
    """Return one of `tiny.DRAFTERS` for a batch.

    baseline_of: returns the baseline output of a row, which scripted drafters and texts need.
    """
    made = DRAFTERS[name](target, draft, [])
    if isinstance(made, GivesTexts):
        made.baseline_of = baseline_of
    if isinstance(made, BatchDrafter):
        return made

    def make_for(row: RequestView) -> Drafter:
        one = DRAFTERS[name](target, draft, baseline_of(row))
        assert isinstance(one, Drafter)
        return one

    return ForEachRow(make_for)


def options_of(**options: Any) -> GenerationOptions:
    """Return options. The defaults are 4 draft tokens and at most 30 tokens."""
    return GenerationOptions(**{"num_draft_tokens": 4, "max_tokens": 30} | options)


def together(
    target: EncoderDecoder,
    requests: Sequence[tuple[Sequence[int], GenerationOptions]],
    drafter: BatchDrafter,
    slots: int = 64,
    length: DraftLength | None = None,
    constraints: Constraints | None = None,
) -> list[RequestLog]:
    """Decode (source, options) in one batch; sources end with the end-of-sequence token.

    constraints: of all requests, instead of the options' and the model's.
    """
    engine = Engine(target, Letters(), drafter, slots=slots)
    config = target.config
    logs = {}
    for source, options in requests:
        own = length or FixedLength(int(options.num_draft_tokens))
        start = None
        if constraints is not None:
            start = DecoderPrompt(options, [config.decoder_start_token_id], {*config.eos_token_ids}, constraints)
        logs[engine.submit(Letters().decode(source), options, own, start)] = RequestLog()
    while not engine.is_idle:
        for event in engine.step():
            one = logs[event.request]
            one.rounds.append(event.round)
            for text in event.texts:
                one.texts.append((one.texts[-1] if one.texts else "") + text)
    return list(logs.values())
