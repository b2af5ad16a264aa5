"""Transcribes audio: audio files, log-mel frames, the windows of long recordings, and output formats."""
