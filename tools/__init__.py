"""Long-running checks and generators of test data, run manually: `python -m tools.NAME --help`. Not installed.

attack_server          unfinished requests on many connections, while another client uses the server
check_beams            beam search against Hugging Face's, on recorded outputs
compare_openai_whisper transcripts compared with openai-whisper's, on the same weights and samples
concepts               size of the package: classes, functions, constants, import paths, records
default_runs           speed of main.py with its defaults compared with baseline decoding, in fresh processes
dispatches             kernels that a pass dispatches on Metal, counted without a Mac
fuzz_audio             random damage to audio files of five formats (needs PyAV)
fuzz_checkpoints       random damage to checkpoints of every format, tokenizers and draft heads
fuzz_conversion        conversions that are killed or run out of disk space
fuzz_server            random request bodies and recordings to a server
goldens/               outputs of Hugging Face, recorded for tests/parity (needs torch)
kills                  jobs, training and conversions that are killed, or find the disk full, and are resumed
leave_out              the core's tests in a copy of the package without some of its rooms
planted_faults         faults in a copy of the package, one at a time, and the test that catches each (20 minutes)
pretend_mac/           the tests as on a Mac, on Linux
random_interruptions   texts of a console that are interrupted with Ctrl-C
replay_drafters        drafters on recorded outputs
resolve_for_mac        wheels for a Mac of every declared dependency (needs uv)
predicted_speed        speed of published models on Macs, predicted from published figures
several_machines       a model sharded over several processes compared with the same model in one process
soak_server            random clients against a server for a long time
sparse_t5_11b          a sparse checkpoint with the shapes of T5-11B, to measure memory
useless_draft          a draft model with random weights
"""

import tests  # noqa: F401  # fixes the calibration and imports the package before MLX
