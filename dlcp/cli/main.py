"""The command ``dlcp``: finds the subcommand, runs it, and turns its errors into one line and an exit code.

A subcommand is a module with ``add_parser(subparsers)`` and ``run(args) -> int``.  It is imported only when it is asked for, so
that ``dlcp --help`` and ``dlcp policy`` do not pay for torch.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from enum import IntEnum
from importlib.util import find_spec
from typing import Final, NoReturn

from dlcp import __version__
from dlcp.errors import ConfigError, DLCPError

SUBCOMMANDS: Final = {
    "doctor": ("dlcp.cli.doctor", "what this host can do, and what is lost without the rest"),
    "policy": ("dlcp.cli.policy", "write, show and check policy files"),
    "topology": ("dlcp.cli.topology", "show, check and make topology files"),
    "switch": ("dlcp.cli.switch", "plan, deploy and look after the switches of a topology"),
    "bench": ("dlcp.cli.bench", "measure an all-reduce, side by side with a baseline"),
    "demo": ("dlcp.cli.demo", "train a small model over gloo and over dlcp, and compare"),
    "tolerance": ("dlcp.cli.tolerance", "measure the gradient loss that a model bears, and write the policy"),
    "serve": ("dlcp.cli.serve", "run a dedicated parameter server"),
    "dssync": ("dssync.cli", "divide-and-shuffle synchronization: choose a schedule"),
    "testbed": ("testbed.cli", "train across emulated networks with P4 switches, and compare"),
    "sim": ("sim.cli", "simulate a network and what it carries, packet by packet"),
    "wire": ("dlcp.cli.wire", "the packet format: table, Wireshark dissector, decoding"),
}
"""Name to module and summary."""


class Exit(IntEnum):
    """Exit codes of every subcommand."""

    OK = 0
    FAILED = 1
    USAGE = 2
    MISSING = 3
    TRANSPORT = 4
    INTERRUPTED = 130
    BROKEN_PIPE = 141


_EPILOG: Final = """\
first steps:
  dlcp doctor                        see what this host supports
  dlcp policy init > job.toml        start from a commented policy
  dlcp policy check job.toml         find mistakes before a job does
  dlcp COMMAND --help                what a command takes, with examples

exit codes:
  0 done   1 the run failed   2 wrong usage or configuration   3 this host lacks something
  4 a peer or the transport failed   130 interrupted
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(Exit.USAGE, f"{self.prog}: {message}\ntry: {self.prog} --help\n")


def available() -> dict[str, tuple[str, str]]:
    """Returns the subcommands whose modules are installed."""
    return {name: entry for name, entry in SUBCOMMANDS.items() if _is_there(entry[0])}


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is not there either
        return False


def make_parser(chosen: str | None) -> argparse.ArgumentParser:
    """Builds the parser; of the subcommands only ``chosen`` is imported, the others are just listed."""
    parser = _Parser(
        prog="dlcp",
        description="Network-layer accelerator for distributed training: gradients over a tagged, loss-bounded transport.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dlcp {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", required=True)
    for name, (module, summary) in available().items():
        if name != chosen:
            subparsers.add_parser(name, help=summary, add_help=False)
            continue
        command = importlib.import_module(module)
        command.add_parser(subparsers)
        subparsers.choices[name].set_defaults(run=command.run)
        subparsers.choices[name].add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``dlcp`` with ``argv`` (the process's arguments by default) and returns the exit code.

    Wrong usage, ``--help`` and ``--version`` leave through SystemExit, as argparse does.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    debug = "--debug" in arguments
    try:
        args = make_parser(chosen).parse_args(arguments)
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        if debug:
            traceback.print_exc()
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.BROKEN_PIPE
    except ConfigError as error:
        return _fail(Exit.USAGE, str(error), debug)
    except DLCPError as error:
        return _fail(Exit.TRANSPORT, str(error), debug)
    except Exception as error:
        hint = "" if debug else " (run again with --debug for the traceback)"
        return _fail(Exit.FAILED, f"{type(error).__name__}: {error}{hint}", debug)


def _fail(code: Exit, message: str, debug: bool) -> Exit:
    if debug:
        traceback.print_exc()
    print(f"dlcp: {' '.join(message.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
