"""Decodes whole documents in pieces, and writes the outputs back in place. See docs/documents.md."""

from .options import DocumentOptions

__all__ = ["DocumentOptions"]
