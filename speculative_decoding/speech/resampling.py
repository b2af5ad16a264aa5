"""Mixes and resamples audio with FFmpeg, in the calling thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from av import AudioFrame
    from av.filter import Graph


class FrameResampler:
    """Converts audio frames, all in the same format, to 16-bit mono samples. Its memory is freed with the object.

    PyAV's `AudioResampler` starts a thread per processor: too many threads for a server with many clients.

    Args:
        rate: The sample rate of the output, in Hz.
        block: The number of samples per returned array; None returns an array for each frame.
    """

    def __init__(self, rate: int, block: int | None = None) -> None:
        self._rate = rate
        self._block = block
        self._graph: Graph | None = None  # created for the first frame

    def add(self, frame: AudioFrame | None) -> Iterator[NDArray[np.int16]]:
        """Yield the samples that are ready, (N,). frame: the next frame, or None to get the remaining samples."""
        if self._graph is None:
            if frame is None:
                return
            self._graph = self._new_graph(frame)
        self._graph.push(frame)
        while True:
            try:
                done = self._graph.pull()
            except (BlockingIOError, EOFError):  # the graph needs another frame, or is finished
                return
            yield done.to_ndarray()[0]

    def _new_graph(self, frame: AudioFrame) -> Graph:
        from av.filter import Graph

        graph = Graph()
        graph.threads = 1
        time_base = {} if frame.time_base is None else {"time_base": str(frame.time_base)}
        layout, format = frame.layout.name, frame.format.name
        source = graph.add(
            "abuffer", sample_rate=str(frame.sample_rate), sample_fmt=format, channel_layout=layout, **time_base
        )
        wanted = graph.add("aformat", sample_rates=str(self._rate), sample_fmts="s16", channel_layouts="mono")
        graph.link_nodes(source, wanted, graph.add("abuffersink")).configure()
        if self._block is not None:
            graph.set_audio_frame_size(self._block)
        return graph
