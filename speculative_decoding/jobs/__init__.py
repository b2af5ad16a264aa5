"""Jobs over files: each line of input gives one line of output, in the same order, whatever happens in between.

The n-th line of the output belongs to the n-th line of the input. That is the whole format: a job that was interrupted
goes on behind the lines that are there.
"""

from .input import InputLine, LineParser, choose_format, read_lines
from .job import Job, JobTotals
from .output import ResumableOutput
from .spread import Spread, work

__all__ = [
    "InputLine",
    "Job",
    "JobTotals",
    "LineParser",
    "ResumableOutput",
    "Spread",
    "choose_format",
    "read_lines",
    "work",
]
