"""Long-running checks and makers of test data, run by hand: `python -m tools.NAME --help`. Not installed.

check_beams            beam search against Hugging Face's, on all bundled prompts
concepts               the size of the package: classes, functions, constants, import paths, records
default_runs           main.py with its defaults, in fresh processes, against decoding without a draft
fuzz_checkpoints       damaged checkpoints of every format
fuzz_conversion        conversions that are killed, or run out of disk space
fuzz_server            random request bodies
goldens/               what Hugging Face computes, recorded for tests/parity (needs torch)
kill_ranks             a job over several processes, one of which is killed
random_interruptions   jobs and training runs that are killed and resumed
replay_drafters        drafters on recorded outputs
several_machines       a model over several processes against the same model in one
soak_server            random clients against a server for a long time
sparse_t5_11b          a sparse file with the shapes of T5-11B, to measure memory
useless_draft          a draft model with random weights
"""

import tests  # noqa: F401  # a fixed calibration, and the package is imported before MLX
