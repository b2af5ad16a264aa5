"""What clients send to open and use a WebSocket: valid and invalid upgrades, and broken frames."""

from __future__ import annotations

import struct

from websockets.frames import Frame, Opcode

KEY = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
UPGRADE = b"GET /echo HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
UPGRADE += b"Sec-WebSocket-Version: 13\r\n" + KEY  # without the empty line, so that headers can follow


def frame(data: bytes, opcode: int = Opcode.TEXT, *, fin: bool = True) -> bytes:
    """Return a frame of a client."""
    return Frame(Opcode(opcode), data, fin=fin).serialize(mask=True)


# The server answers them like requests that are no upgrades
INVALID = {
    "another path": UPGRADE.replace(b"/echo", b"/health"),
    "another method": UPGRADE.replace(b"GET", b"POST"),
    "no key": UPGRADE.replace(KEY, b""),
    "a short key": UPGRADE.replace(b"AAAA==", b"=="),
    "two keys": UPGRADE + KEY,
    "no version": UPGRADE.replace(b"Sec-WebSocket-Version: 13\r\n", b""),
    "another version": UPGRADE.replace(b"13", b"8"),
    "two versions": UPGRADE + b"Sec-WebSocket-Version: 8\r\n",
    "another protocol": UPGRADE.replace(b"websocket", b"h2c"),
    "a body": UPGRADE + b"Content-Length: 1\r\n",
    "a long line": UPGRADE + b"X: " + b"a" * 9000 + b"\r\n",
    "many headers": UPGRADE + b"X: a\r\n" * 130,
    "an invalid subprotocol": UPGRADE + b"Sec-WebSocket-Protocol: a;b\r\n",
}


HEADER = struct.Struct("!BBQ")  # of a long frame
# What a client sends, and the code of the close frame that it gets
BROKEN = {
    "a frame without a mask": (b"\x81\x01a", 1002),
    "a compressed frame": (b"\xc1" + frame(b"a")[1:], 1002),
    "an unknown kind": (b"\x83" + frame(b"a")[1:], 1002),
    "a continuation of nothing": (frame(b"a", Opcode.CONT), 1002),
    "a message within a message": (frame(b"a", fin=False) + frame(b"a"), 1002),
    "a control frame in fragments": (b"\x09\x80" + b"\0" * 4, 1002),
    "a long control frame": (HEADER.pack(0x89, 0xFF, 126) + b"\0" * 130, 1002),
    "a frame of 8 EiB": (HEADER.pack(0x81, 0xFF, 1 << 63) + b"\0" * 4, 1009),
    "a frame above the limit": (HEADER.pack(0x81, 0xFF, 5000) + b"\0" * 4, 1009),
    "fragments above the limit": (frame(b"a" * 2000, fin=False) + frame(b"a" * 2000, Opcode.CONT), 1009),
    "empty fragments without end": (frame(b"", fin=False) + frame(b"", Opcode.CONT, fin=False) * 2000, 1009),
    "text that is not UTF-8": (frame(b"\xff"), 1007),
    "such a text, then a close frame": (frame(b"\xff") + frame(struct.pack("!H", 1000), Opcode.CLOSE), 1000),
    "a close frame of one byte": (frame(b"a", Opcode.CLOSE), 1002),
    "a close frame with a reserved code": (frame(struct.pack("!H", 1005), Opcode.CLOSE), 1002),
}
