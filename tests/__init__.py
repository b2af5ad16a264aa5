"""The tests. `python -m pytest -m "not slow"` skips tests that build wheels, or kill and resume processes.

The package is imported here, so that it loads a fast BLAS before a test imports MLX.

Models are tiny, so tests spend most of their time passing small operations from Python's thread to MLX's thread. Each
test process therefore runs on one core with batch scheduling, which halves the time of a forward pass. Subprocesses
inherit this. Results do not depend on it.
"""

import os
import signal
import sys
from pathlib import Path

# Fixed costs instead of measurements, so that no result depends on timings.
os.environ["SPECULATIVE_DECODING_CALIBRATION"] = str(Path(__file__).with_name("support") / "calibration.json")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when the BLAS is loaded
# Each worker of pytest-xdist (gw0, gw1) gets a separate core. The main process keeps all cores.
if os.environ.get("PYTEST_XDIST_WORKER") and sys.platform == "linux":
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) % len(cores)]})
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

import speculative_decoding  # noqa: F401

# Programs started in the background ignore Ctrl-C, and so would the subprocesses of the tests.
signal.signal(signal.SIGINT, signal.default_int_handler)
