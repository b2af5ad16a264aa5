"""Checks that run longer than the tests, and generators of test data. `python -m tools.NAME --help` describes most
tools; for pretend_mac/, resolve_for_mac, call_trace and goldens/, read the module docstring.

Safety: client requests and user files
  check_server            does my change keep the server correct and safe? Sends 5,000 requests, opens 1,000
                          connections, and runs random clients for 20 minutes and 200 sockets for two. About three
                          minutes with --count 150 --connections 100 --minutes 0.3 --clients 20 --seconds 10
  document_properties     do documents keep everything except their text if a function takes the place of the model?
                          Reads the given files and folders: a few seconds per MB of Markdown, a minute per MB of HTML
  fuzz_files              are damaged or hostile files rejected? Checkpoints, configurations, tokenizers, draft heads,
                          recordings: 5,000 files of each format. With --count 100, a few seconds per format
  kills                   is anything lost if a job, training or conversion is killed, or after Ctrl-C in the console?
                          60 kills per program. With --kills 6, about a minute per program
  planted_faults          would a test catch this fault? Plants the faults from a table, to which you can add your own.
                          Ten minutes for all; with --only N, a few seconds

Exactness: equality with other programs and devices
  compare_openai_whisper  are transcripts equal to openai-whisper's? Needs openai-whisper; takes as long as running both
                          programs
  leave_out               do the core's tests pass without an optional subpackage? Takes as long as these tests
  metal/                  which pass widths produce identical bits on a Mac's GPU? Executes kernels of the mlx-metal
                          wheel on Linux, using recorded dispatches (tools/metal/README.md). Needs clang-19; takes a
                          few minutes per model
  pretend_mac/            do the tests pass in a simulated macOS environment? Takes as long as the tests
  resolve_for_mac         does each dependency have wheels for a Mac? Needs uv and network access
  several_machines        do several processes that share a model produce the same output as one process?

Speed: see also `python -m benchmarks --help` and docs/benchmarks.md
  predicted_speed/        how fast might published models be on Macs? With --doctor FILE: which draft lengths are best
                          for the costs measured by doctor? Takes a second
  call_trace              which modules, functions and classes does one request use? Takes a few seconds

Generators of test and training data
  goldens/                reference outputs from Hugging Face, CTranslate2 and openai-whisper for tests/parity. Run the
                          family's file as a script, with torch and the version of transformers given in the file
  make_speech             recordings for training a speech model's draft head. Needs speech synthesizers
  sparse_t5_11b           a sparse checkpoint with the shapes of T5-11B, for measuring a conversion's memory. Takes a
                          second
"""

import importlib.util

if importlib.util.find_spec("mlx") is not None:  # `python3 -m tools.metal build` needs only the standard library
    import tests  # noqa: F401  # fixes the calibration and imports the package before MLX
