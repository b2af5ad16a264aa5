"""Decodes many items in one batch: prompts, recordings, lines of a file or parts of a text."""
