"""What the parts of a round cost: predicted from the models' shapes, corrected by what rounds really take.

Costs never change a result: they only say which length is fastest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
from mlx.utils import tree_flatten

from ..models.base import EncoderDecoder
from ..models.compiled import pass_width

# Of the time in which a pass reads its weights: each position, and each row's attention over its cache. Bundled pair,
# two x86-64 cores: 1 to 16 rows by 1 to 16 positions within 20 % (docs/LOG.md, "Costs from shapes").
PER_POSITION, PER_ROW = {"cpu": 0.1, "gpu": 0.02}, {"cpu": 0.1, "gpu": 0.02}
LAYER_BYTES = 500_000  # what could be read while a layer's operations are started
SOURCE_TOKENS = 32  # of a typical request
EAGER_STEPS = 2.0  # steps of the draft model for which an encoder that is not compiled keeps the host busy

PLAIN_STEP, STEP = 0.2, 0.03  # how much one more round counts, without a draft and with one; the latter in the long run
MOST_SURPRISE = 0.35  # that counts, of a logarithm
NOISE = 0.02  # keeps a part that is a small share of the round from being blamed for all of its noise


@dataclass(frozen=True)
class Costs:
    """Predicted costs; the unit is the time in which the target's pass reads its weights.

    position, row: what each position of each row adds to a pass, and each row. step: a step of the draft model, in
    passes over one position. reading: the draft model reads a request's source, likewise. lookup: what a round that
    drafts costs besides.
    """

    position: float = PER_POSITION["cpu"]
    row: float = PER_ROW["cpu"]
    step: float = 0.0
    reading: float = 0.0
    lookup: float = 0.03

    def pass_time(self, rows: int, width: int) -> float:
        return 1.0 + rows * (self.row + self.position * width)

    def parts(self, rows: int, width: int, steps: int, readings: int = 0) -> tuple[float, float, float]:
        """What a round with these parts takes beyond one without a draft, in units of the latter: for its longest draft
        of `width` tokens, for so many steps of the draft model, and for the sources that this reads.
        """
        plain = self.pass_time(rows, 1)
        wider = self.pass_time(rows, pass_width(width + 1)) - plain if width else 0.0
        return wider / plain + self.lookup * (width > 0), steps * self.step, readings * self.reading / plain


def predicted(target: EncoderDecoder, draft_model: EncoderDecoder | None = None) -> Costs:
    """From the bytes that a pass reads of the decoder and its head, and from the number of layers."""
    device = "gpu" if mx.default_device() == mx.gpu else "cpu"
    position, row = PER_POSITION[device], PER_ROW[device]
    if draft_model is None:
        return Costs(position, row)
    whole = weight(target, "decoder")
    step = weight(draft_model, "decoder") / whole
    encoder = weight(draft_model, "encoder") / whole
    reading = encoder * (1.0 + row + position * SOURCE_TOKENS) + EAGER_STEPS * step
    return Costs(position, row, step, reading)


def weight(model: EncoderDecoder, stack: str) -> float:
    """Bytes that a pass of "encoder" or "decoder" reads, its layers' starting counted as bytes; a head is a table with
    a row for each token, and where there are two tables one of them is an embedding, of which next to nothing is read.
    """
    tables, layers, total = dict[str, int](), set[str](), 0
    for path, array in tree_flatten(model.parameters()):
        if array.shape[0] == model.config.vocab_size:
            table = path.rpartition(".")[0]
            tables[table] = tables.get(table, 0) + array.nbytes
        elif path.startswith("encoder.") == (stack == "encoder"):
            layers |= {".".join(path.split(".")[:3])} if ".layers." in path else set()
            total += array.nbytes
    return total + LAYER_BYTES * len(layers) + (max(tables.values()) if stack == "decoder" else 0)


class RoundTimes:
    """What rounds take, in units of one without a draft: as predicted, each part times a factor that is learned.

    Rounds that draft are compared with the rounds without a draft around them, for a machine changes its speed. By how
    much a round took longer than expected is shared out among its parts, to each as much as it is a part of the round
    (normalised least mean squares, Widrow and Hoff 1960, on logarithms).

    factors: of the wider pass, of the draft model's steps, of its reading.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.factors = [1.0, 1.0, 1.0]
        self._plain = 0.0  # seconds of a round without a draft, in units of a predicted pass; 0: not known
        self._plain_rounds = self._learned = 0
        self._wider: dict[int, list[float]] = {}  # by rows: for each longest draft, as predicted

    @property
    def is_plain_known(self) -> bool:
        return self._plain > 0

    def by_width(self, rows: int, most: int) -> list[float]:
        """Of rounds whose longest draft has 0, 1, ... `most` tokens, without steps."""
        if rows not in self._wider:
            self._wider[rows] = [self.costs.parts(rows, width, 0)[0] for width in range(most + 1)]
        factor = self.factors[0]
        return [1.0 + factor * part for part in self._wider[rows]]

    @property
    def step(self) -> float:
        return self.factors[1] * self.costs.step

    def reading(self, rows: int) -> float:
        """Of one request, where so many rows are decoded together."""
        return self.factors[2] * self.costs.parts(rows, 0, 0, 1)[2]

    def observe(self, rows: int, width: int, steps: int, readings: int, seconds: float) -> None:
        """readings: how many sources the draft model read in this round."""
        unit = seconds / self.costs.pass_time(rows, 1)
        if not width:
            self._plain_rounds += 1
            step, self._plain = max(PLAIN_STEP, 1.0 / self._plain_rounds), self._plain or unit
            self._plain *= math.exp(step * clipped(math.log(unit / self._plain)))
        elif self._plain:
            parts = self.costs.parts(rows, width, steps, readings)
            own = [factor * part for factor, part in zip(self.factors, parts, strict=True)]
            whole = 1.0 + sum(own)
            shares = [part / whole for part in own]
            self._learned += 1
            surprise = max(STEP, 1.0 / (self._learned + 5.0)) * clipped(math.log(unit / (self._plain * whole)))
            surprise /= sum(share * share for share in shares) + NOISE
            self.factors = [f * math.exp(surprise * share) for f, share in zip(self.factors, shares, strict=True)]


def clipped(surprise: float) -> float:
    """Now and then a round takes three times as long, for other reasons."""
    return max(-MOST_SURPRISE, min(MOST_SURPRISE, surprise))
