"""`python -m speculative_decoding.verify`: does a draft change anything? Ends with "600 of 600 identical"."""

import sys

from .cli.programs import run_command

if __name__ == "__main__":
    sys.exit(run_command("verify"))
