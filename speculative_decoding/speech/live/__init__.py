"""Transcribes speech while it arrives."""
