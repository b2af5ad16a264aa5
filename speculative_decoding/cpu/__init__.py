"""Makes MLX's CPU wheel for Linux fast enough for speculative decoding; see README.md for details.

The rest of the package calls the two functions below, guarded by `sys.platform`, and models/backend.py uses the other
modules. The package also works without this folder. Because it is imported first, it imports only errors.py, version.py
and cache_folder.py from the package.
"""

from __future__ import annotations

from . import blas


def prepare() -> None:
    """Load a fast BLAS and set a private folder for MLX's compiled kernels. Call before anything imports MLX."""
    blas.load_fast_blas()

    from . import kernels  # imports MLX

    kernels.use_private_folder()


def check() -> None:
    """Warn once about anything that makes MLX slow here. Call before a model is used."""
    from . import kernels

    kernels.disable_fusion_without_compiler()
    blas.warn_about_problems()
