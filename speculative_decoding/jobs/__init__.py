"""Jobs decode files. Line n of the output is the record for line n of the input.

An interrupted job can therefore resume after the last record that it wrote.
"""

from ..cli.lines import InputLine, read_lines
from .input import choose_format, parse_line
from .job import Job, JobTotals
from .output import ResumableOutput

__all__ = [
    "InputLine",
    "Job",
    "JobTotals",
    "ResumableOutput",
    "choose_format",
    "parse_line",
    "read_lines",
]
