"""Converts live speech to the sample rate of the models, with PyAV."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ..audio_file import INSTALL, SAMPLE_RATE, Samples, scaled
from ..resampling import FrameResampler

if TYPE_CHECKING:
    from av import AudioFrame

BLOCK_SAMPLES = SAMPLE_RATE // 10  # length of a returned array; many tiny arrays would need more memory


class Resampler:
    """Resamples speech that arrives in chunks. The result does not depend on the sizes of the chunks.

    rate: The sample rate of the input, in Hz. Raises `InputError` if PyAV is not installed.
    """

    def __init__(self, rate: int) -> None:
        if find_spec("av") is None:
            raise InputError(f"audio at {rate} Hz requires PyAV", way_out=f"run {INSTALL}")
        self._rate = rate
        self._resampler = FrameResampler(SAMPLE_RATE, BLOCK_SAMPLES)

    def append(self, samples: NDArray[np.int16]) -> Samples:
        """Return the samples (M,) that can be computed, from -1 to 1 at 16 kHz. samples: (N,), at least one."""
        import av

        frame = av.AudioFrame.from_ndarray(samples[None], "s16", "mono")
        frame.sample_rate = self._rate
        return self._resampled(frame)

    def finish(self) -> Samples:
        """Return the last samples. No samples may be appended afterwards."""
        return self._resampled(None)

    def _resampled(self, frame: AudioFrame | None) -> Samples:
        return scaled(np.concatenate([np.empty(0, np.int16), *self._resampler.add(frame)]))
