"""What `python -m benchmarks` is made of. One file per concept; only `__main__` prints."""

import speculative_decoding  # noqa: F401 - before mlx, for which it chooses a fast BLAS
