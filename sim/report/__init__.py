"""Reports of runs: a page that needs nothing else, a timeline for Perfetto, and comparisons."""

from sim.report.comparison import write_comparison
from sim.report.page import write_report
from sim.report.trace import write_trace

__all__ = ["write_comparison", "write_report", "write_trace"]
