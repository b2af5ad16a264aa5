"""Connects the processes started by `mlx.launch`.

`mx.distributed` transfers arrays, but waits forever for a machine that has lost power, and occupies a core while
waiting. Rank 0 therefore also opens a TCP connection to every other rank, a `Channel`. This connection transfers JSON
messages, and both sides send heartbeats over it to detect lost ranks.
"""

from __future__ import annotations

import faulthandler
import hmac
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import Queue
from select import select
from selectors import EVENT_READ, DefaultSelector
from threading import Event, Lock, Thread
from typing import Any

import mlx.core as mx

from ..errors import InputError

HEARTBEAT_SECONDS = 5.0
CONNECT_SECONDS = 60.0
SECRET_BYTES = 16
JOIN_SECONDS = 90

OnLost = Callable[[int, int | None, str], None]  # rank, exit status if the peer sent one, and the reason


class Channel:
    """Connections to other ranks.

    Args:
        peers: Sockets keyed by rank: all other ranks on rank 0, and only rank 0 on the others.
        on_lost: Called in a separate thread when a peer leaves with a nonzero status. The status is None if the peer
            ended without `leave` or sent nothing for 20 seconds. The callback should end this process, because the main
            thread may be waiting for the peer's arrays.
    """

    def __init__(self, peers: Mapping[int, socket.socket], on_lost: OnLost) -> None:
        self._peers = peers
        self._on_lost = on_lost
        self._inbox: Queue[tuple[int, Any]] = Queue()
        self._sending = Lock()
        self._has_left = Event()
        Thread(target=self._send_heartbeats, daemon=True).start()
        for peer in peers.items():
            Thread(target=self._read, args=peer, daemon=True).start()

    def send(self, message: Any, rank: int | None = None) -> None:
        """Send a message to one peer, or to all. Objects are sent as dicts of their fields."""
        line = json.dumps(message, default=vars).encode() + b"\n"
        with self._sending:
            for each in self._peers if rank is None else [rank]:
                try:
                    self._peers[each].sendall(line)
                except OSError:
                    continue  # the thread that reads from this peer reports the loss

    def receive(self) -> tuple[int, Any]:
        """Wait for the next message. Returns the sender's rank and the message."""
        return self._inbox.get()

    def received(self) -> list[tuple[int, Any]]:
        """Return the messages that have arrived."""
        return [self._inbox.get() for _ in range(self._inbox.qsize())]

    def leave(self, status: int, why: str = "") -> None:
        """Announce to the peers that this process ends with this exit status."""
        self._has_left.set()
        self.send({"leaves": status, "why": why})

    def _send_heartbeats(self) -> None:
        while not self._has_left.wait(HEARTBEAT_SECONDS):
            self.send(None)

    def _read(self, rank: int, peer: socket.socket) -> None:
        missed = 0
        rest = b""
        while True:
            data = receive_or_end(peer, 1 << 16) if select([peer], [], [], HEARTBEAT_SECONDS)[0] else None
            missed = missed + 1 if data is None else 0
            # Count heartbeats instead of seconds, so that the connection survives if all machines sleep.
            if data == b"" or missed == 4:
                return None if self._has_left.is_set() else self._on_lost(rank, None, "")
            *lines, rest = (rest + (data or b"")).split(b"\n")
            for message in map(json.loads, lines):
                if isinstance(message, dict) and message.get("leaves") and not self._has_left.is_set():
                    return self._on_lost(rank, message["leaves"], message["why"])
                if message is not None:
                    self._inbox.put((rank, message))


def accept(server: socket.socket, count: int, secret: bytes) -> dict[int, socket.socket]:
    """Accept `count` peers that send the secret and their rank, and close other connections. Raises OSError.

    All connections are read concurrently, so a client that sends nothing does not delay the peers.
    """
    peers: dict[int, socket.socket] = {}
    deadline = time.monotonic() + CONNECT_SECONDS
    with server, DefaultSelector() as connections:
        connections.register(server, EVENT_READ)
        while len(peers) < count:
            if not (ready := connections.select(deadline - time.monotonic())):
                raise TimeoutError("timed out")
            for key, _ in ready:
                if key.fileobj is server:
                    connections.register(server.accept()[0], EVENT_READ, bytearray())
                    continue
                peer: Any = key.fileobj
                greeting: bytearray = key.data
                received = receive_or_end(peer, len(secret) + 2 - len(greeting))
                greeting += received
                if received and len(greeting) < len(secret) + 2:
                    continue
                connections.unregister(peer)
                if hmac.compare_digest(greeting[:-2], secret):
                    peers[int.from_bytes(greeting[-2:], "big")] = configured(peer)
                else:
                    peer.close()
        for key in connections.get_map().values():
            key.fileobj.close()  # type: ignore[union-attr]
    return peers


def receive_or_end(peer: socket.socket, size: int) -> bytes:
    """Receive up to `size` bytes. Returns b"" if the connection has ended."""
    try:
        return peer.recv(size)
    except OSError:
        return b""


def connect(address: str, port: int, secret: bytes, rank: int) -> dict[int, socket.socket]:
    """Connect to rank 0. Raises OSError."""
    peer = socket.create_connection((address, port), CONNECT_SECONDS)
    peer.sendall(secret + rank.to_bytes(2, "big"))
    return {0: configured(peer)}


def configured(peer: socket.socket) -> socket.socket:
    """Disable the socket's timeout and Nagle's algorithm, and return the socket."""
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


@dataclass(frozen=True)
class ProcessGroup:
    """All processes of one command.

    Args:
        group: MLX's group, for collective operations on arrays.
        rank: This process's number; rank 0 reads the input and prints the output.
        size: The number of processes.
        channel: Connections between rank 0 and each other rank.
    """

    group: mx.distributed.Group
    rank: int
    size: int
    channel: Channel

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def join_process_group(on_lost: OnLost) -> ProcessGroup:
    """Connect to the other processes.

    If they do not start within `JOIN_SECONDS`, this process exits with status 1.

    Args:
        on_lost: See `Channel`.

    Raises:
        InputError: The other processes cannot be reached.
    """
    with open(os.devnull, "w") as devnull:
        # MLX waits forever while holding the GIL, so no other thread could end the process.
        faulthandler.dump_traceback_later(JOIN_SECONDS, exit=True, file=devnull)
        try:
            group = mx.distributed.init(strict=True)
            if group.size() == 1:
                raise RuntimeError("there is only this process")
            return ProcessGroup(group, group.rank(), group.size(), open_channel(group, on_lost))
        except (RuntimeError, ValueError, OSError) as error:
            raise InputError(
                f"mlx.launch: the other processes cannot be reached ({error}); see docs/distributed.md, or start "
                "the command without mlx.launch"
            ) from error
        finally:
            faulthandler.cancel_dump_traceback_later()


def open_channel(group: mx.distributed.Group, on_lost: OnLost) -> Channel:
    """Connect rank 0 to each other rank. Rank 0's port and a random secret are distributed as a sum over the ranks."""
    address = first_address()
    rank = group.rank()
    server = socket.create_server((address, 0)) if rank == 0 else None
    if server is None:
        numbers = mx.zeros(1 + SECRET_BYTES, mx.int32)
    else:
        numbers = mx.array([server.getsockname()[1], *secrets.token_bytes(SECRET_BYTES)])
    found: list[int] = mx.distributed.all_sum(numbers, group=group).tolist()  # type: ignore[assignment]
    port = found[0]
    secret = bytes(found[1:])
    if server is None:
        return Channel(connect(address, port, secret, rank), on_lost)
    return Channel(accept(server, group.size() - 1, secret), on_lost)


def first_address() -> str:
    """Return the address of rank 0's machine that `mlx.launch` passed to the backend. Raises ValueError."""
    if path := os.environ.get("MLX_HOSTFILE"):
        with open(path, encoding="utf-8") as file:
            return str(json.load(file)[0][0]).rpartition(":")[0]
    for name in ("MLX_JACCL_COORDINATOR", "NCCL_HOST_IP"):
        if name in os.environ:
            return os.environ[name].partition(":")[0]
    raise ValueError("the backend must be ring or jaccl")
