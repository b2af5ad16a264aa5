"""The benchmarks: `python -m benchmarks`, and further commands in drafts, record, serve and simulated_devices."""

import speculative_decoding  # noqa: F401  # before MLX, because it loads a fast BLAS
