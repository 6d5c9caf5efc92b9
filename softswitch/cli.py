"""The command ``python -m softswitch``: errors become one line and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from enum import IntEnum

from softswitch.errors import SwitchError
from softswitch.options import parse_arguments
from softswitch.ports.base import CapabilityError


class Exit(IntEnum):
    """Exit codes, as those of ``dlcp``."""

    OK = 0
    FAILED = 1
    USAGE = 2
    MISSING = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a switch with ``argv`` (the process's arguments by default) until it is told to end, and returns the exit code.

    Wrong usage and ``--help`` leave through SystemExit, as argparse does.
    """
    args = parse_arguments(sys.argv[1:] if argv is None else argv)
    try:
        # Only now: --help and mistakes should not wait for the compiler.
        from softswitch.process import run

        run(args)
        return Exit.OK
    except CapabilityError as error:
        return _fail(Exit.MISSING, str(error), args.debug)
    except SwitchError as error:
        return _fail(Exit.USAGE, str(error), args.debug)
    except OSError as error:
        return _fail(Exit.FAILED, str(error), args.debug)
    except KeyboardInterrupt:
        return Exit.OK
    except Exception as error:
        hint = "" if args.debug else " (run again with --debug for the traceback)"
        return _fail(Exit.FAILED, f"{type(error).__name__}: {error}{hint}", args.debug)


def _fail(code: Exit, message: str, debug: bool) -> Exit:
    if debug:
        traceback.print_exc()
    print(f"softswitch: {' '.join(message.split())}", file=sys.stderr)
    return code


__all__ = ["Exit", "main"]
