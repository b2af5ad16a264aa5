"""The tests. The package comes first here, so that it finds a fast BLAS before any test imports MLX."""

import speculative_decoding  # noqa: F401
