"""The command line of the switch: its options, and the values that name ports."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from softswitch.errors import BadValue
from softswitch.units import parse_bytes, parse_count, parse_probability, parse_rate, parse_time

T = TypeVar("T")

DEFAULT_GRPC: Final = "127.0.0.1:9559"

_DESCRIPTION: Final = """\
A P4 switch in user space.  It runs programs that p4c compiled for BMv2's v1model (JSON), forwards between network
interfaces or capture files, and is controlled by P4Runtime.
"""

_EPILOG: Final = """\
examples:
  python -m softswitch prog.json -i 1@veth1 -i 2@veth2
      forward between two interfaces; nothing can change the tables
  python -m softswitch --p4info prog.p4info.txtpb --json prog.json -i 1@veth1 -i 2@veth2 --grpc 127.0.0.1:9559
      the same with a P4Runtime server
  python -m softswitch --no-p4 --device-id 1 -i 1@veth1 -i 2@veth2 --cpu-port 510
      wait for a controller to push a program (on 127.0.0.1:9559)
  python -m softswitch prog.json -i 1@veth1 -i 2@veth2 --rate 2=100M --queue-depth 2=100 --delay 2=5ms
      port 2 is a 100 Mbit/s link of 5 ms, with 100 packets of room in each of its 8 queues
  python -m softswitch prog.json --use-files 0 -i 1@a -i 2@b
      read a_in.pcap and b_in.pcap, write a_out.pcap and b_out.pcap, in the time of the captures; needs no privileges

Rates are shared by the queues of a port; queue 7 is served first.  Interfaces need CAP_NET_RAW.  SIGINT and SIGTERM
end the switch, SIGUSR1 writes the statistics.

exit codes:
  0 ended as asked   1 failed   2 wrong usage, program or file   3 this host or process lacks something
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\ntry: {self.prog} --help\n")


def _typed(parse: Callable[[str], T]) -> Callable[[str], T]:
    def convert(text: str) -> T:
        try:
            return parse(text)
        except BadValue as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _interface(text: str) -> tuple[int, str]:
    match = re.fullmatch(r"(\d{1,9})@([^\s/@]{1,255})", text, re.ASCII)
    if match is None:
        raise BadValue(f"{text!r} is not PORT@INTERFACE, such as 1@veth1")
    return int(match[1]), match[2]


def _for_port(parse: Callable[[str], T]) -> Callable[[str], tuple[int | None, T]]:
    """Reads ``PORT=VALUE``, or ``VALUE`` for all ports."""

    def read(text: str) -> tuple[int | None, T]:
        port, equals, value = text.rpartition("=")
        if equals and not re.fullmatch(r"\d{1,9}", port, re.ASCII):
            raise BadValue(f"{text!r} is not [PORT=]VALUE")
        return (int(port) if equals else None), parse(value)

    return _typed(read)


def _count(text: str) -> int:
    value = parse_count(text)
    if value < 0:
        raise BadValue(f"{text!r} is negative")
    return value


def _positive(text: str) -> int:
    value = parse_count(text)
    if value < 1:
        raise BadValue(f"{text!r} is less than 1")
    return value


def make_parser() -> argparse.ArgumentParser:
    """Builds the parser of ``python -m softswitch``."""
    parser = _Parser(
        prog="softswitch", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add: Callable[..., Any] = parser.add_argument

    program = parser.add_argument_group("program")
    add = program.add_argument
    add("program", nargs="?", type=Path, metavar="JSON", help="program to start with, as p4c-bm2-ss wrote it")
    add("--json", type=Path, metavar="FILE", help="the same, as an option")
    add("--p4info", type=Path, metavar="FILE", help="its P4Info (default: JSON.p4info.txtpb beside it)")
    add("--no-p4", action="store_true", help="start without a program and wait for a controller to push one")
    add("--dump-code", action="store_true", help="print the Python that the program is compiled to, and exit")

    ports = parser.add_argument_group("ports")
    add = ports.add_argument
    add("-i", "--interface", action="append", default=[], type=_typed(_interface), metavar="PORT@INTERFACE", help="attach")
    add("--use-files", type=_typed(_count), metavar="SECONDS", help="captures instead of interfaces, read after SECONDS")
    add("--pcap", nargs="?", const=Path(), type=Path, metavar="DIR", help="capture each interface to *_in.pcap and *_out.pcap")
    add("--cpu-port", type=_typed(_positive), metavar="PORT", help="port of the controller (packet-in, packet-out)")
    add("--drop-port", type=_typed(_count), default=511, metavar="PORT", help="port that means drop (default: 511)")

    queues = parser.add_argument_group("queues and links (VALUE for all ports, PORT=VALUE for one; may be repeated)")
    add = queues.add_argument
    add("--priority-queues", type=_typed(_positive), default=8, metavar="N", help="queues per port (default: 8)")
    add("--rate", action="append", default=[], type=_for_port(parse_rate), metavar="[PORT=]RATE", help="such as 100M, in bit/s")
    add("--queue-depth", action="append", default=[], type=_for_port(_positive), metavar="[PORT=]N", help="packets (default: 64)")
    add("--queue-bytes", action="append", default=[], type=_for_port(parse_bytes), metavar="[PORT=]N", help="instead, bytes")
    add("--delay", action="append", default=[], type=_for_port(parse_time), metavar="[PORT=]TIME", help="travel time, as 5ms")
    add("--loss", action="append", default=[], type=_for_port(parse_probability), metavar="[PORT=]P", help="as 0.01 or 1%%")
    loss_in = "the same for what arrives"
    add("--loss-in", action="append", default=[], type=_for_port(parse_probability), metavar="[PORT=]P", help=loss_in)
    add("--seed", type=_typed(_count), default=0, metavar="N", help="of losses and of the program's random() (default: 0)")

    control = parser.add_argument_group("P4Runtime server")
    add = control.add_argument
    add("--grpc", "--grpc-server-addr", metavar="HOST:PORT", help=f"listen here; with --no-p4 the default is {DEFAULT_GRPC}")
    add("--device-id", type=_typed(_count), default=1, metavar="N", help="default: 1, as of most controllers (BMv2: 0)")
    add("--tls-cert", "--grpc-server-cert", type=Path, metavar="PEM", help="serve TLS with this certificate chain")
    add("--tls-key", "--grpc-server-key", type=Path, metavar="PEM", help="and this private key")
    add("--tls-client-ca", "--grpc-server-cacert", type=Path, metavar="PEM", help="ask clients for a certificate of this CA")
    add("--grpc-server-ssl", "--grpc-server-with-client-auth", action="store_true", help="as BMv2's; implied by the files")
    add("--thrift-port", metavar="PORT", help="ignored: there is no Thrift server")

    output = parser.add_argument_group("output")
    add = output.add_argument
    add("--trace", type=Path, metavar="FILE", help="queue depths, drops and utilisation over time, a JSON object a line")
    add("--trace-interval", type=_typed(parse_time), default=10_000_000, metavar="TIME", help="default: 10ms")
    add(
        "--stats",
        type=Path,
        metavar="FILE",
        help="statistics as JSON, at the end and on SIGUSR1 (without: on SIGUSR1 only, to standard error)",
    )
    add("--control", type=Path, metavar="SOCKET", help="Unix socket to change links and read statistics (softswitch.control)")
    add("--log-console", action="store_true", help="log to standard error")
    add("--log-file", type=Path, metavar="FILE", help="log to a file")
    levels = ["trace", "debug", "info", "warn", "error", "off"]
    add("-L", "--log-level", choices=levels, default="info", help="default: info")
    add("--log-flush", action="store_true", help="accepted; a log is always flushed")
    add("--debug", action="store_true", help="show the traceback of an error")
    return parser


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses a command line; BMv2's ``--`` before the target's own options may stand anywhere.

    Wrong usage leaves through SystemExit with code 2, as argparse does.
    """
    parser = make_parser()
    args = parser.parse_args([word for word in arguments if word != "--"])
    if args.program is not None and args.json is not None:
        parser.error("the program is named twice, as argument and by --json")
    args.json = args.json or args.program
    if args.no_p4 and args.json is not None:
        parser.error("--no-p4 and a program exclude each other")
    if args.json is None and not args.no_p4:
        parser.error("which program? name its JSON, or say --no-p4 to wait for a controller")
    if args.p4info is not None and args.json is None:
        parser.error("--p4info goes with --json")
    if args.json is not None and args.grpc is not None and args.p4info is None:
        beside = [args.json.with_suffix(f".p4info.{ending}") for ending in ("txtpb", "txt", "bin")]
        args.p4info = next((path for path in beside if path.is_file()), None)
        if args.p4info is None:
            parser.error(f"a P4Runtime server needs the program's P4Info: name it with --p4info ({beside[0]} is not there)")
    if args.no_p4 and args.grpc is None:
        args.grpc = DEFAULT_GRPC
    if (args.tls_cert is None) != (args.tls_key is None) or (args.tls_client_ca and args.tls_cert is None):
        parser.error("--tls-cert and --tls-key go together, and --tls-client-ca needs both")
    if args.grpc_server_ssl and args.tls_cert is None:
        parser.error("TLS needs --tls-cert and --tls-key")
    numbers = [number for number, _ in args.interface]
    names = [name for _, name in args.interface]
    for kind, values in (("port", numbers), ("interface", names)):
        twice = {value for value in values if values.count(value) > 1}
        if twice:
            parser.error(f"{kind} {min(twice)} is given twice")
    for option in ("rate", "queue_depth", "queue_bytes", "delay", "loss", "loss_in"):
        for number, _ in getattr(args, option):
            if number is not None and number not in numbers:
                parser.error(f"--{option.replace('_', '-')} {number}=...: there is no port {number} (add it with -i)")
    for number in (args.cpu_port, args.drop_port):
        if number in numbers:
            parser.error(f"port {number} has an interface, so it cannot be the CPU port or the drop port")
    if args.trace_interval < 100_000:
        parser.error("--trace-interval is at least 100us")
    return args


def port_options(args: argparse.Namespace, number: int) -> dict[str, Any]:
    """Returns what ``Switch.add_port`` takes for one port; a value for the port wins over one for all, and later over earlier."""

    def last(values: list[tuple[int | None, Any]]) -> Any:
        chosen = [value for port, value in values if port == number] or [value for port, value in values if port is None]
        return chosen[-1] if chosen else None

    options: dict[str, Any] = {}
    names = {"rate": "rate_bps", "delay": "delay_ns"}
    for option in ("rate", "queue_depth", "queue_bytes", "delay", "loss", "loss_in"):
        name = names.get(option, option)
        value = last(getattr(args, option))
        if value is not None:
            options[name] = value
    if "queue_bytes" in options:
        options.setdefault("queue_depth", None)
    return options


__all__ = ["DEFAULT_GRPC", "make_parser", "parse_arguments", "port_options"]
