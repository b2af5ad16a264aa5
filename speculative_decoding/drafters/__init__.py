"""Drafters: where proposed tokens come from. A new one is a file here and a line below."""

from __future__ import annotations

from .base import Draft, Drafter, NoDrafter
from .batch import Asked, BatchDrafter, SeparateDrafters
from .model import ModelDrafter

__all__ = ["Asked", "BatchDrafter", "Draft", "Drafter", "ModelDrafter", "NoDrafter", "SeparateDrafters"]
