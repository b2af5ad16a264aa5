"""`python -m speculative_decoding.serve`: a target with its draft for many clients at once, over HTTP."""

import sys

from .server.command import main

if __name__ == "__main__":
    sys.exit(main())
