"""Compares decoding modes: which modes there are, and where two outputs differ."""
