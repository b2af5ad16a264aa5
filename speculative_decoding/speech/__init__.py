"""Audio to text: audio files, log-mel frames, the windows of long recordings, and output formats."""
