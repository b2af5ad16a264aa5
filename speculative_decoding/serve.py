"""`python -m speculative_decoding.serve`: a target with its draft for many clients at once, over HTTP."""

import sys

from .cli.programs import run_command

if __name__ == "__main__":
    sys.exit(run_command("serve"))
