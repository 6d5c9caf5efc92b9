"""A switch as a process: puts program, ports, server, traces and signals together, and takes them apart at the end."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from softswitch.control import ControlSocket
from softswitch.errors import ProgramError, SwitchError
from softswitch.loop import SwitchLoop
from softswitch.options import port_options
from softswitch.ports.base import CapabilityError, PacketIO
from softswitch.ports.netlink import LinkWatch
from softswitch.ports.packet_socket import InterfaceIO, is_up
from softswitch.ports.pcap import PcapWriter
from softswitch.replay import replay
from softswitch.statistics import Trace, statistics
from softswitch.switch import Switch

log: Final = logging.getLogger("softswitch")

_FLUSH_NS: Final = 200_000_000
"""How often captures and traces become visible to readers."""


def run(args: argparse.Namespace) -> None:
    """Runs a switch until SIGINT or SIGTERM; with files and no server, until the files are done.

    Raises:
        SwitchError: The program, a port or a file is wrong, or something that this needs is missing.
    """
    _set_up_log(args)
    if args.thrift_port is not None:
        log.warning("--thrift-port is ignored: use P4Runtime (--grpc)")
    # Programs see the time since now.
    start = time.monotonic_ns()
    # With a server the program reaches the switch through it, so that both agree on what is in force.
    pipeline = None if args.json is None or (args.grpc and not args.dump_code) else load(args, start)
    if args.dump_code:
        if pipeline is None:
            raise SwitchError("--dump-code needs a program")
        print(pipeline.source)
        return
    # Threads of the server must not keep the data plane waiting for the default 5 ms.
    sys.setswitchinterval(0.0005)
    switch = Switch(queues=args.priority_queues, drop_port=args.drop_port, cpu_port=args.cpu_port, seed=args.seed, start=start)
    for number, _ in args.interface:
        switch.add_port(number, **port_options(args, number))
    with ExitStack() as stack:
        loop = SwitchLoop(switch, device_id=args.device_id)
        stack.callback(loop.close)
        if args.use_files is None:
            _attach(loop, args, stack)
        if pipeline is not None:
            switch.set_pipeline(pipeline)
        if args.trace is not None:
            _trace(loop, args, stack)
        stack.callback(_write_statistics, loop, args)
        _handle_signals(loop, args, stack)
        if args.control is not None:
            stack.callback(ControlSocket(loop, args.control).close)
        address = _serve(loop, args, stack) if args.grpc is not None else None
        names = " ".join(f"{number}@{name}" for number, name in args.interface)
        served = "" if address is None else f", P4Runtime on {address}"
        print(f"softswitch: device {args.device_id} is ready, ports {names or 'none'}{served}", flush=True)
        if args.use_files is not None:
            _replay_later(loop, args)
        loop.run()


def load(args: argparse.Namespace, start: int) -> Any:
    """Compiles the program that the arguments name, for a switch that started at ``start`` (monotonic, ns).

    Raises:
        SwitchError: It cannot be read, is no valid program, or uses what this switch lacks.
    """
    text = _read(args.json)
    try:
        return _compile(text, args, start)
    except ProgramError as error:
        raise SwitchError(f"{args.json}: {error}") from error


def _compile(text: bytes, args: argparse.Namespace, start: int) -> Any:
    # Only now: it takes a while to import.
    from softswitch.pipeline import Pipeline

    # Messages of the program cost time for every packet, so they are compiled in only where somebody will see them.
    notify = _program_says if log.isEnabledFor(logging.DEBUG) else None
    return Pipeline.load(
        text,
        drop_port=args.drop_port,
        cpu_port=args.cpu_port,
        seed=args.seed,
        clock=lambda: time.monotonic_ns() - start,
        notify=notify,
    )


def _program_says(kind: str, text: str) -> None:
    log.debug("%s: %s", kind, text)


def _set_up_log(args: argparse.Namespace) -> None:
    handler: logging.Handler = logging.StreamHandler() if args.log_file is None else logging.FileHandler(args.log_file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    quiet = args.log_level == "off"
    level = {"trace": "DEBUG", "warn": "WARNING", "off": "CRITICAL"}.get(args.log_level, args.log_level.upper())
    if not (args.log_console or args.log_file):
        level = "CRITICAL" if quiet else "WARNING"
    logging.basicConfig(level=level, handlers=[handler], force=True)


# Ports


def _attach(loop: SwitchLoop, args: argparse.Namespace, stack: ExitStack) -> None:
    """Opens the interfaces, and follows their links from then on."""
    watch = LinkWatch()
    stack.callback(watch.close)
    ports: dict[str, tuple[int, InterfaceIO]] = {}
    for number, name in args.interface:
        io = InterfaceIO(name)
        ports[name] = (number, io)
        loop.attach(number, io)
        loop.switch.set_port_state(number, is_up(name))
    if args.pcap is not None:
        _capture(loop, args.pcap, [name for _, name in args.interface], stack)

    def change(name: str, up: bool) -> None:
        number, io = ports[name]
        if up and (index := _index(name)) != io.index and index:
            # Deleted and made again: the old socket hears nothing any more.
            loop.detach(io)
            io.close()
            io = InterfaceIO(name)
            ports[name] = (number, io)
            loop.attach(number, io)
        if loop.switch.ports[number].up != up:
            log.info("port %d (%s) is %s", number, name, "up" if up else "down")
        loop.switch.set_port_state(number, up)

    def news() -> None:
        events, lost = watch.read()
        for event in events:
            if event.name in ports:
                # An older interface of that name may be told of after the new one: ask what is true now.
                change(event.name, is_up(event.name))
        if lost:
            for name in ports:
                change(name, is_up(name))

    def overruns(now: int) -> None:
        for number, io in ports.values():
            if io.read_drops():
                log.warning("port %d (%s): frames came faster than they could be taken", number, io.name)

    loop.watch(watch.fileno(), news)
    loop.every(1_000_000_000, overruns)


def _index(name: str) -> int:
    # Not from /sys, which may be that of another network namespace.
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return 0


def _capture(loop: SwitchLoop, folder: Path, names: list[str], stack: ExitStack) -> None:
    writers = {
        (name, way): stack.enter_context(PcapWriter(folder / f"{name}_{way}.pcap")) for name in names for way in ("in", "out")
    }

    def record(way: str) -> Callable[[PacketIO, list[bytes]], None]:
        return lambda io, packets: writers[io.name, way].write(time.time_ns(), packets)

    def flush(now: int) -> None:
        for writer in writers.values():
            writer.flush()

    loop.on_receive, loop.on_send = record("in"), record("out")
    loop.every(_FLUSH_NS, flush)


def _replay_later(loop: SwitchLoop, args: argparse.Namespace) -> None:
    inputs = {number: Path(f"{name}_in.pcap") for number, name in args.interface}
    outputs = {number: Path(f"{name}_out.pcap") for number, name in args.interface}
    for path in inputs.values():
        if not path.is_file():
            raise SwitchError(f"{path}: no such file; with --use-files every port reads one")
    begin = loop.switch.clock() + args.use_files * 1_000_000_000
    done = False

    def begin_when_due(now: int) -> None:
        nonlocal done
        if done or now < begin:
            return
        done = True
        log.info("replayed %d frames", replay(loop.switch, inputs, outputs))
        if args.grpc is None:
            loop.stop()

    loop.every(1_000_000, begin_when_due)


# Output


def _trace(loop: SwitchLoop, args: argparse.Namespace, stack: ExitStack) -> None:
    try:
        file = stack.enter_context(args.trace.open("w"))
    except OSError as error:
        raise SwitchError(f"{args.trace}: {error.strerror}") from error
    loop.every(args.trace_interval, Trace(loop.switch, file.write).sample)
    loop.every(_FLUSH_NS, lambda now: file.flush())


def _write_statistics(loop: SwitchLoop, args: argparse.Namespace, *, asked: bool = False) -> None:
    data = statistics(loop.switch, loop.switch.clock())
    data["device_id"] = args.device_id
    for number, io in loop.outsides().items():
        data["ports"][str(number)]["interface"] = io.name
        data["ports"][str(number)]["interface_drops"] = dict(io.drops)
    text = json.dumps(data, indent=2)
    if args.stats is None:
        if asked:
            print(text, file=sys.stderr, flush=True)
        return
    # Whoever waits for the file must find it whole.
    temporary = args.stats.with_name(args.stats.name + ".part")
    temporary.write_text(text + "\n")
    temporary.replace(args.stats)


def _handle_signals(loop: SwitchLoop, args: argparse.Namespace, stack: ExitStack) -> None:
    def end(number: int, frame: object) -> None:
        log.info("ending on %s", signal.Signals(number).name)
        loop.stop()

    def report(number: int, frame: object) -> None:
        loop.soon(lambda: _write_statistics(loop, args, asked=True))

    for number, handler in ((signal.SIGINT, end), (signal.SIGTERM, end), (signal.SIGUSR1, report)):
        stack.callback(signal.signal, number, signal.signal(number, handler))
    # A signal that comes just before the wait must end it.
    stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(loop.wake_descriptor, warn_on_full_buffer=False))


# Control


def _serve(loop: SwitchLoop, args: argparse.Namespace, stack: ExitStack) -> str:
    """Starts the P4Runtime server, with the program if there is one, and returns where it listens."""
    try:
        module: Any = importlib.import_module("softswitch.server")
    except ModuleNotFoundError as error:
        raise CapabilityError(f"a P4Runtime server needs the module {error.name}: pip install 'dlcp[p4]'") from error
    tls = None
    if args.tls_cert is not None:
        tls = module.TLSFiles(args.tls_cert, args.tls_key, args.tls_client_ca)
    server = module.P4RuntimeServer(
        [loop], args.grpc, tls, loader=lambda device: lambda text: _compile(text, args, device.switch.start)
    )
    if args.json is not None:
        server.install(args.device_id, _read(args.p4info), _read(args.json))
    port = server.start()
    stack.callback(server.stop, 1.0)
    return f"{args.grpc.rpartition(':')[0]}:{port}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SwitchError(f"{path}: {error.strerror}") from error


__all__ = ["load", "run"]
