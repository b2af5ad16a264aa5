"""Decodes many items together: prompts, recordings, the lines of a file, the parts of a text."""
