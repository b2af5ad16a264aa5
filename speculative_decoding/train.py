"""`python -m speculative_decoding.train`: trains a draft head or a distilled small model for a target."""

import sys

from .cli.programs import run_command

if __name__ == "__main__":
    sys.exit(run_command("train"))
