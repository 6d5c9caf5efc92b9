"""How much gradient loss a model bears: training with virtual workers in one process, over the product's own tags and residuals.

``dlcp tolerance MODULE:FUNCTION`` is the command; ``docs/tolerance.md`` says what it does and what it does not show.
"""

from dlcp.tolerance.task import Task

__all__ = ["Task"]
