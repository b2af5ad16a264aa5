"""Convert a Hugging Face checkpoint to a folder of this package: `python convert.py --help`."""

import sys

from speculative_decoding.cli.convert import main

if __name__ == "__main__":
    sys.exit(main())
