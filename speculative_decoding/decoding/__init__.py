"""Speculative decoding: draft, verify, accept, commit.

Reading order: `single_sequence` (the method on one screen), `round` (the same for a batch), `acceptance` (the rules),
`verification`, `batch`, `request`, `stats`, `results`, `text_streamer`, `prompt`; then `beam` and `beam_round`.
"""
