"""`python -m speculative_decoding.serve`: a target with its draft for many clients at once, over HTTP."""

import sys

from .cli.serve import main

if __name__ == "__main__":
    sys.exit(main())
