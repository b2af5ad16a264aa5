"""Benchmarks: `python -m benchmarks`, and others beside it: see docs/benchmarks.md."""

import speculative_decoding  # noqa: F401  # import before MLX, because it loads a fast BLAS
