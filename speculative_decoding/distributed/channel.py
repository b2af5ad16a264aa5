"""Lines from the first process to the others and back, and the news that one of them is gone.

`mx.distributed` moves arrays, but waits for ever for a machine that lost its power; and who has nothing to compute
should wait without using a processor. So the first process has a TCP connection with each of the others, on which
something comes every few seconds. Knows nothing of arrays.
"""

from __future__ import annotations

import hmac
import json
import socket
from collections.abc import Callable, Mapping
from queue import Queue
from select import select
from threading import Event, Lock, Thread
from typing import Any

BEAT_SECONDS = 5.0
MOST_SILENT = 4  # beats; counted, so that machines which slept together find each other again
CONNECT_SECONDS = 60.0
FIRST = 0

Lost = Callable[[int, int | None, str], None]  # a rank, its exit status, if it left, and what it said of that


class Channel:
    """peers: by rank, all others for the first process, and the first for each of them. lost: is called, in a thread of
    its own, when a peer ended without `leave` or was silent for 20 seconds (then its status is None), and when it left
    with another status than 0. It should end this process, for the main thread may wait for the peer's numbers.
    """

    def __init__(self, peers: Mapping[int, socket.socket], lost: Lost) -> None:
        self._peers, self._lost = peers, lost
        self._inbox: Queue[tuple[int, Any]] = Queue()
        self._sending, self._is_left = Lock(), Event()
        Thread(target=self._beat, daemon=True).start()
        for peer in peers.items():
            Thread(target=self._read, args=peer, daemon=True).start()

    def send(self, message: Any, rank: int | None = None) -> None:
        """To that peer, or to all; what JSON has, and objects as their fields."""
        line = json.dumps(message, default=vars).encode() + b"\n"
        with self._sending:
            for each in self._peers if rank is None else [rank]:
                try:
                    self._peers[each].sendall(line)
                except OSError:
                    continue  # its reader has noticed, or soon will

    def receive(self) -> tuple[int, Any]:
        """The next message and whose it is; waits."""
        return self._inbox.get()

    def received(self) -> list[tuple[int, Any]]:
        """All that are here."""
        return [self._inbox.get() for _ in range(self._inbox.qsize())]

    def leave(self, status: int, why: str = "") -> None:
        """Tell the peers that this process ends, and with which exit status."""
        self._is_left.set()
        self.send({"leaves": status, "why": why})

    def _beat(self) -> None:
        while not self._is_left.wait(BEAT_SECONDS):
            self.send(None)

    def _read(self, rank: int, peer: socket.socket) -> None:
        silent, rest = 0, b""
        while True:
            try:
                data = peer.recv(1 << 16) if select([peer], [], [], BEAT_SECONDS)[0] else None
            except OSError:
                data = b""
            silent = silent + 1 if data is None else 0
            if data == b"" or silent == MOST_SILENT:
                return None if self._is_left.is_set() else self._lost(rank, None, "")
            *lines, rest = (rest + (data or b"")).split(b"\n")
            for message in map(json.loads, lines):
                if isinstance(message, dict) and message.get("leaves") and not self._is_left.is_set():
                    return self._lost(rank, message["leaves"], message["why"])
                if message is not None:
                    self._inbox.put((rank, message))


def accept(server: socket.socket, others: int, secret: bytes) -> dict[int, socket.socket]:
    """The others' connections, by rank; whoever does not know the secret is nobody. Raises OSError."""
    peers: dict[int, socket.socket] = {}
    server.settimeout(CONNECT_SECONDS)
    with server:
        while len(peers) < others:
            peer, _ = server.accept()
            peer.settimeout(CONNECT_SECONDS)
            said = peer.makefile("rb").read(len(secret) + 2)
            if hmac.compare_digest(said[:-2], secret):
                peers[int.from_bytes(said[-2:], "big")] = unhurried(peer)
    return peers


def connect(address: str, port: int, secret: bytes, rank: int) -> dict[int, socket.socket]:
    """The connection with the first process. Raises OSError."""
    peer = socket.create_connection((address, port), CONNECT_SECONDS)
    peer.sendall(secret + rank.to_bytes(2, "big"))
    return {FIRST: unhurried(peer)}


def unhurried(peer: socket.socket) -> socket.socket:
    """Sends each line at once, and waits as long as it takes."""
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer
