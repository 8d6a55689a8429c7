"""A report: run directories in, one self-contained page and its figures out."""

from fedmef.report.reading import FoundRuns, LeftOut, read_runs
from fedmef.report.writing import write_report

__all__ = ["FoundRuns", "LeftOut", "read_runs", "write_report"]
