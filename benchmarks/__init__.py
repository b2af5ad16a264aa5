"""Benchmarks: `python -m benchmarks`, and the commands in drafts, record, serve and simulated_devices."""

import speculative_decoding  # noqa: F401  # import before MLX, because it loads a fast BLAS
