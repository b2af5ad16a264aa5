"""`python -m speculative_decoding COMMAND ...`, as the command `speculative-decoding`."""

import sys

from .cli.programs import main

if __name__ == "__main__":
    sys.exit(main())
