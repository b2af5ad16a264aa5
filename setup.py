"""What is compiled when the package is installed; all else stands in pyproject.toml."""

import sys

from setuptools import Extension, setup

# Optional: where nothing can be compiled the package installs without it, and blas.py looks for another library.
sgemm = Extension(
    "speculative_decoding.backend._sgemm",
    ["speculative_decoding/backend/sgemm.c"],
    depends=["speculative_decoding/backend/sgemm_tiles.h"],
    extra_compile_args=["-O3", "-std=gnu11", "-pthread"],
    extra_link_args=["-pthread"],
    optional=True,
)

setup(ext_modules=[sgemm] if sys.platform.startswith("linux") else [])
