"""Decodes many items in one batch: prompts, recordings, the lines of a file, the parts of a text."""
