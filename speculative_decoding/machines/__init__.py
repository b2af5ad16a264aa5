"""Processes that `mlx.launch` started together, mostly one on each machine."""

from .channel import Channel
from .launch import JOIN_SECONDS, Launched, launched, started_as

__all__ = ["JOIN_SECONDS", "Channel", "Launched", "launched", "started_as"]
