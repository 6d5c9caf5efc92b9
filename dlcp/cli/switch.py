"""``dlcp switch``: plan, deploy and look after the switches of a topology."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EPILOG: Final = """\
examples:
  dlcp switch plan net.toml --policy job.toml     what a deployment would change: + added  ~ changed  - deleted
  dlcp switch deploy net.toml --policy job.toml   program and entries to all switches; a second time it writes nothing
  dlcp switch status net.toml                     reachable? which program? as planned? what is drained?
  dlcp switch counters net.toml --watch           forwarded, dropped, trimmed and marked, live
  dlcp switch drain net.toml leaf0 spine1         take the link out of use, to whatever it leads; undrain brings it back
  dlcp switch permit net.toml --host h0 --host h1 --rate "10 Gbit/s"
  dlcp switch shell net.toml leaf0                p4runtime-shell, connected
  dlcp switch export net.toml leaf0 --vendor sonic   for switches without P4; 'dlcp switch export --help' lists the vendors

Switches are reached where the topology says (grpc), or where --at says. Plain text is spoken with this host only, unless
--insecure allows it; --tls-ca, --tls-cert and --tls-key are for TLS and mutual TLS.

exit codes: 0 done   1 a check failed   2 wrong usage or description   3 something is not installed   4 a switch failed or is
unreachable   130 interrupted
"""
_EXPORT_EPILOG: Final = """\
The policy's classes become strict-priority queues by DSCP, and its thresholds ECN marking and dropping: above drop_share of the
buffer packets without ECT are dropped, above mark_share the others are marked. Spraying by packet, trimming and the depth stamp
need P4.

  dlcp switch export net.toml s0 --vendor tc > s0.tc.py         a script for Linux; python3 s0.tc.py --help
  dlcp switch export net.toml s0 --vendor sonic > config.json   then: config load config.json
"""
MISSING: Final = 3


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``switch`` with its verbs."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = subparsers.add_parser(
        "switch",
        help="plan, deploy and look after the switches of a topology",
        description="Switches with P4 enforce the tags: front layers first, small gradients dropped first, all paths used.",
        epilog=_EPILOG,
        formatter_class=raw,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True)

    plan = verbs.add_parser("plan", help="print what a deployment would change")
    _add_network(plan)
    _add_policy(plan)
    plan.add_argument("--all", action="store_true", help="every change, not just the first of each switch")
    plan.add_argument("--check", action="store_true", help="exit code 1 if there is something to change")

    deploy = verbs.add_parser("deploy", help="set program and entries on all switches")
    _add_network(deploy, writes=True)
    _add_policy(deploy)

    status = verbs.add_parser("status", help="print how the switches are")
    _add_network(status)
    _add_policy(status)
    status.add_argument("--check", action="store_true", help="exit code 1 if a switch is not as it should be")

    counters = verbs.add_parser("counters", help="print what the switches have counted")
    _add_network(counters)
    counters.add_argument("--each", action="store_true", help="every switch by itself, not just the sum")
    counters.add_argument("--watch", action="store_true", help="again and again, with rates, until interrupted")
    counters.add_argument("--interval", type=_seconds, default=1.0, metavar="SECONDS", help="of --watch (%(default)g)")
    counters.add_argument("--count", type=_count, metavar="N", help="end --watch after so many times")

    for verb, text in (("drain", "take a link out of use everywhere"), ("undrain", "bring a link back")):
        drain = verbs.add_parser(verb, help=text)
        _add_network(drain, writes=True)
        drain.add_argument("switch", help="name of a switch")
        drain.add_argument("port", help="port number, or the name of the only node at the other end")
        _add_policy(drain)
        if verb == "drain":
            drain.add_argument("--force", action="store_true", help="even if hosts are cut off by that")

    remove = verbs.add_parser("remove", help="delete all entries; the program stays, and forwards nothing")
    _add_network(remove, writes=True)
    remove.add_argument("--yes", action="store_true", help="do not ask")

    for verb, text in (("permit", "permit a job, where the policy isolates jobs"), ("forbid", "take that back")):
        job = verbs.add_parser(verb, help=text)
        _add_network(job, writes=True)
        job.add_argument("cookie", nargs="?", type=_cookie, metavar="COOKIE", help="what the job's packets bear, as 0x...")
        job.add_argument("--host", action="append", default=[], metavar="NAME", help="a host that the job runs on; repeat it")
        if verb == "permit":
            job.add_argument("--rate", metavar="RATE", help='most that each entry lets through, such as "10 Gbit/s"')
            job.add_argument("--hard", action="store_true", help="beyond that even protected packets are dropped")

    shell = verbs.add_parser("shell", help="open p4runtime-shell; installs it for itself the first time")
    _add_network(shell, json=False, writes=True)
    shell.add_argument("switch", help="name of a switch")

    export = verbs.add_parser(
        "export", help="write the configuration of a switch without P4", epilog=_EXPORT_EPILOG, formatter_class=raw
    )
    export.add_argument("topology", type=Path, metavar="TOPOLOGY", help="topology file")
    export.add_argument("switch", help="name of a switch")
    export.add_argument("--vendor", required=True, metavar="NAME", help="sonic, nvue (Cumulus), eos (Arista), tc (Linux)")
    export.add_argument("--interface", metavar="PATTERN", help="names of its interfaces, {port} for the number: 'swp{port}'")
    export.add_argument("--json", action="store_true", help="one JSON document: vendor, switch, and the text")
    _add_policy(export)

    if find_spec("dlcp.bench.switch") is not None:
        bench = verbs.add_parser("bench", help="measure switches: packets and entries per second")
        from dlcp.bench import switch as measurement

        measurement.add_arguments(bench)


def _add_network(parser: argparse.ArgumentParser, *, json: bool = True, writes: bool = False) -> None:
    parser.add_argument("topology", type=Path, metavar="TOPOLOGY", help="topology file")
    group = parser.add_argument_group("reaching the switches")
    group.add_argument("--at", action="append", default=[], metavar="NAME=HOST:PORT", help="where a switch is; repeat it")
    group.add_argument("--only", action="append", default=[], metavar="NAME", help="only this switch; repeat it")
    group.add_argument("--tls-ca", type=Path, metavar="FILE", help="authority of the switches' certificates (PEM)")
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate of this controller, for mutual TLS")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="its key")
    group.add_argument("--tls-name", default="", metavar="NAME", help="name in the switches' certificates, if not the address's")
    group.add_argument("--insecure", action="store_true", help="allow plain text to other hosts")
    if writes:
        text = "of two controllers the one with the higher number is obeyed (%(default)s)"
        group.add_argument("--election-id", type=_election, default=1, metavar="N", help=text)
    if json:
        parser.add_argument("--json", action="store_true", help="one JSON document")


def _add_policy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", type=Path, metavar="FILE", help="policy file (the defaults if left out)")


def run(args: argparse.Namespace) -> int:
    """Runs a verb."""
    if args.verb == "bench":
        from dlcp.bench import switch as measurement

        return int(measurement.run(args))
    if args.verb == "export":
        from dlcp.cli.switch_export import export

        return export(args)
    absent = [name for name in ("grpc", "google.protobuf", "finsy") if not _installed(name)]
    if absent:
        print(f"dlcp: {', '.join(absent)} not installed; pip install 'dlcp[p4]' brings what switches need", file=sys.stderr)
        return MISSING
    from dlcp.cli import switch_verbs
    from dlcp.fabric.errors import ProgramMissing

    try:
        return switch_verbs.run(args)
    except ProgramMissing as error:
        print(f"dlcp: {error}", file=sys.stderr)
        return MISSING


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.05 to 3600")
    return value


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of times")
    return int(text)


def _election(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) < 1 << 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 2^64 - 1")
    return int(text)


def _cookie(text: str) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 64 bits, such as 0x0123456789abcdef")
    return value
