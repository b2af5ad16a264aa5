"""Drafters: where proposed tokens come from. A new one is a file here and a line below."""

from .base import Draft, Drafter, NoDrafter
from .model import ModelDrafter
from .ngram import Match, NgramDrafter
from .ngram_store import NgramStore, Store, TextStore

__all__ = ["Draft", "Drafter", "Match", "ModelDrafter", "NgramDrafter", "NgramStore", "NoDrafter", "Store", "TextStore"]
