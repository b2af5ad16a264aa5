"""Jobs over files: line n of the output is the record of line n of the input.

An interrupted job can therefore continue after the records that it has already written.
"""

from .input import InputLine, choose_format, parse_line, read_lines
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
