"""Speculative decoding from the command line: `python main.py --help`."""

import sys

from speculative_decoding.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
