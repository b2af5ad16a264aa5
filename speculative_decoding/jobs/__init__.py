"""Jobs over files: each line of input gives one line of output, in the same order, whatever happens in between.

The n-th line of the output belongs to the n-th line of the input. That is the whole format: a job that was interrupted
goes on behind the lines that are there.
"""

from .job import Job, Totals
from .output import Journal
from .rows import Line, RowParser, choose_format, read_lines
from .spread import Spread, work

__all__ = ["Job", "Journal", "Line", "RowParser", "Spread", "Totals", "choose_format", "read_lines", "work"]
