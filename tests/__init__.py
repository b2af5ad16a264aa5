"""The tests. The package comes first here, so that it finds a fast BLAS before any test imports MLX.

Their models are tiny: what costs time is not arithmetic but the hand-over of each small operation from Python's thread
to MLX's. On one core, without preemption at each of them, many are handed over at once, and a pass takes half as long.
What the tests start inherits this; results do not depend on it.
"""

import os
import signal
from pathlib import Path

# A fixed curve instead of measurements: no verdict depends on a clock.
os.environ["SPECULATIVE_DECODING_CALIBRATION"] = str(Path(__file__).with_name("support") / "calibration.json")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when the BLAS is loaded; a value that is set already stays
# gw0, gw1: what pytest-xdist starts has a core of its own. What starts them keeps all cores, which they inherit.
if os.environ.get("PYTEST_XDIST_WORKER") and hasattr(os, "sched_setaffinity"):  # Linux
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) % len(cores)]})
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

import speculative_decoding  # noqa: F401

# A program that was started in the background ignores Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
