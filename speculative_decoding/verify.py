"""`python -m speculative_decoding.verify`: checks that drafts leave the output unchanged."""

import sys

from .cli.programs import run_command

if __name__ == "__main__":
    sys.exit(run_command("verify"))
