"""``python -m dlcp`` is the console script ``dlcp``."""

import sys

from dlcp.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
