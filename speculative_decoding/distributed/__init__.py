"""Runs a command in several processes started by `mlx.launch`, usually one per machine.

Either each rank holds a shard of the model (`shard_model`), or each rank holds the whole model and decodes some of the
rows (`AllRanks`). Training divides its examples separately (training/training_group.py).
"""

from .data_parallel import AllRanks, serve_rows
from .process_group import JOIN_SECONDS, Channel, ProcessGroup
from .sharded_model import ShardedModel
from .sharding import shard_model

__all__ = [
    "JOIN_SECONDS",
    "AllRanks",
    "Channel",
    "ProcessGroup",
    "ShardedModel",
    "serve_rows",
    "shard_model",
]
