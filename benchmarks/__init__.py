"""Benchmarks. `--help` of each command describes its options.

python -m benchmarks      which flags are the fastest on this machine, for these prompts and models? Is a draft faster?
.drafts                   how many tokens does a draft gain per target call, and what does it cost? How much host
                          work does a round need (--host)?
.copies                   which texts should drafts be copied from?
.texts                    how many tokens and how much time does a draft text gain?
.documents                what is the cost of decoding sentences as a document, compared with a batch?
.first_run                how long does the first run take while other programs are running?
.serve                    how fast are many clients of a server, compared with one client and with a job?
.speech                   how fast is transcription with drafts, compared with openai-whisper and faster-whisper?
.voice                    does voice detection prevent errors from hum, noise and tones? Is faster-whisper's better?
.live                     how accurate is live text, and how many target calls does the last hypothesis save as a draft?
.simulated_devices        how good are adaptive draft lengths on simulated devices? Does not measure time
.loads                    records how long rounds take beside other programs, for simulated_devices
.record                   records the acceptance data for `--replay` and simulated_devices
"""

import speculative_decoding  # noqa: F401  # import before MLX, because it loads a fast BLAS
