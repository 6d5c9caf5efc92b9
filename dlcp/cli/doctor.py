"""``dlcp doctor``: what this host can do, what is lost without the rest, and how to get it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from dlcp import __version__
from dlcp.cli.checks import Check, buffers, compiled, packages, rights, tcp, tools, udp
from dlcp.cli.checks_network import network
from dlcp.errors import ConfigError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_STEPS: Final[Sequence[tuple[str, Callable[[], Iterable[Check]]]]] = (
    ("sockets", udp),
    ("socket buffers", buffers),
    ("compiled code", compiled),
    ("rights", rights),
    ("namespaces and queues", network),
    ("TCP", tcp),
    ("tools", tools),
    ("Python packages", packages),
)

_EPILOG: Final = """\
examples:
  dlcp doctor                             a table
  dlcp doctor --missing                   only what this host lacks
  dlcp doctor --json | jq '.checks[] | select(.ok | not) | .id'
  dlcp doctor --require netns,tc.htb      for scripts: exit code 3 if one of them is missing

Nothing on the host is changed: namespaces made for trying are removed again.  Nothing that is missing keeps DLCP from
working; each line says what is lost without it.
"""


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``doctor``."""
    parser = subparsers.add_parser(
        "doctor",
        help="what this host can do, and what is lost without the rest",
        description="Tries what this host's kernel, rights and programs allow.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="one JSON document: host, checks, missing")
    parser.add_argument("--missing", action="store_true", help="show only what is missing")
    parser.add_argument("--require", metavar="ID[,ID...]", default="", help="exit with code 3 if one of these is missing")


def run(args: argparse.Namespace) -> int:
    """Asks everything, then prints."""
    from rich.console import Console

    checks: list[Check] = []
    with Console(stderr=True).status("looking at this host") as status:
        for name, step in _STEPS:
            status.update(f"looking at {name}")
            checks += step()
    missing = [check.id for check in checks if not check.ok]
    required = [name.strip() for name in args.require.split(",") if name.strip()]
    known = [check.id for check in checks]
    for name in required:
        if name not in known:
            raise ConfigError("--require", name, "no such check", ", ".join(known))
    lacking = [name for name in required if name in missing]

    if args.json:
        document = {"host": host(), "checks": [check.to_dict() for check in checks], "missing": missing}
        json.dump(document, sys.stdout, indent=2)
        print()
    else:
        _print_table([check for check in checks if not (args.missing and check.ok)], len(checks), len(missing))
    if lacking:
        print(f"dlcp: this host lacks {', '.join(lacking)}", file=sys.stderr)
        return 3
    return 0


def host() -> dict[str, Any]:
    """Describes the machine: what a reader of a report needs to judge its numbers."""
    return {
        "dlcp": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
    }


def _print_table(checks: Sequence[Check], total: int, missing: int) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    about = host()
    table = Table(
        title=f"dlcp {about['dlcp']} on {about['system']} {about['kernel']}, {about['cpus']} CPUs", title_justify="left"
    )
    table.add_column("")
    table.add_column("what", overflow="fold", max_width=44)
    table.add_column("found", overflow="fold")
    group = ""
    for check in checks:
        if check.group != group:
            group = check.group
            table.add_section()
            table.add_row("", f"[bold]{group}[/bold]", "")
        found = escape(check.detail)
        if not check.ok:
            found += f"\n[dim]lost:[/dim] {escape(check.lost)}\n[dim]to get it:[/dim] {escape(check.remedy)}"
        table.add_row("[green]ok[/green]" if check.ok else "[yellow]missing[/yellow]", escape(check.what), found)
    console.print(table)
    console.print(f"{total - missing} of {total} available; DLCP runs in any case, the table says what it does without the rest.")
