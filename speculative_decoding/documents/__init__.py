"""Whole documents: divided into pieces, decoded together, and written back in place. See docs/documents.md."""

from .options import DocumentOptions

__all__ = ["DocumentOptions"]
