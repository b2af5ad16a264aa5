"""Makes `python -m speculative_decoding COMMAND ...` equivalent to `speculative-decoding COMMAND ...`."""

import sys

from .cli.programs import main

if __name__ == "__main__":
    sys.exit(main())
