"""Benchmarks. Each explains its options with --help.

python -m benchmarks      which flags are the fastest on this machine, for these prompts and models? Is a draft faster?
.drafts                   how many tokens does a draft gain for a target call, and what does it cost? What does the
                          Python thread cost (--host)?
.copies                   which texts should drafts be copied from?
.texts                    how many tokens does a given text gain, and how much time?
.documents                what does it cost to decode sentences as a document, compared with a batch?
.first_run                what does the first run cost, while other programs run?
.serve                    how fast are many clients of a server, compared with one client and with a job?
.speech                   how fast is transcription with drafts, compared with openai-whisper and faster-whisper?
.voice                    which text does voice detection save from hum, noise and tones, beside faster-whisper's?
.live                     how good is live text, and what does the last hypothesis save as a draft?
.simulated_devices        how good are adaptive draft lengths on devices that we do not have? Measures no time
.record                   records the acceptance that `--replay` and simulated_devices read
"""

import speculative_decoding  # noqa: F401  # import before MLX, because it loads a fast BLAS
