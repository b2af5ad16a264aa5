"""`python -m speculative_decoding.verify`: does a draft change anything? Ends with "600 of 600 identical"."""

import sys

from .cli.verify import main

if __name__ == "__main__":
    sys.exit(main())
