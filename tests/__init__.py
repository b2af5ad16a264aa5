"""The tests. The package comes first here, so that it finds a fast BLAS before any test imports MLX."""

import os

# Read when the BLAS is loaded. The products are small, and a second thread that waits for one takes the core on which
# this process, or one that it started, does everything else. A value that is set already stays.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import speculative_decoding  # noqa: F401
