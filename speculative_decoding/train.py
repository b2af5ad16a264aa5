"""`python -m speculative_decoding.train`: a draft head, or a distilled small model, for a target and a kind of text."""

import sys

from .training.command import main

if __name__ == "__main__":
    sys.exit(main())
