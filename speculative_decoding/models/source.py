"""A request's source: token ids, or audio frames for a speech model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import mlx.nn as nn

from ..errors import InputError


@dataclass(frozen=True, eq=False)
class AudioFrames:
    """The log-mel frames of an audio window, a speech model's source. Two frames become one encoder position.

    The encoder output is computed once per model and kept for the lifetime of this object, so that several requests can
    decode the same window. Create a new object after changing an encoder's weights.

    frames: (T, mel bins), T even.
    others: The same window with other numbers of mel bins, for draft models that require them.
    """

    frames: mx.array
    others: Sequence[mx.array] = ()
    _encoder_outputs: dict[int, tuple[nn.Module, mx.array]] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        """Return the number of encoder positions, the equivalent of the length of a list of token ids."""
        return self.frames.shape[0] // 2

    def of(self, num_mel_bins: int) -> mx.array:
        """Return the frames that have this number of mel bins. Raises `InputError` if there are none."""
        for frames in (self.frames, *self.others):
            if frames.shape[1] == num_mel_bins:
                return frames
        raise InputError(
            f"has no frames with {num_mel_bins} mel bins, which the draft model reads", "audio", "add them"
        )

    def encoder_output(self, model: nn.Module, num_mel_bins: int, encode: Callable[[mx.array], mx.array]) -> mx.array:
        """Return the output of `encode` for the frames. It is computed once per model."""
        if id(model) not in self._encoder_outputs:
            self._encoder_outputs[id(model)] = model, encode(self.of(num_mel_bins))
        return self._encoder_outputs[id(model)][1]


class TextTokens(list[int]):
    """The token ids of a text, and the text itself, because a tokenizer can change or drop parts of it.

    text: The text; None if only the ids are known.
    model: The model for which the ids have been checked.
    """

    def __init__(self, ids: Sequence[int], text: str | None, model: nn.Module) -> None:
        super().__init__(ids)
        self.text = text
        self.model = model


Source = Sequence[int] | AudioFrames  # a request's source


def token_ids(source: Source) -> Sequence[int]:
    """Return a source's token ids, or an empty list for audio."""
    return [] if isinstance(source, AudioFrames) else source
