"""Transcribes audio. Its modules handle audio files, log-mel frames, windows of long recordings and output formats."""
