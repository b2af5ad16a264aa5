"""Whole documents: split into pieces, decoded together, and put back where they stood. See docs/documents.md."""

from .options import DocumentOptions

__all__ = ["DocumentOptions"]
