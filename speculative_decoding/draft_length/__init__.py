"""Determines how many tokens to draft in a round."""

from .adaptive import AdaptiveLength
from .base import DraftLength, DraftOutcome, FixedLength

__all__ = ["AdaptiveLength", "DraftLength", "DraftOutcome", "FixedLength"]
