"""Connects the processes started by `mlx.launch`."""

from __future__ import annotations

import faulthandler
import json
import os
import secrets
import socket
from dataclasses import dataclass

import mlx.core as mx

from ..errors import InputError
from .channel import Channel, OnLost, accept, connect

SECRET_BYTES = 16
JOIN_SECONDS = 90


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
    """Connect rank 0 to each other rank. A sum over the ranks distributes its port and a random secret."""
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
