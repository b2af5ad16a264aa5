"""Checks that run longer than the tests, and generators of test data. `python -m tools.NAME --help` describes most
tools; for pretend_mac/, resolve_for_mac, call_trace and goldens/, read the module docstring.

Safety: requests of clients, and files of users
  check_server            does my change keep the server correct and safe? 5,000 requests, 1,000 connections, 20 minutes
                          of random clients, two of 200 sockets; with --count 150 --connections 100 --minutes 0.3
                          --clients 20 --seconds 10, about three minutes
  document_properties     do documents keep everything except their text, with functions in place of a model? Reads the
                          given files and folders: some seconds per MB of Markdown, a minute per MB of HTML
  fuzz_files              are damaged or hostile files rejected? Checkpoints, configurations, tokenizers, draft heads,
                          recordings: 5,000 files of each format; with --count 100, some seconds for each
  kills                   is anything lost if a job, training or conversion is killed, or after Ctrl-C in the console?
                          60 kills per program; with --kills 6, about a minute for each
  planted_faults          would a test catch this fault? Plants the faults of a table, to which you can add one. Ten
                          minutes for all; with --only N, some seconds

Exactness: equality with other programs and devices
  compare_openai_whisper  do transcripts equal openai-whisper's? Needs openai-whisper; takes as long as both programs
  leave_out               do the core's tests pass without an optional subpackage? Takes as long as these tests
  metal/                  which pass widths give identical bits on a Mac's GPU? Executes kernels of the mlx-metal
                          wheel on Linux, from recorded dispatches (tools/metal/README.md). Needs clang-19; takes
                          minutes per model
  pretend_mac/            do the tests pass in a simulated macOS environment? Takes as long as the tests
  resolve_for_mac         does each dependency have wheels for a Mac? Needs uv and a network
  several_machines        do several processes that share a model produce the same output as one process?

Speed: see also `python -m benchmarks --help` and docs/benchmarks.md
  predicted_speed/        how fast might published models be on Macs? With --doctor FILE: which draft lengths are best
                          for the costs measured by doctor? Takes a second
  call_trace              which modules, functions and classes does one request use? Takes some seconds

Generators of files in this repository
  goldens/                reference outputs of Hugging Face and openai-whisper for tests/parity: run the file for the
                          family as a script, with torch and the version of transformers given in the file
  make_speech             recordings for training a draft head of a speech model. Needs speech synthesizers
  sparse_t5_11b           a sparse checkpoint with the shapes of T5-11B, to measure the memory of a conversion. A second
"""

import importlib.util

if importlib.util.find_spec("mlx") is not None:  # `python3 -m tools.metal build` needs only the standard library
    import tests  # noqa: F401  # fixes the calibration and imports the package before MLX
