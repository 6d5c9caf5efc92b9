"""Reports of experiments: a page that needs nothing else, timelines for Perfetto, and a comparison of several experiments."""

from testbed.report.compare import markdown, write_comparison
from testbed.report.trace import write_trace
from testbed.report.writer import verdict, write_report

__all__ = ["markdown", "verdict", "write_comparison", "write_report", "write_trace"]
