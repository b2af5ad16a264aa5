"""Opens a media file with PyAV, and chooses the same audio track as FFmpeg's command line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import cache
from typing import TYPE_CHECKING, BinaryIO

from ..errors import InputError, Message, note

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer

FORMATS = (  # FFmpeg's names. Excluded: playlists, subtitles, pictures, scripts, and raw samples of unknown rate
    *("3g2", "3gp", "aac", "ac3", "ac4", "act", "adx", "aea", "aiff", "amr", "ape", "aptx", "asf", "ast", "au"),
    *("avi", "avr", "bonk", "brstm", "caf", "dsf", "dss", "dts", "dtshd", "dv", "eac3", "epaf", "flac", "flv", "g722"),
    *("g726", "g729", "gsm", "gxf", "iff", "ilbc", "ircam", "kux", "live_flv", "loas", "m4a", "matroska", "mlp", "mov"),
    *("mp3", "mp4", "mpc", "mpc8", "mpeg", "mpegts", "mxf", "nistsphere", "nut", "ogg", "oma", "osq", "paf", "pvf"),
    *("qcp", "qoa", "rka", "rm", "rso", "sbc", "sds", "shn", "sln", "smjpeg", "sol", "sox", "swf", "tak", "truehd"),
    *("tta", "voc", "vqf", "w64", "wav", "wavarc", "webm", "wsd", "wtv", "wv", "wve", "xa", "xwma"),
)
PROBED_BYTES = 1 << 16  # FFmpeg keeps the packets in memory that it probes; even a tiny packet takes 8 KB
MORE_PROBED_BYTES = 5_000_000  # FFmpeg's default, used if PROBED_BYTES is not enough
MORE_PROBED_PACKETS = 5000
NO_STREAM = -1
LATE_STREAMS = ("mpeg", "flv", "live_flv")  # formats without a stream list: streams may begin after the first probe


def open_media(file: BinaryIO) -> tuple[InputContainer, set[int]]:
    """Open a media file. The caller closes the container.

    To find the streams, the first 64 KiB are read. If these are not enough, up to 5 MB are read, as FFmpeg does, unless
    the file has so many packets that they would take too much memory.

    Returns: The container, and the indices of the streams with packets in the first 5 MB; empty if 64 KiB were enough.
    """
    container = probed(file, PROBED_BYTES)
    if not may_lack_audio(container):
        return container, set()
    counts = packets_of(container, file)
    container.close()  # it cannot be reused, because its first packets have been read
    is_large = counts.total() > MORE_PROBED_PACKETS
    return probed(file, PROBED_BYTES if is_large else MORE_PROBED_BYTES), {*counts}


def probed(file: BinaryIO, size: int) -> InputContainer:
    """Open a media file, and read at most `size` bytes to find its streams."""
    import av

    file.seek(0)
    # Without these limits, a playlist could open other files and URLs. Decoding 25 MB of subtitles would take 1 GB of
    # memory, and decoding a picture in a video 600 MB.
    options = {
        "protocol_whitelist": "none",
        "format_whitelist": ",".join(FORMATS),
        "codec_whitelist": audio_decoders(),
        "probesize": str(size),
    }
    return av.open(file, "r", metadata_errors="replace", container_options=options)


@cache
def audio_decoders() -> str:
    """Return the names of all audio decoders, separated by commas."""
    import av

    readable = [name for name in sorted(av.codecs_available) if can_decode_audio(name)]
    return ",".join(readable)


def can_decode_audio(name: str) -> bool:
    import av

    try:
        return av.Codec(name, "r").type == "audio"
    except ValueError:  # the name of an encoder
        return False


def may_lack_audio(container: InputContainer) -> bool:
    """Whether more of the file must be read to find all tracks and choose among them."""
    tracks = container.streams.audio
    return len(tracks) != 1 or not channels_of(tracks[0]) or container.format.name in LATE_STREAMS


def packets_of(container: InputContainer, file: BinaryIO) -> Counter[int]:
    """Count each stream's packets in the first 5 MB of a file. Stops after `MORE_PROBED_PACKETS + 1` packets."""
    import av

    counts = Counter[int]()
    while True:
        try:
            for packet in container.demux():
                counts[packet.stream_index if packet.size else NO_STREAM] += 1
                if file.tell() >= MORE_PROBED_BYTES or counts.total() > MORE_PROBED_PACKETS:
                    return counts
            return counts
        except IndexError:  # this packet's stream is new to PyAV
            counts[NO_STREAM] += 1
        except (av.FFmpegError, OSError):  # reported when the packets are decoded
            return counts


def channels_of(track: AudioStream) -> int:
    """Return a track's number of channels; 0 if it is unknown, or if PyAV cannot decode the track."""
    return 0 if track.codec_context is None else track.codec_context.layout.nb_channels


def audio_track(
    container: InputContainer, name: str, number: int | None, with_packets: Collection[int] = ()
) -> AudioStream:
    """Return an audio track. If a file has several and `number` is None, a note names the track that was chosen.

    number: The track's number, counted from 1. None: FFmpeg's choice (`map_auto_audio` in ffmpeg_mux_init.c), which
        prefers tracks with packets, then default tracks, then those with the most channels, then the first track.
    with_packets: The indices of streams that have packets.

    Raises:
        InputError: There is no such track, or PyAV cannot decode it.
    """
    from av.stream import Disposition

    tracks = container.streams.audio
    if not tracks:
        raise InputError(f"{name}: contains no audio; name a file with sound")
    if number is None:
        track = max(
            tracks,
            key=lambda each: (
                each.codec_context is not None,
                each.index in with_packets,
                bool(each.disposition & Disposition.default),
                channels_of(each),
            ),
        )
    elif number <= len(tracks):
        track = tracks[number - 1]
    else:
        raise no_track(name, number, [described(each, i) for i, each in enumerate(tracks, 1)])
    if track.codec_context is None:
        raise InputError(f"{name}: PyAV cannot decode its audio; convert it to WAV or FLAC")
    if number is None and len(tracks) > 1:
        all_tracks = "; ".join(described(each, i) for i, each in enumerate(tracks, 1))
        chosen = f"{name}: track {tracks.index(track) + 1} of {len(tracks)} is transcribed ({all_tracks})"
        note(Message("{chosen}; choose another with {audio_track}", chosen=chosen))
    return track


def described(track: AudioStream, number: int) -> str:
    """Return a track's number, title, language and channels, such as "2: Commentary, eng, mono"."""
    channels = channels_of(track)
    layout = {0: "", 1: "mono", 2: "stereo"}.get(channels, f"{channels} channels")
    parts = (track.metadata.get("title"), track.language, layout)
    return f"{number}: {', '.join(each for each in parts if each and each != 'und')}"


def no_track(name: str, number: int, tracks: Sequence[str]) -> InputError:
    """Return the error for a track number that does not exist. tracks: descriptions of the existing tracks."""
    found = f"{len(tracks)} audio tracks" if len(tracks) != 1 else "one audio track"
    return InputError(f"{name} has {found}, and no track {number}", "audio_track", f"choose one ({'; '.join(tracks)})")
