"""Pipes, files that play, and devices: the sound of each, and one line for what cannot be opened."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import pytest

from speculative_decoding.cli.parser import flag
from speculative_decoding.errors import InputError
from speculative_decoding.speech.audio_file import SAMPLE_RATE, open_source
from speculative_decoding.speech.live import sources
from speculative_decoding.speech.live.arriving import samples_of
from speculative_decoding.speech.live.headers import format_of
from speculative_decoding.speech.live.sources import device_samples, microphone, open_live, pipe, played, recorded
from tests.support.paths import ROOT

needs_av = pytest.mark.skipif(find_spec("av") is None, reason="PyAV, the extra `speech`, is not installed")
JFK = ROOT / "data" / "jfk.wav"


Ends = tuple[BinaryIO, BinaryIO]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    """The two ends of a pipe, which is polled without waiting."""
    monkeypatch.setattr(sources, "POLL_SECONDS", 0)
    reading, writing = os.pipe()
    with open(reading, "rb", 0) as reader, open(writing, "wb", 0) as writer:
        yield reader, writer


def test_a_pipe_yields_bytes_as_they_arrive_and_nothing_while_it_waits(ends: Ends) -> None:
    reader, writer = ends
    chunks = pipe(reader.fileno())
    assert next(chunks) == b""
    for piece in (bytes(12), b"\x01", b"RIFF", b"\x02\x03"):
        writer.write(piece)
        assert (next(chunks), next(chunks)) == (piece, b"")
    writer.close()
    assert [*chunks] == []


@pytest.mark.parametrize("pieces", [[b"RIFF\x00"], [b"R", b"IF", b"F"]])
def test_a_wav_file_in_a_pipe_is_refused(pieces: Sequence[bytes], ends: Ends) -> None:
    reader, writer = ends
    chunks = pipe(reader.fileno())
    with pytest.raises(
        InputError, match="is a WAV file, not PCM .*; decode it, for example with ffmpeg .*, or name the file"
    ):
        for piece in pieces:
            writer.write(piece)
            next(chunks)


COMPRESSED = {  # a beginning, and what it is
    "a WAV file": b"RF64\xff\xff\xff\xffWAVEds64",
    "Ogg": b"OggS\0\2" + bytes(20),
    "Matroska or WebM": b"\x1aE\xdf\xa3\x9fB\x86\x81\x01B\xf7\x81",
    "MP4": b"\0\0\0\x1cftypM4A \0\0\2\0",
    "MP3 or AAC": b"ID3\4\0\0\0\0\0\x23TSSE",
    "MP3": (b"\xff\xfb\x90\0" + bytes(413)) * 3,  # 128 kbit/s, 44.1 kHz
    "MP3 ": (b"\xff\xf3\x48\xc4" + bytes(140)) * 3,  # MPEG 2, 32 kbit/s, 16 kHz
    "AAC": (b"\xff\xf1\x60\x40\x0b\x9f\xfc" + bytes(85)) * 3,
    "an MPEG transport stream": (b"G\x40\0\x10" + bytes(184)) * 3,
    "FLAC": b"fLaC\0\0\0\x22" + bytes(20),
    "AIFF": b"FORM\0\0\0\x20AIFF",
    "AU": b".snd\0\0\0\x18" + bytes(20),
    "AMR": b"#!AMR\n" + bytes(20),
    "CAF": b"caff\0\1\0\0desc",
    "WMA": b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9",
    "FLV": b"FLV\1\5\0\0\0\x09\0\0\0\0",
}


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_sound_in_a_pipe_is_refused_before_it_is_played(name: str, ends: Ends) -> None:
    reader, writer = ends
    chunks = pipe(reader.fileno())
    with pytest.raises(InputError, match=f"standard input is {name.strip()}, not PCM .*; decode it"):
        for part in (COMPRESSED[name][:3], COMPRESSED[name][3:]):
            writer.write(part)
            assert next(chunks) == b""


def test_samples_are_no_format() -> None:
    """A guard: noise, silence, constants, and samples that look like a single header."""
    random = np.random.default_rng(0)
    sounds = [random.normal(scale=scale, size=4000).clip(-32768, 32767) for scale in (1, 300, 9000) for _ in range(50)]
    constants = [np.full(4000, value) for value in (0, -1, -1025, 0x4747)]
    for samples in [*sounds, *constants]:
        assert format_of(samples.astype("<i2").tobytes()) == ""
    for mark in (b"\xff\xfb\x90\0", b"\xff\xf1\x60\x40\x0b\x9f\xfc", b"G\x40\0\x10"):
        assert format_of(mark + b"\1" * 4000) == ""


def test_a_pipe_that_ends_early_keeps_its_sound(ends: Ends) -> None:
    reader, writer = ends
    writer.write(b"\1\2\3\4")
    writer.close()
    assert b"".join(pipe(reader.fileno())) == b"\1\2\3\4"


def test_a_pipe_without_sound_and_a_terminal_are_refused(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = ends
    writer.close()
    with pytest.raises(InputError, match="contains no sound; check the command"):
        [*pipe(reader.fileno())]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    with pytest.raises(InputError, match="is a terminal; pipe sound to it, or use microphone"):
        open_live("-")


class Clock:
    """Time that passes only while something sleeps, or when a test says so."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.time += seconds


@pytest.mark.parametrize("speed", [1.0, 2.5])
def test_a_file_plays_at_its_speed_and_catches_up_after_a_pause(speed: float) -> None:
    clock = Clock()
    blocks = [np.arange(25_000, dtype=np.float32), np.arange(700, dtype=np.float32)]
    found = []
    for piece in played(blocks, speed, clock.now, clock.sleep):
        found.append(piece)
        position = sum(map(len, found))
        assert clock.time == pytest.approx(max(100 + position / SAMPLE_RATE / speed, 100.8 if len(found) > 5 else 0))
        if len(found) == 5:
            clock.time = 100.8
    assert np.array_equal(np.concatenate(found), np.concatenate(blocks))
    assert max(map(len, found)) == SAMPLE_RATE // 10


def test_a_played_file_has_its_own_samples() -> None:
    source = open_live(str(JFK), 1e9)
    assert source.name == str(JFK) and source.can_wait
    assert np.array_equal(np.concatenate([*source.chunks]), np.concatenate([*open_source(JFK).blocks()]))


@pytest.mark.parametrize("name", ["-", "microphone", "microphone:hw:1"])
def test_only_a_file_has_a_speed_and_tracks(name: str) -> None:
    for values, option in (((2.0, None), "--live-speed"), ((None, 2), "--audio-track")):
        with pytest.raises(InputError) as error:
            open_live(name, *values)
        assert error.value.message(flag) == f"{option}: has no effect with --live {name}; leave it out"


@needs_av
@pytest.mark.parametrize(
    "device",
    [
        "sine=frequency=440:sample_rate=16000:duration=1",
        "sine=frequency=440:sample_rate=48000:duration=1,pan=stereo|c0=c0|c1=c0",
    ],
)
def test_a_device_is_resampled_to_16_khz_mono(device: str) -> None:
    samples = np.concatenate([*samples_of(recorded(device, "lavfi", ""))])
    expected = np.sin(2 * np.pi * 440 * np.arange(SAMPLE_RATE) / SAMPLE_RATE) / 8  # FFmpeg's amplitude
    assert len(samples) == pytest.approx(SAMPLE_RATE, abs=40)
    assert np.abs(samples[50:-50] - expected[50 : len(samples) - 50]).max() < 0.002


class Device:
    """A device that yields frames, and raises the exceptions among them."""

    def __init__(self, events: Sequence[Any]) -> None:
        self._events = [*events]
        self.is_open = True

    def decode(self, audio: int) -> Iterator[Any]:
        while self._events:
            event = self._events.pop(0)
            if isinstance(event, Exception):
                raise event
            yield event

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_open = False


def frame(value: int) -> Any:
    import av

    made = av.AudioFrame.from_ndarray(np.full((1, 160), value, np.int16), "s16", "mono")
    made.sample_rate = SAMPLE_RATE
    return made


@needs_av
def test_a_device_without_sound_yet_is_read_again() -> None:
    """avfoundation raises an error while it has no sound."""
    device = Device([BlockingIOError(), frame(5), BlockingIOError(), BlockingIOError(), frame(6)])
    chunks = [*device_samples(device, "device")]  # type: ignore[arg-type]
    assert [each == b"" if isinstance(each, bytes) else each[0] for each in chunks] == [True, 5, True, True, 6]
    assert not device.is_open


@needs_av
def test_a_device_that_fails_keeps_the_sound_before_it() -> None:
    device = Device([frame(5), OSError(5, "Input/output error")])
    chunks = device_samples(device, "alsa device 'hw:1'")  # type: ignore[arg-type]
    assert next(chunks)[0] == 5
    with pytest.raises(InputError, match="^alsa device 'hw:1': stopped .Input/output error.; connect it"):
        next(chunks)
    assert not device.is_open


@needs_av
@pytest.mark.parametrize(
    ("platform", "name", "opened", "way_out"),
    [
        ("darwin", "microphone", (":default", "avfoundation"), "System Settings > Privacy & Security > Microphone"),
        ("darwin", "microphone:MacBook Pro Microphone", (":MacBook Pro Microphone", "avfoundation"), "Privacy"),
        ("linux", "microphone", ("default", "alsa"), "`arecord -L` lists as microphone:DEVICE"),
        ("linux", "microphone:plughw:1,0", ("plughw:1,0", "alsa"), "or pipe PCM to --live -"),
    ],
)
def test_each_system_has_its_devices_and_its_way_out(
    platform: str, name: str, opened: tuple[str, str], way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import av

    found: list[tuple[str, str]] = []

    def refuse(device: str, format: str) -> None:
        found.append((device, format))
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(av, "open", refuse)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("ALSA_CONFIG_PATH", "own")
    with pytest.raises(InputError) as error:
        open_live(name)
    message = error.value.message(flag)
    assert found == [opened] and way_out in message
    assert message.startswith(f"--live: {opened[0]!r} cannot be opened with {opened[1]} (Input/output error); ")


@needs_av
@pytest.mark.parametrize(("device", "format"), [("nothing", "lavfi"), ("default", "no_such_format")])
def test_what_pyav_cannot_open_is_one_line(device: str, format: str) -> None:
    with pytest.raises(InputError, match=f"{device}' cannot be opened with {format} .*; way out, or pipe PCM"):
        recorded(device, format, "way out")


@needs_av
@pytest.mark.parametrize("given", ["", "ALSA_CONFIG_DIR", "ALSA_CONFIG_PATH"])
def test_alsa_reads_the_configuration_of_the_system_unless_another_is_given(
    given: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import av

    monkeypatch.setattr(av, "open", lambda device, format: Device([]))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sources, "ALSA_FOLDER", str(tmp_path))
    for name in ("ALSA_CONFIG_DIR", "ALSA_CONFIG_PATH"):
        monkeypatch.setenv(name, "own")  # so that the test restores it
        if name != given:
            monkeypatch.delenv(name)
    microphone()
    assert os.environ.get("ALSA_CONFIG_DIR") == {"": str(tmp_path), "ALSA_CONFIG_DIR": "own"}.get(given)


def test_a_microphone_needs_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="microphone needs the package av; run pip install"):
        open_live("microphone")
