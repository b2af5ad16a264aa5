"""Checks that run longer than the tests, and generators of test data. `python -m tools.NAME --help` explains most; for
pretend_mac/, resolve_for_mac, call_trace and goldens/, read the first lines of the file.

Safe: what users send, and what is on their disks
  check_server            does my change keep the server correct and safe? 5,000 requests, 1,000 connections, 20 minutes
                          of random clients, two of 200 sockets; with --count 150 --connections 100 --minutes 0.3
                          --clients 20 --seconds 10, about three minutes
  document_properties     do documents keep everything but their text, with functions in place of a model? Reads the
                          files and folders that you name: some seconds per MB of Markdown, a minute per MB of HTML
  fuzz_files              are damaged or hostile files refused? Checkpoints, configurations, tokenizers, draft heads,
                          recordings: 5,000 files of each format; with --count 100, some seconds for each
  kills                   does a killed job, training or conversion lose anything, or Ctrl-C in the console? 60 kills of
                          each kind; with --kills 6, about a minute for each
  planted_faults          would a test catch my fault? Plants the faults of a table, to which you can add one. Ten
                          minutes for all; with --only N, some seconds

Exact: equal to other programs and devices
  compare_openai_whisper  do transcripts equal openai-whisper's? Needs openai-whisper; as long as both take
  leave_out               do the core's tests pass without an optional subpackage? As long as these tests
  metal/                  which pass widths have equal bits on a Mac's GPU? Executes kernels of the mlx-metal wheel on
                          Linux, from recorded dispatches (tools/metal/README.md). Needs clang-19; minutes for a model
  pretend_mac/            do the tests pass as on a Mac? As long as the tests
  resolve_for_mac         does each dependency have wheels for a Mac? Needs uv and a network
  several_machines        do several processes that share a model give the output of one?

Fast: see also `python -m benchmarks --help` and docs/benchmarks.md
  predicted_speed/        how fast might published models be on Macs? With --doctor FILE: which draft lengths are best
                          for the costs that doctor measured? A second
  call_trace              what does one request load, call and make? Some seconds

Made from: how files of this repository were made
  goldens/                reference outputs of Hugging Face and openai-whisper for tests/parity: run the file for the
                          family as a script, where torch and the version of transformers that it names are installed
  make_speech             recordings for training a draft head of a speech model. Needs speech synthesizers
  sparse_t5_11b           a sparse checkpoint with the shapes of T5-11B, to measure the memory of a conversion. A second
"""

import importlib.util

if importlib.util.find_spec("mlx") is not None:  # `python3 -m tools.metal build` needs only the standard library
    import tests  # noqa: F401  # fixes the calibration and imports the package before MLX
