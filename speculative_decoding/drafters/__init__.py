"""Drafters: where proposed tokens come from. A new one is a file here and a line below."""

from .base import Draft, Drafter, NoDrafter
from .model import ModelDrafter

__all__ = ["Draft", "Drafter", "ModelDrafter", "NoDrafter"]
