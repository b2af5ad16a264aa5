"""What the parts of a round cost: predicted from the models' shapes, corrected by what rounds really take.

Costs never change a result: they only say which length is fastest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from ..models.base import EncoderDecoder
from ..models.compiled import pass_width
from ..models.draft_head import DraftHead

# What a position of a row adds to the time in which a pass reads its weights, and a row, whose cache is attended over.
# Bundled pair on two x86-64 cores: right within 20 % for 1 to 16 rows by 1 to 16 positions (docs/LOG.md).
PER_POSITION = {mx.cpu: 0.1, mx.gpu: 0.02}
LAYER_BYTES = 500_000  # what could be read while the operations of a layer are started
SOURCE_TOKENS = 32  # of a typical request
HEAD_LAYERS = 0.6  # of a layer's operations, in a step of a draft head
EAGER_STEPS = 2.0  # of the draft model: as long as its encoder, which is not compiled, keeps the host busy

PLAIN_STEP, STEP = 0.2, 0.03  # how much a round counts in the long run, without a draft and with one
MOST_SURPRISE = 0.35  # that counts, of a logarithm: now and then a round takes three times as long, for other reasons
NOISE = 0.02  # keeps a part that is a small share of a round from being blamed for all its noise


@dataclass(frozen=True)
class Costs:
    """Predicted costs of a pair of models. The unit is the time in which a pass of the target reads its weights.

    position: what a position of a row adds to a pass, and a row too. step: of the draft model, in passes over one
    position. reading: of a request's source by the draft model. lookup: what a round that drafts costs besides, in
    rounds.
    """

    position: float
    step: float = 0.0
    reading: float = 0.0
    lookup: float = 0.03

    def pass_time(self, rows: int, width: int) -> float:
        return 1.0 + rows * self.position * (1 + width)

    def parts(self, rows: int, width: int, steps: int, readings: int = 0) -> tuple[float, float, float]:
        """What a round takes beyond one without a draft, in units of that: for its longest draft of `width` tokens, for
        so many steps of the draft model, and for the sources that this reads.
        """
        plain = self.pass_time(rows, 1)
        wider = self.pass_time(rows, pass_width(width + 1)) / plain - 1.0
        return wider + self.lookup * (width > 0), steps * self.step, readings * self.reading / plain


def predicted(target: EncoderDecoder, draft_model: EncoderDecoder | DraftHead | None = None) -> Costs:
    """From the bytes that a pass reads and the number of layers."""
    position = PER_POSITION[mx.default_device().type]
    if draft_model is None:
        return Costs(position)
    if isinstance(draft_model, DraftHead):  # reads nothing of a source but rows of the target's head
        return Costs(position, head_weight(draft_model, target) / weight(target, "decoder"))
    step, encoder = (weight(draft_model, stack) / weight(target, "decoder") for stack in ("decoder", "encoder"))
    return Costs(position, step, encoder * (1.0 + position * SOURCE_TOKENS) + EAGER_STEPS * step)


def head_weight(head: DraftHead, target: EncoderDecoder) -> float:
    """Of a step of a draft head, as `weight`."""
    config = head.config
    own = SOURCE_TOKENS * (1 + sum(map(len, config.by_source.values())) / max(1, len(config.by_source)))
    shares = min(1.0, (len(config.frequent) + own) / target.config.vocab_size) if config.frequent else 1.0
    return head.nbytes - head.combine.weight.nbytes + HEAD_LAYERS * LAYER_BYTES + shares * output_bytes(target)


def weight(model: EncoderDecoder, stack: str) -> float:
    """Bytes that a pass of "encoder" or "decoder" reads, with what its layers cost besides in bytes. The decoder ends
    with a head, a row for each token; a second such table is an embedding, of which next to nothing is read.
    """
    total, layers = 0, set[str]()
    parameters: Any = tree_flatten(model.parameters())
    for path, array in parameters:
        is_table = array.shape[0] == model.config.vocab_size
        if not is_table and path.startswith("encoder.") == (stack == "encoder"):
            layers |= {".".join(path.split(".")[:3])} if ".layers." in path else set()
            total += array.nbytes
    return total + LAYER_BYTES * len(layers) + (output_bytes(model) if stack == "decoder" else 0)


def output_bytes(model: EncoderDecoder) -> int:
    """Of the head over all tokens."""
    tables = dict[str, int]()
    parameters: Any = tree_flatten(model.parameters())
    for path, array in parameters:
        if array.shape[0] == model.config.vocab_size:
            module = path.rpartition(".")[0]  # a quantised table has several arrays
            tables[module] = tables.get(module, 0) + array.nbytes
    return max(tables.values())


class RoundTimes:
    """What rounds take, in units of one without a draft: as predicted, each part times a factor that is learned.

    Rounds that draft are compared with the rounds without a draft around them, for a machine changes its speed. By how
    much a round took longer than expected is shared out among its parts, to each as much as it is a part of the round
    (normalised least mean squares, Widrow and Hoff 1960, on logarithms).
    """

    def __init__(self, costs: Costs) -> None:
        self._costs, self._parts = costs, cache(costs.parts)  # few, and asked for many times a round
        self._factors = [1.0, 1.0, 1.0]  # of the wider pass, of the draft model's steps, of its reading
        self._plain = 0.0  # seconds of a round without a draft, in units of a predicted pass
        self.plain_rounds = self._drafting_rounds = 0

    def round_time(self, rows: int, width: int, steps: int, readings: int = 0) -> float:
        wider, stepping, reading = self._parts(rows, width, steps, readings)
        factors = self._factors
        return 1.0 + factors[0] * wider + factors[1] * stepping + factors[2] * reading

    def observe(self, rows: int, width: int, steps: int, readings: int, seconds: float) -> None:
        """readings: how many sources the draft model read in this round."""
        unit = seconds / self._costs.pass_time(rows, 1)
        if not width:
            self.plain_rounds += 1
            self._plain = self._plain or unit
            surprise = clipped(math.log(unit / self._plain))
            self._plain *= math.exp(max(PLAIN_STEP, 1.0 / self.plain_rounds) * surprise)
        elif self._plain:
            self._drafting_rounds += 1
            whole = self.round_time(rows, width, steps, readings)
            parts = zip(self._factors, self._parts(rows, width, steps, readings), strict=True)
            shares = [factor * part / whole for factor, part in parts]
            surprise = clipped(math.log(unit / (self._plain * whole))) / (sum(share**2 for share in shares) + NOISE)
            surprise *= max(STEP, 1.0 / (self._drafting_rounds + 5.0))
            pairs = zip(self._factors, shares, strict=True)
            self._factors = [factor * math.exp(surprise * share) for factor, share in pairs]


def clipped(surprise: float) -> float:
    return max(-MOST_SURPRISE, min(MOST_SURPRISE, surprise))
