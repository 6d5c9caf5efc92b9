"""``dlcp serve``: run a dedicated parameter server."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from dlcp.errors import ClosedError, ConfigError, RendezvousError
from dlcp.policy import Policy
from dlcp.wire.header import UDP_PORT

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from dlcp.store import Store

_EPILOG: Final = f"""\
A server owns its share of every array: workers send it their contributions, it sends back what they come to. It needs to know
neither the model nor the order of calls, and ends when all workers have closed their communicators.

workers:
  Communicator(rank, 4, FileStore("/shared/job"), algorithm="ps", servers=2)

servers:
  dlcp serve --rank-of-server 0 --servers 2 --world 4 --store file:/shared/job --host 10.0.0.7
  dlcp serve --rank-of-server 1 --servers 2 --world 4 --store file:/shared/job --host 10.0.0.8

stores:
  file:PATH           a directory that all ranks see (dlcp.FileStore)
  tcp://HOST:PORT     a torch.distributed TCPStore that a worker or torchrun runs; with --prefix as in PrefixStore

The policy must be the workers'. UDP port: {UDP_PORT} plus the server's number unless --port says otherwise; 0 takes a free one.
SIGINT and SIGTERM end the server and, with an error that says so, the job.

exit codes: 0 all workers have left   2 wrong usage or policy   4 a rank or the transport failed   130 interrupted
"""


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``serve``."""
    parser = subparsers.add_parser(
        "serve",
        help="run a dedicated parameter server",
        description="Runs a dedicated parameter server until all workers have left.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rank-of-server", type=int, required=True, metavar="I", help="number of this server, 0 to SERVERS - 1")
    add("--servers", type=int, required=True, metavar="SERVERS", help="how many servers there are")
    add("--world", type=int, required=True, metavar="N", help="how many workers there are")
    add("--store", required=True, metavar="STORE", help="where ranks meet: file:PATH or tcp://HOST:PORT")
    add("--prefix", default="", help="key prefix within the store, as in torch's PrefixStore")
    add("--policy", type=Path, metavar="FILE", help="policy file, equal to the workers' (the defaults if left out)")
    add("--host", default="127.0.0.1", help="address to bind, and under which workers reach it (%(default)s)")
    add("--port", type=int, metavar="PORT", help=f"UDP port ({UDP_PORT} + I)")
    add("--name", default="default", help="name of the communicator (%(default)s)")
    add("--faults", default="", metavar="PLAN", help="faults to inject into what is sent, such as drop=0.01")
    add("--json", action="store_true", help="one JSON document of counters at the end, and nothing else, on standard output")


def run(args: argparse.Namespace) -> int:
    """Serves."""
    policy = Policy() if args.policy is None else Policy.from_toml(args.policy)
    store = open_store(args.store, args.prefix, policy.timeouts.connect_s)
    # Imported late, so that wrong usage is told at once.
    from dlcp.collectives.server import serve
    from dlcp.udp.faults import FaultPlan

    faults = FaultPlan.parse(args.faults, "--faults")
    stop = threading.Event()

    def ready(address: tuple[str, int]) -> None:
        print(f"serving {args.world} workers at {address[0]}:{address[1]}", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    try:
        print(f"waiting for {args.world} workers and {args.servers} servers at {args.store}", file=sys.stderr, flush=True)
        metrics = serve(
            args.rank_of_server,
            args.servers,
            args.world,
            store,
            policy=policy,
            host=args.host,
            port=UDP_PORT + args.rank_of_server if args.port is None else args.port,
            faults=faults if faults else None,
            name=args.name,
            stop=stop,
            on_ready=ready,
        )
    except ClosedError:
        if stop.is_set():
            return 130
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if args.json:
        json.dump(metrics, sys.stdout, indent=2)
        print()
    else:
        print(_summary(metrics), file=sys.stderr)
    return 0


def open_store(text: str, prefix: str, timeout_s: float) -> Store:
    """Opens the store that ``--store`` names.

    Raises:
        ConfigError: It names none.
        RendezvousError: It cannot be reached.
    """
    accepted = "file:PATH or tcp://HOST:PORT"
    if text.startswith("file:"):
        path = text.removeprefix("file:")
        if not path or prefix:
            problem = "no path" if not path else "--prefix goes with tcp:// only"
            raise ConfigError("dlcp serve", "--store", problem, accepted)
        from dlcp.store import FileStore

        return FileStore(path)
    if not text.startswith("tcp://"):
        raise ConfigError("dlcp serve", "--store", f"{text!r} is no store", accepted)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError("dlcp serve", "--store", str(error), accepted) from None
    if not host or not port or parts.path not in ("", "/"):
        raise ConfigError("dlcp serve", "--store", f"{text!r} is no host and port", accepted)
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    try:
        store: Any = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)
    except (RuntimeError, ValueError) as error:
        summary = str(error).splitlines()[0]
        raise RendezvousError(f"no store at {host}:{port} within {timeout_s:g} s: {summary}") from error
    if prefix:
        store = PrefixStore(prefix, store)
    opened: Store = store
    return opened


def _summary(metrics: dict[str, Any]) -> str:
    transport = metrics["transport"]
    sent = sum(count for key, count in transport.items() if key.startswith("sent_class_"))
    return (
        f"all workers have left; received {transport.get('delivered', 0)} packets in {transport.get('completed', 0)} messages "
        f"({transport.get('lost', 0)} lost), sent {sent} and {transport.get('retransmitted', 0)} again"
    )
