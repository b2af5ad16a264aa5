"""Which track of a media file is transcribed, where sound is looked for, and what probing a file costs."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculative_decoding.errors import InputError, Note
from speculative_decoding.speech import tracks
from speculative_decoding.speech.audio_file import AudioFile, open_source
from speculative_decoding.speech.recording import open_audio
from tests.support.audio import sound, write_audio
from tests.support.paths import ROOT

av = pytest.importorskip("av")
RATE = 48000
LAYOUTS = {1: "mono", 2: "stereo", 6: "5.1"}
BIT_RATES = {1: 192_000, 2: 128_000, 6: 160_000}  # av_find_best_stream prefers the highest
Track = tuple[int, bool]  # channels, and whether it is marked as the default


def media(
    format: str, audio: Sequence[Track], *, silent: Sequence[int] = (), late: float = 0.0, noise: int = 0
) -> bytes:
    """Return a file whose tracks have tones of 300, 600, ... Hz. silent: tracks without packets.

    late: When sound begins, in seconds. noise: bytes of pictures before it.
    """
    from av.stream import Disposition

    file = io.BytesIO()
    with av.open(file, "w", format=format) as container:
        packets = []
        if noise:
            video = container.add_stream("mpeg2video" if format != "flv" else "flv1", rate=25)
            video.width, video.height, video.pix_fmt, video.bit_rate = 352, 288, "yuv420p", 20_000_000
            random = np.random.default_rng(0)
            size = 0
            for number in range(1000):
                picture = random.integers(0, 256, (288 * 3 // 2, 352), dtype=np.uint8)
                frame = av.VideoFrame.from_ndarray(picture, "yuv420p")
                frame.pts, frame.time_base = number, Fraction(1, 25)
                packets += video.encode(frame)
                size = sum(packet.size for packet in packets)
                if size > noise:
                    break
            packets += video.encode(None)
            late = late or number / 25
        for number, (channels, is_default) in enumerate(audio):
            stream = container.add_stream(
                {"flv": "libmp3lame", "mp4": "aac"}.get(format, "ac3"), rate=RATE if format != "flv" else 44100
            )
            stream.layout, stream.bit_rate = LAYOUTS[channels], BIT_RATES[channels]
            stream.disposition = Disposition.default if is_default else Disposition(0)
            if number in silent:
                continue
            rate = stream.rate
            wave = 0.3 * np.sin(2 * np.pi * 300 * (number + 1) * np.arange(rate) / rate)
            samples = np.repeat(np.round(wave * 32767).astype(np.int16)[None], channels, 0)
            start_at = round(late * rate)
            for start in range(0, rate - 1535, 1536):
                part = np.ascontiguousarray(samples[:, start : start + 1536].T.reshape(1, -1))
                frame = av.AudioFrame.from_ndarray(part, "s16", LAYOUTS[channels])
                frame.sample_rate, frame.pts, frame.time_base = rate, start_at + start, Fraction(1, rate)
                packets += stream.encode(frame)
            packets += stream.encode(None)
        for packet in sorted(
            (each for each in packets if each.dts is not None), key=lambda each: each.dts * each.time_base
        ):
            container.mux(packet)
    return file.getvalue()


def tone_of(samples: Any) -> int:
    """Return the number of the track with the strongest frequency, from 1."""
    spectrum = np.abs(np.fft.rfft(samples[4000:12000]))
    return round(float(np.argmax(spectrum)) * 2 / 300)


CHOICES: dict[str, tuple[str, list[Track], list[int], int]] = {
    # by `map_auto_audio` of FFmpeg 8: packets, then the default, then the most channels, then the first
    "TS: most channels, first": ("mpegts", [(2, False), (1, False)], [], 1),
    "TS: most channels, last": ("mpegts", [(1, False), (2, False)], [], 2),
    "TS: most channels of three": ("mpegts", [(2, False), (6, False), (1, False)], [], 2),
    "TS: first of equals": ("mpegts", [(2, False), (2, False)], [], 1),  # a guard
    "PS: most channels": ("vob", [(1, False), (2, False)], [], 2),
    "MKV: default before channels": ("matroska", [(6, False), (1, True)], [], 2),  # a guard
    "MKV: channels among defaults": ("matroska", [(1, True), (2, True)], [], 2),
    "MKV: channels without default": ("matroska", [(1, False), (6, False)], [], 2),
    "MKV: first of equals": ("matroska", [(2, False), (2, False)], [], 1),  # a guard
    "MKV: packets before channels": ("matroska", [(6, False), (1, False)], [0], 2),  # a guard
    "MKV: packets before default": ("matroska", [(2, True), (1, False)], [0], 2),
    "MP4: default before channels": ("mp4", [(1, True), (2, False)], [], 1),  # a guard
    "AVI: most channels": ("avi", [(1, False), (2, False)], [], 2),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_track_is_the_one_that_ffmpeg_takes(name: str) -> None:
    format, audio, silent, expected = CHOICES[name]
    content = media(format, audio, silent=silent)
    with pytest.warns(
        Note, match=rf"a: track {expected} of {len(audio)} is transcribed .*; choose another with audio_track"
    ):
        assert tone_of(next(AudioFile(content, "a").blocks())) == expected


def test_another_track_can_be_chosen_in_every_kind_of_file(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = tmp_path / "film.mkv"
    path.write_bytes(media("matroska", [(2, True), (1, False), (2, False)]))
    for number in (1, 2, 3):
        for source in (path, path.read_bytes(), io.BytesIO(path.read_bytes())):
            assert tone_of(next(open_source(source, number).blocks())) == number
    assert not recwarn
    with pytest.raises(InputError) as error:
        next(open_source(path, 4).blocks())
    assert str(error.value) == (
        f"audio_track: {path} has 3 audio tracks, and no track 4; choose one (1: stereo; 2: mono; 3: stereo)"
    )
    for given, problem in (
        (np.zeros(999, np.float32), "audio_track: has no effect on samples; leave it out"),
        (open_audio(path, [80], track=1), "audio_track: has no effect on a recording that has been read"),
        (write_audio(tmp_path / "a.wav", sound(1)), "a.wav has one audio track, and no track 2; choose one .1: mono"),
    ):
        with pytest.raises(InputError, match=problem):
            open_audio(given, [80], track=2)


@pytest.mark.parametrize("format", ["mpegts", "vob", "flv"])
def test_sound_after_a_megabyte_of_pictures_is_found(format: str) -> None:
    content = media(format, [(2, False)], noise=1_500_000)
    assert tone_of(next(AudioFile(content, "a").blocks())) == 1


def test_a_second_track_after_a_megabyte_of_pictures_is_compared() -> None:
    content = media("vob", [(1, False), (2, False)], noise=1_300_000)
    with pytest.warns(Note, match="track 2 of 2"):
        assert tone_of(next(AudioFile(content, "a").blocks())) == 2


def flv_of_tiny_packets(size: int) -> bytes:
    tag = b"\x09\0\0\2\0\0\0\0\0\0\0\x22\0" + (13).to_bytes(4, "big")
    return b"FLV\1\5\0\0\0\x09\0\0\0\0" + tag * (size // len(tag))


PEAK = """
import re, sys
from pathlib import Path
from speculative_decoding.speech.audio_file import open_source
try:
    next(open_source(Path(sys.argv[1])).blocks())
except ValueError:
    print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_file_of_tiny_packets_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "a.flv").write_bytes(flv_of_tiny_packets(25_000_000))
    command = [sys.executable, "-c", PEAK, str(tmp_path / "a.flv")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert 30e6 < int(done.stdout) < 150e6


def test_more_is_probed_only_if_it_has_few_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    """FFmpeg keeps 620 MB in memory for the tiny packets of the first MiB of such a file."""
    probed = tracks.probed
    sizes: list[int] = []

    def noted(file: Any, size: int) -> Any:
        sizes.append(size)
        return probed(file, size)

    monkeypatch.setattr(tracks, "probed", noted)
    with pytest.raises(InputError, match="a: contains no audio; name a file with sound"):
        next(AudioFile(flv_of_tiny_packets(6_000_000), "a").blocks())
    assert sizes == [1 << 16, 1 << 16]
    sizes.clear()
    next(AudioFile(media("vob", [(2, False)]), "a").blocks())
    assert sizes == [1 << 16, 5_000_000]
    sizes.clear()
    next(AudioFile(media("matroska", [(2, False)]), "a").blocks())
    assert sizes == [1 << 16]  # a guard
