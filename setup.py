"""Builds the optional extension for Linux; pyproject.toml has everything else."""

import sys
from pathlib import Path

from setuptools import Extension, setup

# Optional: without a C compiler the package installs without it, and cpu/blas.py looks for another library.
sgemm = Extension(
    "speculative_decoding.cpu._sgemm",
    ["speculative_decoding/cpu/sgemm.c"],
    depends=["speculative_decoding/cpu/sgemm_tiles.h"],
    extra_compile_args=["-O3", "-std=gnu11", "-pthread"],
    extra_link_args=["-pthread"],
    optional=True,
)

setup(ext_modules=[sgemm] if sys.platform.startswith("linux") and Path(sgemm.sources[0]).exists() else [])
