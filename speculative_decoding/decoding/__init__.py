"""Speculative decoding: draft, verify, accept, commit.

Reading order: `single_sequence` (the method on one screen), `round` (the same method for a batch), `acceptance` (the
rules), `results`, `request`, `text_streamer`, `prompt`.
"""
