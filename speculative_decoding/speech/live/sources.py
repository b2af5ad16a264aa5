"""The sources of live speech: PCM from standard input, an audio file played at a given speed, or a microphone."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from ...errors import InputError, Message
from ..audio_file import INSTALL, SAMPLE_RATE, BegunSource, Samples, open_source, reason
from ..resampling import FrameResampler
from .arriving import Chunk
from .headers import format_of

if TYPE_CHECKING:
    from av import AudioFrame
    from av.container import InputContainer

STANDARD_INPUT = "-"
MICROPHONE = "microphone"  # or microphone:DEVICE
PLAYED_SAMPLES = SAMPLE_RATE // 10
POLL_SECONDS = 0.1  # the time by which a silent pipe may delay Ctrl-C
READ_BYTES = 1 << 16
ALSA_FOLDER = "/usr/share/alsa"
MACOS_PERMISSION = "allow this terminal in System Settings > Privacy & Security > Microphone, and start it again"
IDLE_SECONDS = 0.01  # the interval between attempts to read from a device that has no data


class LiveSource(NamedTuple):
    """A source of audio. Each chunk is at most a few seconds long, and is empty while no audio is available.

    can_wait: See `Arriving`.
    """

    name: str
    chunks: Iterable[Chunk]
    can_wait: bool = True


def open_live(source: str, speed: float | None = None, track: int | None = None) -> LiveSource:
    """Open standard input (-), a microphone (microphone or microphone:DEVICE), or an audio file.

    speed: The speed at which a file plays, as a multiple of real time (default: 1).
    track: See `audio_track`.

    Raises:
        InputError: The source cannot be opened, or an option has no effect on it.
    """
    name, _, device = source.partition(":")
    if source == STANDARD_INPUT or name == MICROPHONE:
        for option, value in (("live_speed", speed), ("audio_track", track)):
            if value is not None:
                raise InputError(Message("has no effect with {live} {source}", source=source), option, "leave it out")
    if source == STANDARD_INPUT:
        return LiveSource("standard input", standard_input())
    if name == MICROPHONE:
        return LiveSource(source, microphone(device), can_wait=False)
    if not os.path.exists(source):
        raise InputError(f"{source}: no such file", "live", f"name an audio file, {MICROPHONE} or {STANDARD_INPUT}")
    file = BegunSource(open_source(source, track))
    return LiveSource(source, played(file.blocks(), speed or 1.0))


def standard_input() -> Iterator[bytes]:
    """Return the bytes of standard input as they arrive; see `pipe`. Raises `InputError` for a terminal."""
    if sys.stdin.isatty():
        raise InputError(
            "- reads PCM from standard input, which is a terminal",
            "live",
            f"pipe sound to it, or use {MICROPHONE} or a file",
        )
    return pipe(sys.stdin.fileno())


def pipe(descriptor: int) -> Iterator[bytes]:
    """Yield the bytes of standard input as they arrive, and b"" while there are none. Raises `InputError`.

    The first bytes are held back until they show whether the input is PCM or a file of another format, which would be
    noise if it were read as PCM.
    """
    begin = b""
    format = None  # None until the format is known
    while True:
        chunk = b""
        if select.select([descriptor], [], [], POLL_SECONDS)[0]:
            try:
                chunk = os.read(descriptor, READ_BYTES)
            except OSError as error:
                raise InputError(f"standard input cannot be read ({error.strerror})", "live") from error
            if not chunk:
                break
            if format is None:
                begin += chunk
                if format := format_of(begin):
                    way_out = "decode it, for example with ffmpeg -i - -f s16le -ac 1 -ar 16000 -, or name the file"
                    problem = f"standard input is {format}, not PCM (signed 16-bit little-endian, 16 kHz, mono)"
                    raise InputError(problem, "live", way_out)
                chunk = b"" if format is None else begin
        yield chunk
    if not begin:
        raise InputError("standard input contains no sound", "live", "check the command that writes it")
    if format is None:
        yield begin


def played(
    blocks: Iterable[Samples],
    speed: float,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Samples]:
    """Yield blocks of 0.1 seconds, each when it would have been played to its end. now, sleep: replaced in tests."""
    start = now()
    position = 0
    for block in blocks:
        for first in range(0, len(block), PLAYED_SAMPLES):
            piece = block[first : first + PLAYED_SAMPLES]
            position += len(piece)
            if (wait := start + position / (SAMPLE_RATE * speed) - now()) > 0:
                sleep(wait)
            yield piece


def microphone(device: str = "") -> Iterator[Chunk]:
    """Open a microphone; see `recorded`.

    device: The microphone's name or number on a Mac, or its ALSA name on Linux (default: the system's default).

    Raises:
        InputError: The microphone cannot be opened, or PyAV is not installed.
    """
    if not find_spec("av"):
        raise InputError(f"{MICROPHONE} needs the package av", "live", f"run {INSTALL}")
    if sys.platform == "darwin":
        return recorded(f":{device or 'default'}", "avfoundation", MACOS_PERMISSION)
    if not {"ALSA_CONFIG_DIR", "ALSA_CONFIG_PATH"} & os.environ.keys() and os.path.isdir(ALSA_FOLDER):
        os.environ["ALSA_CONFIG_DIR"] = ALSA_FOLDER  # PyAV's wheels contain ALSA, but not its configuration
    return recorded(device or "default", "alsa", f"name one that `arecord -L` lists as {MICROPHONE}:DEVICE")


def recorded(device: str, format: str, way_out: str) -> Iterator[Chunk]:
    """Open a device, and return its audio as mono samples at 16 kHz. Raises `InputError`.

    format: FFmpeg's name for the device's driver.
    """
    import av

    try:
        container = av.open(device, format=format)
    except (OSError, ValueError, av.FFmpegError) as error:
        problem = f"{device!r} cannot be opened with {format} ({reason(error)})"
        raise InputError(problem, "live", Message("{way_out}, or pipe PCM to {live} -", way_out=way_out)) from error
    return device_samples(container, f"{format} device {device!r}")


def device_samples(container: InputContainer, name: str) -> Iterator[Chunk]:
    """Yield the audio from a device, and b"" while there is none. Raises `InputError` if the device fails."""
    import av

    resampler = FrameResampler(SAMPLE_RATE)
    try:
        with container:
            for frame in frames(container):
                if frame is None:
                    yield b""
                else:
                    yield from resampler.add(frame)
            yield from resampler.add(None)
    except (OSError, ValueError, av.FFmpegError) as error:
        raise InputError(f"{name}: stopped ({reason(error)})", way_out="connect it, and start again") from error


def frames(container: InputContainer) -> Iterator[AudioFrame | None]:
    """Yield the frames from a device, and None whenever avfoundation has no data yet."""
    while True:
        try:
            yield from container.decode(audio=0)
            return
        except BlockingIOError:
            time.sleep(IDLE_SECONDS)
            yield None
