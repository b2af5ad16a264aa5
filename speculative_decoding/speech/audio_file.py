"""Reads audio as blocks of 16 kHz mono samples, from files (any format with PyAV, only WAV without) or from memory.

The samples of a file equal the output of `ffmpeg -ac 1 -ar 16000 -f s16le`, the command that openai-whisper runs.
"""

from __future__ import annotations

import os
import wave
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import BufferedReader, BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..checkpoints.files import open_if_regular
from ..errors import InputError, note
from ..sampling.options import short_repr
from .media_files import ICLOUD, is_placeholder
from .resampling import FrameResampler
from .tracks import audio_track, no_track, open_media

if TYPE_CHECKING:
    from av import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer

SAMPLE_RATE = 16000
BLOCK_SAMPLES = 10 * SAMPLE_RATE
MAX_SAMPLE = 8.0  # loud audio may exceed 1, but a sample above this limit means that the input was not scaled
RATES = range(1000, 384_001)  # Hz
MAX_SAMPLE_RATE = 192_000 * 8  # samples per second in all channels together; limits the time for decoding one second
MAX_FRAME_SECONDS = 60.0  # limits memory, because the decoder keeps a whole frame
MAX_FRAME_SAMPLES = 1 << 22  # in all channels together
MAX_DECODED_SAMPLES = 1 << 25  # per channel; the decoder refuses to allocate larger frames
FREE_PACKETS = 10_000
MAX_PACKETS_PER_SECOND = 4000  # of audio; limits packets and frames, because even very short ones take time
CHANGE_COST = 20  # in packets: creating a new resampler after a change of format takes as long as 20 packets
STATED = ("aiff", "ape", "asf", "au", "caf", "flac", "mov", "tak", "tta", "w64", "wav", "wv")  # state their length
SIZE_SLACK = 8  # bytes; some recorders include the header in the stated size, or leave out the last padding
MATROSKA = "matroska,webm"  # FFmpeg's name
LENGTH_MARKS = {  # by format; a file that states its length contains one of these marks near the start
    "mp3": (b"Xing", b"Info", b"VBRI"),  # in the first frame
    MATROSKA: (b"\x44\x89\x84", b"\x44\x89\x88"),  # the element Duration, with four or eight bytes
}
MICROSECONDS = 1_000_000  # per second
CONVERT = "convert it to WAV or FLAC at 16000 Hz"
SCALE = "divide 16-bit integers by 32768"
INSTALL = 'pip install "speculative-decoding[speech]"'

Samples = NDArray[np.float32]


class Tensor(Protocol):
    """A PyTorch tensor."""

    def detach(self) -> Any: ...

    def is_floating_point(self) -> bool: ...


class AudioSource(Protocol):
    """A recording that yields its samples in blocks. Some sources can be read only once."""

    @property
    def name(self) -> str:
        """The recording's name in messages."""

    def blocks(self) -> Iterator[Samples]:
        """Yield the samples, between -1 and 1, in blocks of BLOCK_SAMPLES. The last block may be shorter."""


Audio = (
    str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | NDArray[Any] | mx.array | Tensor | AudioSource
)


@dataclass(frozen=True, eq=False)
class AudioArray:
    """Samples in memory at 16 kHz: floats from -1 to 1, or integers that use the full range of their type.

    All dimensions but one must have length 1.
    """

    samples: NDArray[Any]
    name: str = "audio"

    def __post_init__(self) -> None:
        samples = self.samples
        if samples.size != max(samples.shape, default=0) or samples.dtype.kind not in "fiu":
            raise InputError(
                f"must be samples of one channel at 16 kHz (got {samples.dtype} of shape {samples.shape})",
                "audio",
                "mix channels down, for example with samples.mean(0)",
            )

    def blocks(self) -> Iterator[Samples]:
        samples = self.samples.reshape(-1)
        for start in range(0, len(samples), BLOCK_SAMPLES):
            with np.errstate(over="ignore"):
                block = scaled(samples[start : start + BLOCK_SAMPLES])
            is_valid = np.abs(block) <= MAX_SAMPLE  # false for NaN
            if not is_valid.all():
                index = int(is_valid.argmin())
                raise InputError(
                    f"samples must be from -1 to 1 (got {block[index]:g} at sample {start + index})", "audio", SCALE
                )
            yield block


def scaled(samples: NDArray[Any]) -> Samples:
    """Convert samples to float32. Integers are scaled to the range -1 to 1; unsigned integers are first centered."""
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    half = 2.0 ** (8 * samples.dtype.itemsize - 1)
    middle = half if samples.dtype.kind == "u" else 0.0
    return ((samples.astype(np.float64) - middle) / half).astype(np.float32)


@dataclass(frozen=True)
class AudioFile:
    """An audio file in any format that PyAV reads. Without PyAV, it must be a 16 kHz WAV file.

    source: The file's path or contents.
    track: See `audio_track`.
    """

    source: Path | bytes = field(repr=False)
    name: str
    track: int | None = None

    def blocks(self) -> Iterator[Samples]:
        decode = decode_any if find_spec("av") else decode_wav
        with BytesIO(self.source) if isinstance(self.source, bytes) else open_file(self.source) as file:
            if not file.read(1):
                raise InputError(f"{self.name}: is empty; name another file")
            file.seek(0)
            for block in joined(decode(file, self.name, self.track)):
                yield block.astype(np.float32) / np.float32(32768)
            if is_cut_off(file):
                note(f"{self.name}: the file is shorter than its header says; it seems to be cut off")


class BegunSource:
    """A recording whose first block is read immediately. Raises `InputError` if the recording is empty."""

    def __init__(self, source: AudioSource) -> None:
        self.name = source.name
        rest = source.blocks()
        first = next(rest, None)
        if first is None:
            raise InputError(f"{self.name}: contains no sound; name another file")
        self._blocks = chain([first], rest)

    def blocks(self) -> Iterator[Samples]:
        return self._blocks


def open_source(audio: Audio, track: int | None = None) -> AudioSource:
    """Return an `AudioSource` for a recording. Raises `InputError`.

    audio: An audio file as a path, bytes or an open binary file; samples at 16 kHz in a NumPy array, MLX array or
        PyTorch tensor; or an `AudioSource`.
    track: See `audio_track`. Only files have tracks.
    """
    if isinstance(audio, AudioArray | AudioFile | BegunSource):
        return audio
    if isinstance(audio, str | os.PathLike):
        path = Path(audio)
        return AudioFile(path.read_bytes() if is_open_pipe(path) else path, str(path), track)
    if isinstance(audio, bytes | bytearray | memoryview):
        return AudioFile(bytes(audio), "audio", track)
    if callable(read := getattr(audio, "read", None)):
        if isinstance(content := read(), bytes):
            return AudioFile(content, "audio", track)
        raise InputError("is a file in text mode", "audio", "open it in binary mode, or give its path")
    if track is not None:
        raise InputError("has no effect on samples", "audio_track", "leave it out")
    if (samples := array_of(audio)) is not None:
        return AudioArray(samples)
    raise InputError(f"must be a path, bytes, a file or an array of samples, not {short_repr(audio)}", "audio")


def is_open_pipe(path: Path) -> bool:
    """Whether a path is standard input or a pipe from the shell, as in `<(command)`. Both can be read only once."""
    return path.parts[:3] == ("/", "dev", "fd") or path == Path("/dev/stdin")


def array_of(audio: Any) -> NDArray[Any] | None:
    """Return samples as a NumPy array, or None if the object does not contain samples. Does not import PyTorch."""
    if isinstance(audio, np.ndarray):
        return audio
    if isinstance(audio, mx.array):
        is_small = audio.dtype == mx.bfloat16  # NumPy has no bfloat16
        return np.array(audio.astype(mx.float32) if is_small else audio)
    if callable(getattr(audio, "detach", None)) and callable(getattr(audio, "is_floating_point", None)):
        tensor = audio.detach().cpu()
        return np.asarray(tensor.float() if tensor.is_floating_point() else tensor)
    return None


def joined(pieces: Iterable[NDArray[np.int16]]) -> Iterator[NDArray[np.int16]]:
    """Join small pieces into blocks of BLOCK_SAMPLES. The last block may be shorter."""
    held: list[NDArray[np.int16]] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        while size >= BLOCK_SAMPLES:
            block = np.concatenate(held)
            yield block[:BLOCK_SAMPLES]
            held = [block[BLOCK_SAMPLES:]]
            size -= BLOCK_SAMPLES
    if size:
        yield np.concatenate(held)


def decode_any(file: BinaryIO, name: str, track: int | None = None) -> Iterator[NDArray[np.int16]]:
    """Decode an audio track with PyAV, mix it to mono, and resample it. Damaged packets are skipped, as in ffmpeg."""
    import av

    resampler = FrameResampler(SAMPLE_RATE)
    setup = None
    try:
        container, with_packets = open_media(file)
        with container:
            stream = audio_track(container, name, track, with_packets)
            announced = announced_seconds(file, container, stream)
            for frame in chain(decoded_frames(container, stream, announced, name), [None]):
                before, setup = setup, frame and setup_of(frame)
                if before not in (None, setup):  # the format changes, or the stream ends
                    yield from resampler.add(None)
                    resampler = FrameResampler(SAMPLE_RATE)
                if frame is not None:
                    yield from resampler.add(frame)
    except InputError:
        raise
    except (OSError, ValueError, av.FFmpegError) as error:
        raise InputError(f"{name}: not a readable audio file ({reason(error)}); convert it, or name another") from error


def decoded_frames(container: InputContainer, stream: AudioStream, announced: float, name: str) -> Iterator[AudioFrame]:
    """Yield the frames of an audio stream, and print a note if the file is damaged. Raises `InputError`.

    announced: See `announced_seconds`.
    """
    import av

    stream.codec_context.options |= {"max_samples": str(MAX_DECODED_SAMPLES)}
    damage = None
    seconds = 0.0
    packets = 0
    setup: tuple[str, str, int] | None = None
    try:
        for packet in container.demux(stream):
            packets += 1
            try:
                frames: Sequence[Any] = packet.decode()  # audio frames
            except av.FFmpegError as error:
                damage = error
                frames = ()
            for frame in frames:
                require_usual(frame, name)
                before, setup = setup, setup_of(frame)
                packets += 1 if before in (None, setup) else CHANGE_COST
                seconds += frame.samples / frame.sample_rate
                yield frame
            if packets > FREE_PACKETS + MAX_PACKETS_PER_SECOND * seconds:
                problem = f"its packets hold too little sound ({seconds:.2f} seconds in the first {packets})"
                raise InputError(f"{name}: {problem}", way_out=CONVERT)
    except av.FFmpegError as error:  # the file cannot be read any further
        damage = error
    if damage is not None:
        if not seconds:
            raise damage
        note(f"{name}: damaged parts are skipped ({reason(damage)})")
    elif seconds < 0.95 * announced - 0.1:
        note(f"{name}: ends after {seconds:.1f} of {announced:.1f} seconds; it seems to be cut off")


def announced_seconds(file: BinaryIO, container: InputContainer, stream: AudioStream) -> float:
    """Return the duration that the header states, or 0 if it states none. FFmpeg's estimates are often wrong."""
    format = container.format.name
    length = float((stream.duration or 0) * (stream.time_base or 0))
    states_length = not {*format.split(",")}.isdisjoint(STATED)
    if format == MATROSKA and len(container.streams) == 1:  # the duration may be that of a picture in another stream
        length = (container.duration or 0) / MICROSECONDS
    if format in LENGTH_MARKS:
        position = file.tell()
        start = start_after_tag(file)
        file.seek(position)
        states_length = any(mark in start for mark in LENGTH_MARKS[format])
    return length if states_length else 0.0


def start_after_tag(file: BinaryIO) -> bytes:
    """Return the first bytes after an ID3 tag, if any. The tag states its size in four bytes of seven bits each."""
    file.seek(0)
    header = file.read(10)
    size = 10 + sum(byte << 7 * (3 - i) for i, byte in enumerate(header[6:]))
    file.seek(size if header.startswith(b"ID3") else 0)
    return file.read(4096)


def setup_of(frame: AudioFrame) -> tuple[str, str, int]:
    """Return a frame's format, layout and sample rate, which must be the same for all frames of a resampler."""
    return frame.format.name, frame.layout.name, frame.sample_rate


def require_usual(frame: AudioFrame, name: str) -> None:
    """Reject a frame that is expensive to resample. Called for every frame, as the format may change within a file."""
    rate, channels = frame.sample_rate, frame.layout.nb_channels
    if rate not in RATES:
        problem = f"sampled at {rate} Hz (expected {RATES[0]} to {RATES[-1]} Hz)"
    elif rate * channels > MAX_SAMPLE_RATE:
        problem = f"has {channels} channels at {rate} Hz (at most {MAX_SAMPLE_RATE} samples per second in all)"
    elif frame.samples > MAX_FRAME_SECONDS * rate or frame.samples * channels > MAX_FRAME_SAMPLES:
        problem = f"has a frame of {frame.samples / rate:.0f} seconds with {channels} channels at {rate} Hz"
    else:
        return
    raise InputError(f"{name}: {problem}", way_out=CONVERT)


def decode_wav(file: BinaryIO, name: str, track: int | None = None) -> Iterator[NDArray[np.int16]]:
    """Decode a 16 kHz WAV file with 8-bit to 32-bit integers, using Python's `wave` module. Channels are averaged."""
    if track not in (None, 1):
        raise no_track(name, track or 0, ["1: a WAV file has only one"])
    try:
        with wave.open(file) as wav:
            width, channels = wav.getsampwidth(), wav.getnchannels()
            if wav.getframerate() != SAMPLE_RATE:
                raise wave.Error(f"{wav.getframerate()} Hz")
            if width > 4:
                raise wave.Error(f"{width} bytes per sample")
            while data := wav.readframes(BLOCK_SAMPLES // channels + 1):
                yield int16_samples(data, width, channels)
    except (wave.Error, EOFError, RuntimeError) as error:  # RuntimeError if a chunk is longer than the file
        raise InputError(
            f"{name}: without PyAV, only WAV files with integers at 16 kHz are read ({str(error) or 'it ends'}); "
            f"run {INSTALL}"
        ) from error


def int16_samples(data: bytes, width: int, channels: int) -> NDArray[np.int16]:
    """Average little-endian samples of `width` bytes over all channels. One-byte samples are unsigned."""
    raw = np.frombuffer(data, np.uint8)
    raw = raw[: len(raw) // (width * channels) * (width * channels)].reshape(-1, channels, width)
    if width == 1:
        samples = (raw[..., 0].astype(np.int16) - 128) << 8
    else:
        samples = np.ascontiguousarray(raw[..., -2:]).view("<i2")[..., 0]  # the two most significant bytes
    return ((samples.sum(axis=1, dtype=np.int32) + channels // 2) // channels).astype(np.int16)


def is_cut_off(file: BinaryIO) -> bool:
    """Whether a RIFF file is shorter than its header states. Ignores the huge placeholder sizes of piped output."""
    file.seek(0)
    header = file.read(8)
    size = 8 + int.from_bytes(header[4:], "little")
    return header.startswith(b"RIFF") and file.seek(0, os.SEEK_END) + SIZE_SLACK < size < 0x7FFF0000


def open_file(path: Path) -> BufferedReader:
    if is_placeholder(path.name):
        raise InputError(
            f"{path.with_name(path.name[1:].removesuffix(ICLOUD))}: is in iCloud; download it in the Finder"
        )
    try:
        return open_if_regular(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); name an audio file") from error


def reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
