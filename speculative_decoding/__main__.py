"""`python -m speculative_decoding COMMAND ...`: the same as `speculative-decoding COMMAND ...`."""

import sys

from .cli.programs import main

if __name__ == "__main__":
    sys.exit(main())
