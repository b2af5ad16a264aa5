"""Runs a command in several processes started by `mlx.launch`, usually one per machine.

Each rank either holds a shard of the model (`shard_model`), or holds the whole model and decodes some of the rows
(`AllRanks`) or trains on some of the examples (`TrainingGroup`).
"""

from .channel import Channel
from .data_parallel import AllRanks, serve_rows
from .process_group import JOIN_SECONDS, ProcessGroup, launched_rank
from .sharded_model import ShardedModel, number_of_ranks
from .sharding import shard_model
from .training_group import SINGLE_PROCESS, TrainingGroup

__all__ = [
    "JOIN_SECONDS",
    "SINGLE_PROCESS",
    "AllRanks",
    "Channel",
    "ProcessGroup",
    "ShardedModel",
    "TrainingGroup",
    "launched_rank",
    "number_of_ranks",
    "serve_rows",
    "shard_model",
]
