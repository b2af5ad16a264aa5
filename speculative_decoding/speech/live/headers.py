"""Detects the format of a recording from its first bytes, so that a file is not decoded as raw samples.

FFmpeg's probes are not suitable, because they report some format, with a low score, for most noise.
"""

from __future__ import annotations

from collections.abc import Callable

MARKS = {  # format -> offsets and bytes, from the format's specification
    "a WAV file": ((0, b"RIFF"), (0, b"RIFX"), (0, b"RF64"), (0, b"riff.\x91\xcf\x11")),
    "Ogg": ((0, b"OggS"),),
    "Matroska or WebM": ((0, b"\x1aE\xdf\xa3"),),
    "MP4": ((4, b"ftyp"), (4, b"styp"), (4, b"moov")),
    "MP3 or AAC": ((0, b"ID3"),),
    "FLAC": ((0, b"fLaC"),),
    "AIFF": ((0, b"FORM"),),
    "AU": ((0, b".snd"),),
    "AMR": ((0, b"#!AMR"),),
    "CAF": ((0, b"caff"),),
    "WMA": ((0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11"),),
    "FLV": ((0, b"FLV\x01"),),
}
MARK_BYTES = 12  # long enough for every mark
HEADER_BYTES = 8
HEADERS = 3  # number in a row; a single header may occur in raw samples
MPEG_HALVINGS = {3: 0, 2: 1, 0: 2}  # of the sample rate, by the version's bits (versions 1, 2 and 2.5)
MPEG_RATES = (44100, 48000, 32000)
MPEG_1_KBITS = {  # by layer
    3: (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
}
MPEG_2_KBITS = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
TS_PACKET = 188


def format_of(begin: bytes) -> str | None:
    """Return the format of a recording, such as "Ogg"; "" for raw samples; None if more bytes are needed."""
    for name, marks in MARKS.items():
        if any(begin.startswith(mark, offset) for offset, mark in marks):
            return name
    if len(begin) < MARK_BYTES:
        return None
    found = {name: has_frames(begin, size_of) for name, size_of in FRAMED.items()}
    return next((name for name, is_so in found.items() if is_so), None if None in found.values() else "")


def has_frames(begin: bytes, size_of: Callable[[bytes], int]) -> bool | None:
    """Whether bytes consist of consecutive frames, each with a header; None if more bytes are needed.

    size_of: Returns the size of the frame with a given header, or 0 if the bytes are not a header.
    """
    position = 0
    for _ in range(HEADERS):
        header = begin[position : position + HEADER_BYTES]
        if len(header) < HEADER_BYTES:
            return None
        if not (size := size_of(header)):
            return False
        position += size
    return True


def mpeg_frame(header: bytes) -> int:
    """Return the size of an MPEG audio frame, layer 2 or 3 (ISO 11172-3, 13818-3); see `has_frames`."""
    version, layer = header[1] >> 3 & 3, 4 - (header[1] >> 1 & 3)
    index, rate = (header[2] >> 4) - 1, header[2] >> 2 & 3
    is_sync = header[0] == 0xFF and header[1] >> 5 == 7
    if not is_sync or version not in MPEG_HALVINGS or layer not in MPEG_1_KBITS or not 0 <= index < 14 or rate == 3:
        return 0
    kbits = (MPEG_1_KBITS[layer] if version == 3 else MPEG_2_KBITS)[index]
    samples = 576 if layer == 3 and version != 3 else 1152
    padding = header[2] >> 1 & 1
    return samples // 8 * kbits * 1000 // (MPEG_RATES[rate] >> MPEG_HALVINGS[version]) + padding


def adts_frame(header: bytes) -> int:
    """Return the size of an AAC frame with an ADTS header (ISO 13818-7); see `has_frames`."""
    if header[0] != 0xFF or header[1] & 0xF6 != 0xF0 or header[2] >> 2 & 15 > 12:
        return 0
    size = (header[3] & 3) << 11 | header[4] << 3 | header[5] >> 5
    return size if size >= HEADER_BYTES else 0


def ts_packet(header: bytes) -> int:
    """Return the size of an MPEG transport stream packet (ISO 13818-1); see `has_frames`."""
    has_content = header[3] >> 4 & 3 != 0  # false for a constant raw signal
    return TS_PACKET if header[0] == 0x47 and has_content else 0


FRAMED = {"MP3": mpeg_frame, "AAC": adts_frame, "an MPEG transport stream": ts_packet}
