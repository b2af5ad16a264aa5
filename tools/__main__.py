"""Lists the tools: `python -m tools`."""

import tools

print(tools.__doc__)
