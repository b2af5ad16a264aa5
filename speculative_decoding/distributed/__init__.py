"""Processes that `mlx.launch` started together, mostly one on each machine."""

from .channel import Channel
from .process_group import JOIN_SECONDS, ProcessGroup, join_process_group, launched_rank

__all__ = ["JOIN_SECONDS", "Channel", "ProcessGroup", "join_process_group", "launched_rank"]
