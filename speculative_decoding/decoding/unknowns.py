"""Replaces unknown tokens of an output by the source pieces that they translate, as CTranslate2's `replace_unknowns`.

Only the text changes: the output's tokens, and thus drafts and acceptance, stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import mlx.core as mx

from ..loading.tokenizer import Tokenizer
from ..loading.unknown_tokens import ReplacingTokenizer, UnknownToken
from ..models.base import EncoderDecoder
from ..models.source import TextTokens


class UnknownReplacement:
    """The `Replace` of a request.

    Args:
        model: A model with `replaces_unknowns`.
        tokenizer: Its tokenizer, a `ReplacingTokenizer`.
        source: The source tokens.
        prefix: The decoder's start token and a forced prefix.
    """

    def __init__(self, model: EncoderDecoder, tokenizer: Tokenizer, source: TextTokens, prefix: Sequence[int]) -> None:
        assert isinstance(tokenizer, ReplacingTokenizer)
        self._model = model
        self._tokenizer = tokenizer
        self._source = source
        self._prefix = prefix

    def __call__(self, tokens: Sequence[int], token: int) -> int:
        if token != self._tokenizer.unknown_id or not self._pieces:
            return token
        decoder_tokens = [*self._prefix, *tokens]
        position = self._model.aligned_position(decoder_tokens, self._projections, [*self._pieces])
        return UnknownToken(token, self._pieces[position])

    @cached_property
    def _pieces(self) -> dict[int, str]:
        """The pieces of the text by their source positions. Some of them have no ids."""
        return {} if self._source.text is None else self._tokenizer.source_pieces(self._source.text)

    @cached_property
    def _projections(self) -> Sequence[tuple[mx.array, mx.array]]:
        """Each layer's cross keys and values, computed again because the batch's cache may hold other requests."""
        projections = [*self._model.cross_projections(self._model.encode_rows([self._source])[0])]
        mx.eval(projections)
        return projections
