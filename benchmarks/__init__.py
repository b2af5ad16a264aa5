"""Benchmarks: `python -m benchmarks`, and drafts, first_run, host_time, record, serve and simulated_devices."""

import speculative_decoding  # noqa: F401  # import before MLX, because it loads a fast BLAS
