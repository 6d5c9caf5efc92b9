"""``dlcp topology``: look at topology files, check them, make them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dlcp.errors import ConfigError
from dlcp.topology.builders import SHAPES, fields_of, shape
from dlcp.topology.description import Topology
from dlcp.units import Delay

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EPILOG: Final = """\
examples:
  dlcp topology make leaf-spine --leaves 4 --oversubscription 4 > net.toml
  dlcp topology make star net.toml --hosts 8 --rate "100 Mbit/s" --delay "2.5 ms"
  dlcp topology make fat-tree --help      what a kind takes
  dlcp topology check net.toml            says what is wrong and where, or prints the digest
  dlcp topology show net.toml             counts, what it carries, addresses, a drawing if it is small
  dlcp topology show net.toml --toml      the whole description, what a file says in short written out
  dlcp topology show net.toml --json | jq .oversubscription
"""

_MOST_ROWS: Final = 24
_LINK_KEYS: Final = ("rate", "delay", "buffer", "loss", "mtu", "metric")


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``topology`` with its verbs."""
    parser = subparsers.add_parser(
        "topology",
        help="show, check and make topology files",
        description="A topology (TOML) says which hosts, switches and links there are, and which ranks run where.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True)

    show = verbs.add_parser("show", help="print what a topology consists of and carries")
    show.add_argument("file", type=Path, help="topology file")
    output = show.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="one JSON document: summary, and the whole topology")
    output.add_argument("--toml", action="store_true", help="the whole description as a file")
    show.add_argument("--all", action="store_true", help=f"every host and switch, not just the first {_MOST_ROWS}")

    check = verbs.add_parser("check", help="check a file; exit code 2 if anything is wrong")
    check.add_argument("file", type=Path, help="topology file")
    check.add_argument("--json", action="store_true", help="one JSON document: source, valid, and digest or error")

    make = verbs.add_parser("make", help="print a file with a regular network, or write it")
    kinds = make.add_subparsers(dest="kind", metavar="KIND", title="kinds", required=True)
    for kind in SHAPES:
        _add_kind(kinds, kind)


def _add_kind(kinds: _SubParsersAction[argparse.ArgumentParser], kind: str) -> None:
    section = SHAPES[kind]
    summary = (section.__doc__ or "").splitlines()[0]
    parser = kinds.add_parser(kind, help=summary, description=summary)
    parser.add_argument("file", nargs="?", type=Path, help="write here instead of standard output; never overwrites")
    parser.add_argument("--name", default=kind, help="what the network is called (%(default)s)")
    parser.add_argument("--comments", action="store_true", help="explain every key in the file")
    parser.add_argument("--json", action="store_true", help="one JSON document: digest, and the topology or the file")
    for field in dataclasses.fields(section):
        described = field.metadata["kind"]
        default = described.dump(field.default)
        text = f"{field.metadata['doc']} Accepted: {described.accepted}. Default: {default}."
        option = f"--{field.name.replace('_', '-')}"
        parser.add_argument(option, dest=field.name, metavar="VALUE", type=_plain, help=text.replace("%", "%%"))


def _plain(text: str) -> int | float | str:
    """Reads an option as TOML would read the value: a number if it is one, else a string."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def run(args: argparse.Namespace) -> int:
    """Runs a verb."""
    verb = {"show": _show, "check": _check, "make": _make}[args.verb]
    return verb(args)


def _check(args: argparse.Namespace) -> int:
    try:
        topology = Topology.from_toml(args.file)
    except ConfigError as error:
        if not args.json:
            raise
        wrong = {"key": error.key, "problem": error.problem, "accepted": error.accepted}
        _print_json({"source": error.source, "valid": False, "error": wrong})
        return 2
    if args.json:
        _print_json({"source": str(args.file), "valid": True, "digest": topology.digest()})
    else:
        print(f"{args.file}: valid, {_counts(topology)}, digest {topology.digest()}")
    return 0


def _make(args: argparse.Namespace) -> int:
    given = {name: value for name in fields_of(args.kind) if (value := getattr(args, name)) is not None}
    try:
        topology = shape({"kind": args.kind, **given}, "").build(args.name)
    except ConfigError as error:
        option = f"--{error.key.replace('_', '-')}"
        raise ConfigError(f"make {args.kind}", option, error.problem, error.accepted) from None
    text = topology.to_toml(comments=args.comments)
    if args.file is None:
        if args.json:
            _print_json({"digest": topology.digest(), "topology": topology.to_dict()})
        else:
            sys.stdout.write(text)
        return 0
    try:
        with args.file.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(args.file, "(file)", "is there already", "a name that is not taken") from None
    except OSError as error:
        raise ConfigError(args.file, "(file)", f"cannot be written: {error.strerror}", "a writable place") from None
    if args.json:
        _print_json({"file": str(args.file), "digest": topology.digest()})
    else:
        print(f"wrote {args.file}: {_counts(topology)}")
    return 0


def _show(args: argparse.Namespace) -> int:
    from rich.console import Console

    from dlcp.topology.summary import summarize

    topology = Topology.from_toml(args.file)
    if args.toml:
        print(f"# {args.file}, digest {topology.digest()}\n")
        sys.stdout.write(topology.to_toml())
        return 0
    with Console(stderr=True).status("measuring what it carries"):
        summary = summarize(topology)
    if args.json:
        _print_json({"source": str(args.file), **summary, "topology": topology.to_dict()})
    else:
        _print_tables(topology, summary, None if args.all else _MOST_ROWS)
    return 0


def _counts(topology: Topology) -> str:
    numbers = (len(topology.hosts), len(topology.switches), len(topology.links), topology.world)
    words = (("host", "hosts"), ("switch", "switches"), ("link", "links"), ("rank", "ranks"))
    return ", ".join(f"{number} {word[number != 1]}" for number, word in zip(numbers, words, strict=True))


def _print_tables(topology: Topology, summary: dict[str, Any], most: int | None) -> None:
    from rich.console import Console

    from dlcp.topology.drawing import draw, spans
    from dlcp.topology.summary import rate, ratio

    console = Console(highlight=False)

    def say(label: str, text: str) -> None:
        console.print(f"{label:<17}{text}", markup=False, soft_wrap=True)

    say(topology.name, f"{_counts(topology)}, digest {topology.digest()}")
    cut, far = summary["bisection"], summary["farthest"]
    say("bisection", f"{rate(cut['rate_bps'])} each way{'' if cut['exact'] else ' at most (too large to try every cut)'}")
    say("oversubscription", ratio(summary["oversubscription"]))
    if far:
        ways = f"{far['paths']} path{'s' if far['paths'] != 1 else ''} of {far['links']} links"
        delay = f"{Delay(round(far['delay_s'] * 10**12))} one way"
        say("farthest", f"{far['from']} to {far['to']}: {ways}, {delay}, {rate(far['capacity_bps'])}")
    domains = [spans(domain) for domain in summary["fast_domains"]]
    if domains:
        shown = domains if most is None else domains[:most]
        more = f" and {len(domains) - len(shown)} more" if len(shown) < len(domains) else ""
        say("fast domains", f"{len(domains)}: ranks {' | '.join(shown)}{more}")
    drawing = draw(topology, console.width)
    if drawing:
        console.print()
        console.print(drawing, markup=False, soft_wrap=True)
    _print_table(
        console,
        "links",
        ("count", "tiers", *_LINK_KEYS),
        [
            (str(kind["count"]), f"{kind['tier'] or 'host'}-{kind['to_tier'] or 'host'}", *(str(kind[key]) for key in _LINK_KEYS))
            for kind in summary["link_kinds"]
        ],
        most,
    )
    _print_table(
        console,
        "hosts",
        ("name", "ranks", "IPv4", "MAC", "interface", "linked to"),
        [
            (host["name"], spans(host["ranks"]), host["ipv4"], host["mac"], rate(host["nic_bps"]), _linked(host["ports"]))
            for host in summary["hosts"]
        ],
        most,
    )
    _print_table(
        console,
        "switches",
        ("name", "device", "target", "P4Runtime", "ports"),
        [
            (switch["name"], str(switch["device_id"]), switch["target"], switch["grpc"], _linked(switch["ports"]))
            for switch in summary["switches"]
        ],
        most,
    )


def _linked(ports: Sequence[dict[str, Any]], most: int = 8) -> str:
    shown = ", ".join(f"{port['port']}:{port['peer']}" for port in ports[:most])
    return shown if len(ports) <= most else f"{shown}, ... ({len(ports)} ports)"


def _print_table(console: Any, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], most: int | None) -> None:
    from rich.markup import escape
    from rich.table import Table

    if not rows:
        return
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    shown = rows if most is None else rows[:most]
    for row in shown:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)
    if len(shown) < len(rows):
        console.print(f"{len(rows) - len(shown)} more; --all shows them.")


def _print_json(document: dict[str, Any]) -> None:
    json.dump(document, sys.stdout, indent=2)
    print()
