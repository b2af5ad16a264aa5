"""The tests. `python -m pytest -m ""` includes the slow ones, which build wheels, or kill and resume processes.

tests/SUBPACKAGE has all tests of an optional subpackage, a folder of the package that can be left out, and can be
deleted with it. The other folders have the tests of the core, which import no optional subpackage.

The package is imported here, so that it loads a fast BLAS before a test imports MLX.
"""

import os
import signal
from pathlib import Path

# Fixed costs instead of measurements, so that no result depends on timings.
os.environ["SPECULATIVE_DECODING_CALIBRATION"] = str(Path(__file__).with_name("support") / "calibration.json")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when the BLAS is loaded

import speculative_decoding  # noqa: F401

# Programs started in the background ignore Ctrl-C, and so would the subprocesses of the tests.
signal.signal(signal.SIGINT, signal.default_int_handler)
