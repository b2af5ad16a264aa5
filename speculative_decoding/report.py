"""`python -m speculative_decoding.report TRACE...`: what the rounds of traces say, as a table and a picture."""

import sys

from .cli.report import main

if __name__ == "__main__":
    sys.exit(main())
