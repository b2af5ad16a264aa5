"""`python -m speculative_decoding.serve`: serves a target with its draft to many clients over HTTP."""

import sys

from .cli.programs import run_command

if __name__ == "__main__":
    sys.exit(run_command("serve"))
