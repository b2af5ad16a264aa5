"""Whether this process was started with others, and how they reach each other."""

from __future__ import annotations

import faulthandler
import json
import os
import secrets
import socket
from dataclasses import dataclass

import mlx.core as mx

from ..errors import InputError
from .channel import FIRST, Channel, Lost, accept, connect

STARTED_TOGETHER = ("MLX_RANK", "OMPI_COMM_WORLD_RANK")  # mlx.launch sets the first, and MPI the other
SECRET_BYTES = 16
JOIN_SECONDS = 90


@dataclass(frozen=True)
class ProcessGroup:
    """This process among those that were started with it. channel: between the first and each of the others."""

    group: mx.distributed.Group
    rank: int
    size: int
    channel: Channel

    @property
    def is_first(self) -> bool:
        return self.rank == FIRST


def launched_rank() -> int | None:
    """This process's rank, as the environment has it; None for one that was started alone."""
    found = [os.environ[name] for name in STARTED_TOGETHER if name in os.environ]
    return int(found[0]) if found and found[0].isdecimal() else None


def join_process_group(lost: Lost) -> ProcessGroup:
    """lost: see `Channel`. Raises `InputError` where the others cannot be reached; where they do not come within
    `JOIN_SECONDS` the process ends, with status 1.
    """
    with open(os.devnull, "w") as nowhere:
        # MLX waits for ever, and lets no other thread of Python run meanwhile: only this one ends the process then.
        faulthandler.dump_traceback_later(JOIN_SECONDS, exit=True, file=nowhere)
        try:
            group = mx.distributed.init(strict=True)
            if group.size() == 1:
                raise RuntimeError("there is only this one")
            return ProcessGroup(group, group.rank(), group.size(), open_channel(group, lost))
        except (RuntimeError, ValueError, OSError) as error:
            raise InputError(
                "the environment is that of mlx.launch, but the other processes cannot be reached "
                f"({error}); see docs/several-machines.md, or start without mlx.launch"
            ) from error
        finally:
            faulthandler.cancel_dump_traceback_later()


def open_channel(group: mx.distributed.Group, lost: Lost) -> Channel:
    address, rank, others = first_address(), group.rank(), group.size() - 1
    server = socket.create_server((address, 0)) if rank == FIRST else None
    port = 0 if server is None else server.getsockname()[1]
    numbers = mx.array([port, *(secrets.token_bytes(SECRET_BYTES) if server else bytes(SECRET_BYTES))])
    found: list[int] = mx.distributed.all_sum(numbers, group=group).tolist()  # type: ignore[assignment]
    port, secret = found[0], bytes(found[1:])
    return Channel(connect(address, port, secret, rank) if server is None else accept(server, others, secret), lost)


def first_address() -> str:
    """Of the first process's machine, as `mlx.launch` gave it to the backend. Raises ValueError."""
    if path := os.environ.get("MLX_HOSTFILE"):
        with open(path, encoding="utf-8") as file:
            return str(json.load(file)[FIRST][0]).rpartition(":")[0]
    for name in ("MLX_JACCL_COORDINATOR", "NCCL_HOST_IP"):
        if name in os.environ:
            return os.environ[name].partition(":")[0]
    raise ValueError("choose the backend ring or jaccl")
