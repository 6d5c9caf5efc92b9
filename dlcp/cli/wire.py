"""``dlcp wire``: the packet format as a table, as a Wireshark dissector, and as a reader of captures."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from dlcp.errors import ConfigError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from dlcp.wire.pcap import Capture, Datagram
    from dlcp.wire.summary import Summary

_EPILOG: Final = """\
examples:
  dlcp wire table                                    the header and every body, bit by bit
  dlcp wire dissector -o ~/.local/lib/wireshark/plugins/dlcp.lua
  tshark -X lua_script:dlcp.lua -i lo -Y 'dlcp.type == 3 && dlcp.report.missing > 0'
  tcpdump -i eth0 -w job.pcap udp                    (as root, while the job runs)
  dlcp wire decode job.pcap                          packets by verdict, type, class and flow
  tcpdump -i eth0 -w - udp | dlcp wire decode -      the same, until tcpdump is stopped
"""
_COUNTS: Final = ("packets", "bytes", "protected", "retransmissions", "trimmed", "marked")


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``wire`` and what it can do."""
    parser = subparsers.add_parser(
        "wire",
        help="the packet format: table, Wireshark dissector, decoding",
        description="Everything that reads or writes DLCP packets comes from one table; these commands show and use it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)

    table = actions.add_parser("table", help="print the header and the bodies, bit by bit")
    table.add_argument("--json", action="store_true", help="one JSON document: records, fields, types")
    table.add_argument(
        "--refresh", type=Path, metavar="FILE", help="rewrite the generated blocks of a Markdown file (docs/wire-format.md)"
    )

    dissector = actions.add_parser("dissector", help="print the Wireshark dissector (Lua)")
    dissector.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it to a file; missing folders are made")

    decode = actions.add_parser("decode", help="sum up the DLCP packets of a capture")
    decode.add_argument("capture", metavar="FILE", help="pcap or pcapng, gzipped or not; - reads standard input")
    decode.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    decode.add_argument(
        "--port", type=_port, action="append", metavar="N", help="a UDP port of DLCP (default 9753; may be repeated)"
    )
    decode.add_argument("--cookie", type=_cookie, metavar="HEX", help="count packets of other jobs as foreign")
    decode.add_argument("--packets", type=_count, default=0, metavar="N", help="also list the first N packets")


def run(args: argparse.Namespace) -> int:
    """Runs the chosen action."""
    actions = {"table": _table, "dissector": _dissector, "decode": _decode}
    return actions[args.action](args)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; 1 to 65535 are")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of packets")
    return int(text)


def _cookie(text: str) -> int:
    try:
        value = int(text, 16)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 64:
        raise argparse.ArgumentTypeError(f"{text!r} is no 64-bit number in hexadecimal")
    return value


def _table(args: argparse.Namespace) -> int:
    from dlcp.wire import render

    if args.refresh is not None:
        _refresh(args.refresh)
        return 0
    if args.json:
        json.dump(render.as_json(), sys.stdout, indent=2)
        print()
    else:
        print(render.text_table())
    return 0


def _refresh(path: Path) -> None:
    from dlcp.wire import render

    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(path, "--refresh", str(error), "a readable Markdown file") from error
    made = render.blocks()
    for name in render.block_names(text):
        if name not in made:
            raise ConfigError(path, f"generated: {name}", "nothing makes such a block", ", ".join(sorted(made)))
    path.write_text(render.refresh(text), "utf-8")


def _dissector(args: argparse.Namespace) -> int:
    from dlcp.wire.wireshark import dissector

    if args.output is None:
        sys.stdout.write(dissector())
        return 0
    try:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(dissector(), "utf-8")
    except OSError as error:
        raise ConfigError(args.output, "--output", str(error), "a file that can be written") from error
    print(f"wrote {args.output}; Wireshark and tshark load it at their next start from ~/.local/lib/wireshark/plugins,")
    print(f"or at once with -X lua_script:{args.output}")
    return 0


def _decode(args: argparse.Namespace) -> int:
    from dlcp.wire.header import UDP_PORT
    from dlcp.wire.pcap import Capture
    from dlcp.wire.summary import Summary

    summary = Summary(args.port or (UDP_PORT,), args.cookie)
    with _opened(args.capture) as (file, size):
        capture = Capture(file, args.capture)
        counted = _Counted(capture)
        with _progress(capture, size, counted) as datagrams:
            summary.add(datagrams)
    document = {"file": args.capture, "complete": not capture.cut_off, "frames": counted.frames, **summary.to_dict()}
    listed = list(_listed(summary, args.packets))
    if args.json:
        json.dump(document | ({"listed": listed} if args.packets else {}), sys.stdout, indent=2)
        print()
    else:
        _print(document, listed)
    return 0


@contextmanager
def _opened(name: str) -> Iterator[tuple[BinaryIO, int]]:
    """Opens a capture; yields it with its size, 0 if that is not known."""
    if name == "-":
        yield sys.stdin.buffer, 0
        return
    try:
        file = Path(name).open("rb")
    except OSError as error:
        raise ConfigError(name, "FILE", error.strerror or str(error), "a readable capture") from error
    with file:
        yield file, os.fstat(file.fileno()).st_size


class _Counted:
    """The datagrams of a capture, counting its frames as they pass."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self.frames = 0

    def __iter__(self) -> Iterator[Datagram]:
        from dlcp.wire.pcap import datagram_of

        for frame in self._capture:
            self.frames += 1
            datagram = datagram_of(frame)
            if datagram is not None:
                yield datagram


@contextmanager
def _progress(capture: Capture, size: int, datagrams: _Counted) -> Iterator[Iterator[Datagram]]:
    """Shows on standard error how far reading has come, for those who look at a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    def reported() -> Iterator[Datagram]:
        for datagram in datagrams:
            if datagrams.frames % 1024 == 0:
                progress.update(task, completed=capture.position)
            yield datagram

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading", total=size or None)
        yield reported()


def _listed(summary: Summary, count: int) -> Iterator[dict[str, Any]]:
    from dlcp.wire.header import PacketType, Phase
    from dlcp.wire.summary import Verdict

    table = {name: column[:count].tolist() for name, column in summary.columns().items()} if count else {}
    for row in range(len(table.get("verdict", ()))):
        packet = {name: column[row] for name, column in table.items()}
        kind, phase = packet["type"], packet["phase"]
        packet["verdict"] = Verdict(packet["verdict"]).name.lower()
        packet["type"] = PacketType(kind).name.lower() if kind < len(PacketType) else kind
        packet["phase"] = Phase(phase).name.lower() if phase < len(Phase) else phase
        packet["cookie"] = f"{packet['cookie']:016x}"
        yield packet


def _print(document: dict[str, Any], listed: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    console.print(
        f"{document['file']}: {document['frames']} frames, {document['datagrams']} UDP datagrams ({document['bursts']} of them "
        f"bursts of segmentation offload), {document['packets']} packets, {document['seconds']:.3f} s",
        markup=False,
        soft_wrap=True,
    )
    if not document["complete"]:
        console.print("The capture ends in the middle of a frame.", style="yellow")
    verdicts = Table("verdict", title="by verdict", title_justify="left", box=None)
    verdicts.add_column("packets", justify="right")
    for name, count in document["verdicts"].items():
        if count:
            verdicts.add_row(name, str(count))
    console.print(verdicts)
    for title, key in (("type", "types"), ("class", "classes")):
        if document[key]:
            _print_sums(console, [title], [([name], sums) for name, sums in document[key].items()])
    if document["flows"]:
        flows = [([flow["job"], str(flow["source"]), str(flow["destination"])], flow) for flow in document["flows"]]
        _print_sums(console, ["job", "from", "to"], flows)
    for packet in listed:
        console.print(_line(packet), markup=False, soft_wrap=True)


def _print_sums(console: Any, titles: list[str], rows: list[tuple[list[str], dict[str, Any]]]) -> None:
    from rich.table import Table

    kind = "flow" if len(titles) > 1 else titles[0]
    table = Table(*titles, title=f"\ngood packets by {kind}", title_justify="left", box=None)
    for name in _COUNTS:
        table.add_column(name, justify="right")
    for names, sums in rows:
        table.add_row(*names, *(str(sums[name]) for name in _COUNTS))
    console.print(table)


def _line(packet: dict[str, Any]) -> str:
    """One line about one packet."""
    tag = "protected" if packet["protected"] else "droppable"
    more = [name for name in ("trimmed", "retransmission") if packet[name]]
    return (
        f"{packet['time']:.6f} {packet['verdict']:<9} {packet['type']:<9} {packet['source']} > {packet['destination']} "
        f"op {packet['operation']} {packet['phase']}/{packet['part']} offset {packet['offset']} of {packet['length']} "
        f"class {packet['priority']} {' '.join([tag, *more])} {packet['bytes']} bytes"
    )
