"""The audio formats of OpenAI's Realtime API: 16-bit PCM at 24 kHz, and telephone audio (G.711) at 8 kHz."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class AudioFormat:
    """A mono format.

    Attributes:
        name: The name in OpenAI's API.
        older_name: The name in earlier versions of the API.
        rate: The sample rate in Hz.
        bytes_per_sample: The size of a sample.
        table: The sample for each byte (256,), for formats with one byte per sample.
    """

    name: str
    older_name: str
    rate: int
    bytes_per_sample: int
    table: NDArray[np.int16] | None = None

    def seconds(self, num_bytes: int) -> float:
        return num_bytes / (self.bytes_per_sample * self.rate)

    def samples(self, data: bytes) -> NDArray[np.int16]:
        """Decode audio. Returns the samples (N,). data: N samples."""
        if self.table is None:
            return np.frombuffer(data, "<i2")
        return self.table[np.frombuffer(data, np.uint8)]

    @property
    def content(self) -> dict[str, Any]:
        """The format in OpenAI's events, which contain the rate of PCM only."""
        return {"type": self.name} | ({"rate": self.rate} if self.table is None else {})


def g711_table(law: str) -> NDArray[np.int16]:
    """Return the sample for each byte (256,), scaled to 16 bits. law: "u" or "a" (ITU-T G.711, tables 1 and 2)."""
    codes = np.arange(256) ^ (0xFF if law == "u" else 0x55)  # some bits are inverted on the line
    segment, step = (codes >> 4) & 7, codes & 15
    if law == "u":
        sizes = ((2 * step + 33) << (segment + 2)) - 132
        is_negative = codes >= 128
    else:
        sizes = (2 * step + 1 + 32 * (segment > 0)) << (3 + np.maximum(segment - 1, 0))
        is_negative = codes < 128
    return np.where(is_negative, -sizes, sizes).astype(np.int16)


PCM = AudioFormat("audio/pcm", "pcm16", 24_000, 2)
FORMATS = (
    PCM,
    AudioFormat("audio/pcmu", "g711_ulaw", 8000, 1, g711_table("u")),
    AudioFormat("audio/pcma", "g711_alaw", 8000, 1, g711_table("a")),
)
BY_NAME = {name: each for each in FORMATS for name in (each.name, each.older_name)}
