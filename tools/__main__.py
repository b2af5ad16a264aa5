"""Lists the tools: `python -m tools`."""

import sys

import tools

print(tools.__doc__)
if sys.argv[1:]:
    sys.exit(f"python -m tools: takes no arguments; to run a tool, use python -m tools.{sys.argv[1]}")
