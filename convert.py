"""Convert Hugging Face T5 weights to MLX .npz: `python convert.py --help`."""

import sys

from speculative_decoding.cli.convert import main

if __name__ == "__main__":
    sys.exit(main())
