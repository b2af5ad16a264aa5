"""Audio files and arrays: samples of every format, and one line for everything that is not sound."""

from __future__ import annotations

import io
import os
import wave
from collections.abc import Callable
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from speculative_decoding import InputError
from speculative_decoding.speech import audio_file, tracks
from speculative_decoding.speech.audio_file import AudioFile, decode_wav, open_source
from speculative_decoding.speech.recording import open_audio
from tests.support.audio import CODECS, sound, write_audio
from tests.support.paths import ROOT

needs_av = pytest.mark.skipif(find_spec("av") is None, reason="PyAV, the extra `speech`, is not installed")
JFK = ROOT / "data" / "jfk.wav"


def samples_of(path: Path) -> NDArray[np.float32]:
    return np.concatenate([*open_source(path).blocks()])


def write_wav(path: Path, data: bytes, width: int = 2, channels: int = 1, rate: int = 16000) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setsampwidth(width)
        file.setnchannels(channels)
        file.setframerate(rate)
        file.writeframes(data)
    return path


@pytest.mark.parametrize("with_av", [pytest.param(True, marks=needs_av, id="PyAV"), False])
def test_plain_wav_has_its_own_samples_in_blocks(with_av: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_av:
        monkeypatch.setattr(audio_file, "find_spec", lambda name: None)
    with wave.open(str(JFK)) as file:
        expected = np.frombuffer(file.readframes(file.getnframes()), np.int16) / np.float32(32768)
    monkeypatch.setattr(audio_file, "BLOCK_SAMPLES", 70000)
    for source in (open_source(JFK), AudioFile(JFK.read_bytes(), "jfk")):
        blocks = [*source.blocks()]
        assert [len(block) for block in blocks] == [70000, 70000, 36000]
        assert np.array_equal(np.concatenate(blocks), expected)


@needs_av
@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_wav_has_the_same_samples_without_pyav(width: int, channels: int, tmp_path: Path) -> None:
    data = np.random.default_rng(width).bytes(width * channels * 1000)
    path = write_wav(tmp_path / "a.wav", data, width, channels)
    with path.open("rb") as file:
        samples = np.concatenate([*decode_wav(file, path.name)])
    difference = np.abs(samples - samples_of(path) * 32768)
    assert difference.max() <= (width > 2 and channels > 1)  # PyAV mixes wider samples as floats, and rounds once


@needs_av
@pytest.mark.parametrize("suffix", CODECS)
def test_every_format_gives_16_khz_mono(suffix: str, tmp_path: Path) -> None:
    path = write_audio(tmp_path / f"a.{suffix}", sound(2, 48000, channels=2), 48000)
    samples = samples_of(path)
    assert 32000 <= len(samples) < 32000 + 1024  # AAC ends with a whole frame
    assert np.corrcoef(samples[:32000], sound(2)[0])[0, 1] > 0.98


@needs_av
def test_eight_channels_are_mixed_down(tmp_path: Path) -> None:
    path = write_audio(tmp_path / "a.wav", sound(1, channels=8))
    assert np.corrcoef(samples_of(path), sound(1)[0])[0, 1] > 0.98


@needs_av
def test_a_playlist_opens_no_other_file(tmp_path: Path) -> None:
    write_audio(tmp_path / "a.mp3", sound(1))
    (tmp_path / "list.txt").write_text("ffconcat version 1.0\nfile a.mp3\n")
    (tmp_path / "list.m3u8").write_text("#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:1,\na.mp3\n#EXT-X-ENDLIST\n")
    for name in ("list.txt", "list.m3u8"):
        with pytest.raises(InputError, match=rf"{name}: not a readable audio file"):
            open_audio(tmp_path / name, [80])


def encoded(path: Path) -> bytes:
    return write_audio(path, sound(2)).read_bytes()


def damaged(path: Path) -> bytes:
    content = bytearray(encoded(path))
    middle = len(content) // 2
    content[middle : middle + 300] = b"\x55" * 300
    return bytes(content)


@needs_av
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("a.mp3", damaged, "a.mp3: damaged parts are skipped"),
        ("a.wav", lambda path: JFK.read_bytes()[:99999], "a.wav: the file is shorter than its header says"),
        ("a.mp3", lambda path: encoded(path)[:4000], "a.mp3: ends after .* of 2.0 seconds"),
        ("a.mka", lambda path: matroska(8000, 16000, 1000)[:12000], "a.mka: ends after .* of 2.0 seconds"),
    ],
)
def test_damaged_files_are_read_as_far_as_possible_with_one_note(
    name: str, change: Callable[[Path], bytes], message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(change(path))
    with pytest.warns(UserWarning, match=message) as caught:
        assert samples_of(path).size > 8000
    assert len(caught) == 1


def encoded_as(
    format: str, codec: str, samples: NDArray[np.int16], rate: int, bit_rate: int = 0, **options: str
) -> bytes:
    """Return the content of a stream that cannot be sought, as in a pipe, so that no header has its length."""
    import av

    content = bytearray()

    class Pipe(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            content.extend(data)
            return len(data)

    with av.open(Pipe(), "w", format=format, options=options) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.layout = "mono"
        if bit_rate:
            stream.bit_rate = bit_rate
        for start in range(0, len(samples), 4096):
            frame = av.AudioFrame.from_ndarray(samples[None, start : start + 4096], "s16", "mono")
            frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return bytes(content)


def quiet_then_loud(rate: int) -> NDArray[np.int16]:
    """Return 15 s, for which the bit rate of the beginning is much too low."""
    loud = np.random.default_rng(0).normal(scale=8000, size=10 * rate).clip(-32768, 32767)
    return np.concatenate([np.zeros(5 * rate), loud]).astype(np.int16)


def two_rates(format: str, codec: str, rate: int, low: int, high: int, **options: str) -> bytes:
    samples = np.zeros(5 * rate, np.int16)
    return b"".join(encoded_as(format, codec, samples, rate, each, **options) for each in (low, high))


def with_sizes(riff: int, data: int) -> bytes:
    content = bytearray(JFK.read_bytes())
    content[4:8], content[40:44] = (size.to_bytes(4, "little") for size in (riff, data))
    return bytes(content)


SIZE = JFK.stat().st_size
BARE = {"write_xing": "0", "id3v2_version": "0"}
WHOLE: dict[str, Callable[[], bytes]] = {  # complete files. No header, or a wrong one, has the length
    "AAC": lambda: encoded_as("adts", "aac", quiet_then_loud(16000), 16000),
    "MP3": lambda: two_rates("mp3", "libmp3lame", 44100, 32_000, 128_000, **BARE),
    "MP2": lambda: two_rates("mp2", "mp2", 44100, 64_000, 192_000),
    "AC-3": lambda: two_rates("ac3", "ac3", 48000, 64_000, 192_000),
    "E-AC-3": lambda: two_rates("eac3", "eac3", 48000, 64_000, 192_000),
    "LATM": lambda: encoded_as("latm", "aac", quiet_then_loud(16000), 16000),  # a guard
    "FLAC": lambda: encoded_as("flac", "flac", quiet_then_loud(16000), 16000),  # a guard
    "Ogg": lambda: encoded_as("ogg", "libopus", quiet_then_loud(48000), 48000),  # a guard
    "Matroska": lambda: encoded_as("matroska", "aac", quiet_then_loud(16000), 16000),  # a guard
    "AVI": lambda: encoded_as("avi", "libmp3lame", quiet_then_loud(44100), 44100),
    "RealMedia": lambda: encoded_as("rm", "ac3", quiet_then_loud(44100), 44100),
    "WAV, sizes 0": lambda: with_sizes(0, 0),  # a guard
    "WAV, sizes -1": lambda: with_sizes(0xFFFFFFFF, 0xFFFFFFFF),  # a guard
    "WAV, size with its header": lambda: with_sizes(SIZE, SIZE - 44),
}


@needs_av
@pytest.mark.parametrize("make", WHOLE.values(), ids=WHOLE)
def test_a_whole_file_is_not_reported_as_cut_off(make: Callable[[], bytes], recwarn: pytest.WarningsRecorder) -> None:
    samples = np.concatenate([*AudioFile(make(), "a").blocks()])
    assert len(samples) > 9.5 * 16000 and not [str(each.message) for each in recwarn]


@needs_av
@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3"])
def test_a_file_that_is_cut_off_is_reported(suffix: str, tmp_path: Path) -> None:
    """A guard: also an MP3 whose tag has a large picture, before the frame that has the length."""
    content = write_audio(tmp_path / f"a.{suffix}", sound(6)).read_bytes()
    pictures = b"ID3\3\0\0\0\x10\0\0" + bytes(1 << 18) if suffix == "mp3" else b""
    with pytest.warns(UserWarning, match="cut off|damaged"):
        [*AudioFile(pictures + content[: len(content) // 2], "a").blocks()]


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def silent_video(path: Path) -> Path:
    import av

    with av.open(path, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=10, width=64, height=64, pix_fmt="yuv420p")
        container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), "rgb24")))
        container.mux(stream.encode(None))
    return path


def written(content: bytes) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        path.write_bytes(content)
        return path

    return write


ANY_READER = {
    "missing": (lambda path: path, "cannot be read .No such file"),
    "folder": (folder, "cannot be read .not a regular file"),
    "pipe": (pipe, "cannot be read .not a regular file"),
    "device": (lambda path: "/dev/zero", "cannot be read .not a regular file"),
    "5 ms": (lambda path: write_wav(path, bytes(160)), "no sound .got 80 samples"),
    "channels": (lambda path: np.zeros((2, 999), np.float32), "samples of one .*shape .2, 999.*mix channels down"),
    "bool": (lambda path: np.zeros(999, bool), "must be samples of one channel"),
    "text mode": (lambda path: io.StringIO("RIFF"), "text mode; open it in binary mode"),
    "empty bytes": (lambda path: b"", "^audio: is empty; name another file"),
    "empty file": (written(b""), "a.wav: is empty; name another file"),
    "in iCloud": (lambda path: path.with_name(".talk.m4a.icloud"), "/talk.m4a: is in iCloud; download it"),
    "unscaled": (lambda path: np.full(999, 20000.0), "from -1 to 1 .got 20000 at sample 0"),
    "NaN": (lambda path: np.array([0.0] * 700 + [np.nan] * 2), "from -1 to 1 .got nan at sample 700"),
    "infinity": (lambda path: np.array([0.0] * 700 + [-1e300]), "from -1 to 1 .got -inf at sample 700"),
    "no samples": (lambda path: np.zeros(0, np.float32), "no sound .got 0 samples"),
    "list": (lambda path: [0.0] * 999, "must be a path, bytes, a file or an array of samples"),
}


def all_damaged(path: Path) -> Path:
    content = bytearray(write_audio(path.with_suffix(".m4a"), sound(2)).read_bytes())
    start, end = content.index(b"mdat") + 4, content.index(b"moov") - 4
    content[start:end] = b"\x55" * (end - start)
    path.write_bytes(content)
    return path


def unknown_codec(path: Path) -> Path:
    path.write_bytes(matroska(8000, 8000, 1000).replace(b"A_PCM/INT/LIT", b"A_XXX/INT/LIT"))
    return path


PYAV = {
    "all damaged": (all_damaged, "not a readable audio file"),
    "unknown codec": (unknown_codec, "PyAV cannot decode its audio; convert it to WAV or FLAC"),
    "text": (written(b"Hello.\n" * 99), "not a readable audio file"),
    "one byte": (written(b"x"), "not a readable audio file"),
    "zeros": (written(bytes(999)), "not a readable audio file"),
    "header": (lambda path: written(encoded(path.with_suffix(".mp3"))[:60])(path), "not a readable audio file"),
    "WAV header": (written(JFK.read_bytes()[:20]), "not a readable audio file"),
    "random": (written(np.random.default_rng(0).bytes(9999)), "not a readable audio file"),
    "video": (silent_video, "contains no audio; name a file with sound"),
}
WITHOUT_PYAV = {
    "0 samples": (lambda path: write_wav(path, b""), "no sound .got 0 samples"),
    "header only": (written(b"RIFF"), "without PyAV, only WAV files .*it ends.*pip install"),
    "FLAC": (written(b"fLaC" + bytes(99)), "without PyAV, only WAV files .*pip install"),
    "long chunk": (
        lambda path: written(JFK.read_bytes()[:36] + b"LIST\xff\xff\xff\x7f" + bytes(99))(path),
        "pip install",
    ),
    "64 bits": (
        lambda path: written(JFK.read_bytes()[:32] + b"\x08\0\x40" + JFK.read_bytes()[35:999])(path),
        "8 bytes per",
    ),
    "44.1 kHz": (lambda path: write_wav(path, bytes(999), rate=44100), "44100 Hz.*pip install"),
    "float": (written(JFK.read_bytes()[:20] + b"\3" + JFK.read_bytes()[21:999]), "unknown format: 3.*pip install"),
}


def require_one_line(make: Callable[[Path], Any], message: str, path: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        open_audio(make(path), [80])
    assert "\n" not in str(caught.value)


class FakeTensor:
    """What a tensor of PyTorch has: its methods, and no conversion to an array before `detach` and `cpu`."""

    def __init__(self, samples: NDArray[Any], steps: tuple[str, ...] = ()) -> None:
        self.samples, self.steps = samples, steps

    def detach(self) -> FakeTensor:
        return FakeTensor(self.samples, (*self.steps, "detach"))

    def cpu(self) -> FakeTensor:
        return FakeTensor(self.samples, (*self.steps, "cpu"))

    def is_floating_point(self) -> bool:
        return self.samples.dtype.kind == "f"

    def float(self) -> FakeTensor:
        return FakeTensor(self.samples.astype(np.float32), (*self.steps, "float"))

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        assert self.steps[:2] == ("detach", "cpu")
        return self.samples


INTEGERS = np.random.default_rng(0).integers(-32768, 32768, 4000).astype(np.int16)
FLOATS = INTEGERS / np.float32(32768)
SAME_SAMPLES: dict[str, Callable[[Path], Any]] = {  # all have the samples of FLOATS
    "float32": lambda path: FLOATS,
    "float64": lambda path: FLOATS.astype(np.float64),
    "not contiguous": lambda path: np.repeat(FLOATS, 2)[::2],
    "(1, N)": lambda path: FLOATS[None],
    "(N, 1)": lambda path: FLOATS[:, None],
    "int16": lambda path: INTEGERS,
    "int32": lambda path: INTEGERS.astype(np.int32) << 16,
    "uint16": lambda path: (INTEGERS.astype(np.int32) + 32768).astype(np.uint16),
    "mx.array": lambda path: mx.array(FLOATS),
    "tensor": lambda path: FakeTensor(FLOATS),
    "tensor int16": lambda path: FakeTensor(INTEGERS),
    "path": lambda path: write_wav(path, INTEGERS.tobytes()),
    "bytes": lambda path: write_wav(path, INTEGERS.tobytes()).read_bytes(),
    "file": lambda path: write_wav(path, INTEGERS.tobytes()).open("rb"),
}


@pytest.mark.parametrize("make", SAME_SAMPLES.values(), ids=SAME_SAMPLES)
def test_every_kind_of_recording_has_the_same_samples_each_time(make: Callable[[Path], Any], tmp_path: Path) -> None:
    source = open_source(make(tmp_path / "a.wav"))
    for _ in range(2):
        assert np.array_equal(np.concatenate([*source.blocks()]), FLOATS)


def test_samples_of_bfloat16_and_bytes_are_scaled() -> None:
    rough = mx.array(FLOATS).astype(mx.bfloat16)
    found = np.concatenate([*open_source(rough).blocks()])
    assert np.array_equal(found, np.array(rough.astype(mx.float32)))
    assert [*next(open_source(np.array([0, 128, 255], np.uint8)).blocks())] == [-1, 0, 127 / 128]


def test_a_pipe_that_the_shell_has_opened_is_read_once(tmp_path: Path) -> None:
    content = write_wav(tmp_path / "a.wav", INTEGERS.tobytes()).read_bytes()
    reader, writer = os.pipe()
    try:
        os.write(writer, content)  # fits into the pipe
        os.close(writer)
        source = open_source(f"/dev/fd/{reader}")
    finally:
        os.close(reader)
    for _ in range(2):
        assert np.array_equal(np.concatenate([*source.blocks()]), FLOATS)


@pytest.mark.parametrize(("make", "message"), ANY_READER.values(), ids=ANY_READER)
def test_bad_audio_is_one_line(make: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    require_one_line(make, message, tmp_path / "a.wav")


@needs_av
@pytest.mark.parametrize(("make", "message"), PYAV.values(), ids=PYAV)
def test_a_file_without_sound_is_one_line(make: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    require_one_line(make, message, tmp_path / "a.bin")


@pytest.mark.parametrize(("make", "message"), WITHOUT_PYAV.values(), ids=WITHOUT_PYAV)
def test_other_files_without_pyav_name_the_extra(
    make: Callable[[Path], Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audio_file, "find_spec", lambda name: None)
    require_one_line(make, message, tmp_path / "a.wav")


def flac(rate: int, samples: int, channels: int = 1) -> bytes:
    """Return silence, whose frames of up to 65,535 samples have a few bytes each."""
    import av

    layout = {1: "mono", 8: "7.1"}[channels]
    file = io.BytesIO()
    with av.open(file, "w", format="flac") as container:
        stream = container.add_stream("flac", rate=rate, options={"strict": "experimental"})
        stream.layout = layout
        stream.codec_context.options |= {"frame_size": "65535"}
        for start in range(0, samples, 4096):
            size = min(4096, samples - start)
            frame = av.AudioFrame.from_ndarray(np.zeros((1, size * channels), np.int16), "s16", layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def matroska(rate: int, samples: int, per_packet: int) -> bytes:
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        stream = container.add_stream("pcm_u8", rate=rate)
        stream.layout = "mono"
        for start in range(0, samples, per_packet):
            frame = av.AudioFrame.from_ndarray(np.full((1, per_packet), 128, np.uint8), "u8", "mono")
            frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def with_video(format: str) -> bytes:
    """Return sound and large pictures, which take few bytes."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=format) as container:
        video = container.add_stream("mpeg4", rate=10, width=2048, height=2048, pix_fmt="yuv420p")
        audio = container.add_stream("aac", rate=16000)
        audio.layout = "mono"
        container.mux(video.encode(av.VideoFrame(2048, 2048, "yuv420p")))
        container.mux(video.encode(None))
        for start in range(0, 16000, 1000):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1000), np.int16), "s16", "mono")
            frame.sample_rate, frame.pts, frame.time_base = 16000, start, Fraction(1, 16000)
            container.mux(audio.encode(frame))
        container.mux(audio.encode(None))
    return file.getvalue()


@needs_av
@pytest.mark.parametrize("format", ["mov", "matroska"])
def test_pictures_of_a_video_are_not_decoded(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of H.264 with 16,000 lines takes 600 MB."""
    import av

    content = with_video(format)
    decoded: list[Any] = []
    open_container = av.open

    def opened(*args: Any, **options: Any) -> Any:
        container = open_container(*args, **options)
        decoded.extend(stream for stream in container.streams if getattr(stream.codec_context, "pix_fmt", None))
        return container

    monkeypatch.setattr(av, "open", opened)
    assert next(AudioFile(content, "a").blocks()).size > 15000
    assert not decoded


@needs_av
def test_subtitles_are_not_read() -> None:
    """FFmpeg holds all lines in memory, 1 GB for 25 MB of LRC."""
    with pytest.raises(InputError, match="not a readable audio file"):
        next(AudioFile(b"[00:01.00]a\n" * 999, "a").blocks())


@needs_av
def test_all_formats_that_are_allowed_exist() -> None:
    import av

    names = {name for names in av.formats_available for name in names.split(",")}
    assert set(tracks.FORMATS) <= names | {"bonk", "osq", "qoa", "rka", "wavarc"}  # of later versions


def frames(content: bytes) -> bytes:
    """Return a FLAC file without its headers, so that its frames can follow those of another file."""
    return content[content.index(b"\xff\xf8") :]


COSTLY: dict[str, tuple[Callable[[Path], Any], str]] = {
    "FLAC, 999 Hz": (lambda path: written(flac(999, 9999))(path), "sampled at 999 Hz .expected 1000 to 384000"),
    "FLAC, 8 channels": (lambda path: written(flac(655350, 9999, 8))(path), "sampled at 655350 Hz"),
    "FLAC, 8 fast channels": (lambda path: written(flac(192080, 9999, 8))(path), "8 channels at 192080 Hz .at most"),
    "WAV, 2 GHz": (lambda path: write_wav(path, bytes(99_999), rate=2**31 - 1), "sampled at 2147483647 Hz"),
    "WAV, 255 channels": (lambda path: write_wav(path, bytes(99_960), channels=255), "255 channels at 16000 Hz"),
    "another rate later": (
        lambda path: written(flac(16000, 16000) + frames(flac(18, 70000)))(path),
        "sampled at 18 Hz",
    ),
    "a long frame": (lambda path: written(matroska(8000, 500_000, 500_000))(path), "a frame of 62 seconds"),
    "a large frame": (lambda path: written(matroska(96000, 5_000_000, 5_000_000))(path), "a frame of 52 seconds"),
    "short packets": (lambda path: written(matroska(48000, 60_000, 6))(path), "too little sound .* in the first 13334"),
    "many changes": (
        lambda path: written(flac(16000, 4608) + (frames(flac(8000, 16)) + frames(flac(16000, 16))) * 400)(path),
        "too little sound",
    ),
}


@needs_av
@pytest.mark.parametrize(("make", "message"), COSTLY.values(), ids=COSTLY)
def test_a_file_that_costs_more_than_its_sound_is_one_line(
    make: Callable[[Path], Any], message: str, tmp_path: Path
) -> None:
    require_one_line(make, message, tmp_path / "a")


@needs_av
@pytest.mark.parametrize(("rate", "channels"), [(1000, 1), (384000, 1), (192000, 8)])
def test_unusual_rates_are_read(rate: int, channels: int, tmp_path: Path) -> None:
    path = tmp_path / "a.flac"
    path.write_bytes(flac(rate, 2 * rate, channels))
    assert abs(samples_of(path).size - 32000) < 100
