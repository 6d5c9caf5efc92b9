"""From files of a tool to what they say, by the tool's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dlcp.units import Buffer
from sim.readers.found import Found
from sim.readers.text import LIMIT, InputError

BUFFER: Final = Buffer(256 << 10, "bytes")


@dataclass(frozen=True)
class Options:
    """What files do not say.

    Attributes:
        buffer: Room of the queues of networks.
        limit: Most bytes of a file; None is the reader's own.
        ranks: How many there are.
        model_parallel: Ranks that share a layer.
        iterations: Training steps.
        unit: Picoseconds of a unit of time in workload texts.
        flops: Operations a second.
        groups: File of process groups.
    """

    buffer: Buffer = BUFFER
    limit: int | None = None
    ranks: int | None = None
    model_parallel: int | None = None
    iterations: int = 2
    unit: int = 1000
    flops: float | None = None
    groups: Path | None = None


def load(kind: str, files: Sequence[Path], options: Options) -> Found:
    """Reads files of a tool: ``hpcc``, ``htsim``, ``chakra``, ``astra`` or ``kineto``.

    Raises:
        InputError: They are malformed, or not those that the tool has.
    """
    return {"hpcc": _hpcc, "htsim": _htsim, "chakra": _chakra, "astra": _astra, "kineto": _kineto}[kind](files, options)


def _hpcc(files: Sequence[Path], options: Options) -> Found:
    from sim.readers.hpcc import read_flows, read_topology

    if len(files) > 2:
        raise InputError(files[2], "(files)", f"{len(files)} files", "topology.txt, and flow.txt if there are flows")
    limit = options.limit or LIMIT
    network = read_topology(files[0], buffer=options.buffer, limit=limit)
    found = Found(topology=network.topology, hosts=len(network.hosts), notes=list(network.notes))
    if len(files) == 2:
        found.messages, notes = read_flows(files[1], network.hosts, limit=limit)
        found.notes += notes
    return found


def _htsim(files: Sequence[Path], options: Options) -> Found:
    from sim.readers.htsim import read_matrix
    from sim.readers.htsim_tree import read_tree

    limit = options.limit or LIMIT
    found = Found()
    for suffix in (".topo", ".cm"):
        mine = [file for file in files if file.suffix == suffix]
        if len(mine) > 1:
            raise InputError(mine[1], "(files)", f"the second {suffix}", "one of each")
    for file in files:
        if file.suffix not in (".topo", ".cm"):
            raise InputError(file, "(file)", f"its name ends in {file.suffix or 'nothing'}", ".topo or .cm")
    for file in sorted(files, key=lambda file: file.suffix, reverse=True):
        if file.suffix == ".topo":
            found.topology, notes = read_tree(file, buffer=options.buffer, limit=limit)
            found.hosts = len(found.topology.hosts)
        else:
            matrix = read_matrix(file, limit=limit)
            notes, found.messages = matrix.notes, matrix.messages
            if found.topology is not None and matrix.nodes > found.hosts:
                raise InputError(file, "Nodes", f"{matrix.nodes}, of a network of {found.hosts}", f"up to {found.hosts}")
            found.hosts = found.hosts or matrix.nodes
        found.notes += notes
    return found


def _chakra(files: Sequence[Path], options: Options) -> Found:
    from sim.readers.chakra import read_groups, read_traces

    groups = read_groups(options.groups) if options.groups is not None else None
    return read_traces(files, flops=options.flops, groups=groups, limit=options.limit or LIMIT)


def _astra(files: Sequence[Path], options: Options) -> Found:
    from sim.readers.astra import read_text_workload, training, workload

    if len(files) > 1:
        raise InputError(files[1], "(files)", f"{len(files)} files", "one workload text")
    text = read_text_workload(files[0], limit=options.limit or LIMIT)
    shared = options.model_parallel or text.header.get("model_parallel_NPU_group", 1)
    ranks = options.ranks or text.header.get("all_gpus", 0)
    if text.data_parallel and shared <= 1 and 0 < ranks <= 65_000:
        return Found(hosts=ranks, workload=workload(text, options.unit))
    return training(text, unit=options.unit, iterations=options.iterations, ranks=options.ranks, model=options.model_parallel)


def _kineto(files: Sequence[Path], options: Options) -> Found:
    from sim.readers.kineto import read_traces
    from sim.readers.kineto_events import LIMIT as TRACE_LIMIT

    return read_traces(files, ranks=options.ranks, limit=options.limit or TRACE_LIMIT)


__all__ = ["Options", "load"]
