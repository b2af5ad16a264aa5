"""Processes that `mlx.launch` started together, mostly one on each machine."""

from .channel import Channel
from .launch import Launched, launched, started_as

__all__ = ["Channel", "Launched", "launched", "started_as"]
