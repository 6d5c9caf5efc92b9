"""``dlcp sim profile`` and ``dlcp sim import``: workloads of users' models, and scenarios of other tools' files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dlcp.errors import ConfigError
from dlcp.units import Buffer, Delay, Rate, Size

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from sim.profile import Profile

FORMATS: Final = ("hpcc", "htsim", "chakra", "astra", "kineto")

_PROFILE_EPILOG: Final = """\
MODULE:MODEL is an instance, a class, or a function without arguments; importing the module runs its code.

examples:
  dlcp sim profile examples.models:DigitsNet --input 64x1x8x8 --out digits.toml
  dlcp sim profile mine:model --input int64:8x128 --input int64:8x128        two arguments
  dlcp sim profile mine:model --batch sample_batch --optimizer AdamW         mine.sample_batch() makes the arguments
  dlcp sim run job.toml --set workload=digits.toml --set traffic.kind=training
"""

_IMPORT_EPILOG: Final = """\
formats and their files:
  hpcc     topology.txt, and flow.txt if there are flows
  htsim    a .topo, a .cm, or both
  chakra   an .et of every rank; process groups as JSON with --groups
  astra    a workload text of astra-sim or SimAI
  kineto   a trace of torch.profiler of every rank, or of one; .json or .json.gz

examples:
  dlcp sim import hpcc topology.txt flow.txt --out run
  dlcp sim import htsim fat_tree.topo permutation.cm --out run --transport ndp
  dlcp sim import chakra traces/all_reduce.*.et --out run --rate "400 Gbit/s"
  dlcp sim import kineto rank0.json rank1.json --topology net.toml --out run
  dlcp sim run run/scenario.toml
"""


def add_parsers(verbs: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verbs."""
    shape = argparse.RawDescriptionHelpFormatter
    text = "Runs a model of yours and writes what it is to a network: layers in the order in which they run, bytes and times."
    profile = verbs.add_parser(
        "profile", help="record a torch model", description=text, epilog=_PROFILE_EPILOG, formatter_class=shape
    )
    profile.add_argument("model", metavar="MODULE:MODEL", help="where the model is")
    given = profile.add_mutually_exclusive_group()
    given.add_argument("--input", metavar="[TYPE:]SHAPE", action="append", help="an argument of the model, such as 8x3x224x224")
    given.add_argument(
        "--batch", metavar="FUNCTION", help="function of that module, or MODULE:FUNCTION, that returns the arguments"
    )
    profile.add_argument("--out", type=Path, metavar="FILE", help="workload file to write")
    profile.add_argument("--device", default="cpu", help="device of torch (%(default)s)")
    profile.add_argument("--steps", type=int, default=5, metavar="N", help="measured steps; times are medians (%(default)s)")
    profile.add_argument("--warm-up", type=int, default=2, metavar="N", help="steps before (%(default)s)")
    profile.add_argument("--optimizer", default="", metavar="CLASS", help="class of torch.optim whose step is measured, too")
    profile.add_argument("--json", action="store_true", help="one JSON document")

    text = "Turns files of other tools into a topology, messages or a workload, and a scenario that runs."
    read = verbs.add_parser(
        "import", help="read files of other tools", description=text, epilog=_IMPORT_EPILOG, formatter_class=shape
    )
    read.add_argument("format", choices=FORMATS, help="whose files they are")
    read.add_argument("files", nargs="+", type=Path, metavar="FILE")
    read.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where to write; made if it is not there")
    read.add_argument("--topology", type=Path, metavar="FILE", help="topology, if the files have none; otherwise a star is made")
    read.add_argument("--rate", type=_quantity(Rate), default=Rate.parse("100 Gbit/s"), help="of a star's links (%(default)s)")
    read.add_argument("--delay", type=_quantity(Delay), default=Delay.parse("1 us"), help="of a star's links (%(default)s)")
    read.add_argument("--buffer", type=_quantity(Buffer), default=Buffer.parse("256 KiB"), help="of all queues (%(default)s)")
    read.add_argument("--transport", metavar="NAME", default="dlcp", help="of the scenario (%(default)s)")
    read.add_argument("--ranks", type=int, metavar="N", help="astra, kineto: how many, where the file does not say")
    read.add_argument(
        "--model-parallel", type=int, metavar="N", help="astra: ranks that share a layer, where the file does not say"
    )
    read.add_argument("--iterations", type=int, default=2, metavar="N", help="astra: training steps (%(default)s)")
    read.add_argument("--time-unit", choices=("ns", "us"), default="ns", help="astra: unit of its times (%(default)s)")
    read.add_argument("--flops", type=float, metavar="N", help="chakra: operations a second, for nodes without a time")
    read.add_argument("--groups", type=Path, metavar="FILE", help="chakra: process groups, JSON: name to list of ranks")
    read.add_argument("--limit", type=_quantity(Size), metavar="SIZE", help="most bytes of a file, uncompressed")
    read.add_argument("--json", action="store_true", help="one JSON document")


def _quantity(kind: Any) -> Any:
    """Returns a parser whose name is what argparse puts into its errors."""

    def parse(text: str) -> Any:
        try:
            return kind.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def run_profile(args: argparse.Namespace) -> int:
    """Profiles a model."""
    if args.steps < 1 or args.warm_up < 0:
        raise ConfigError("--steps", "--steps", f"{args.steps} after {args.warm_up}", "1 or more, after 0 or more")
    try:
        from sim.profile import profile
        from sim.user_model import HOW, find, find_model, parse_input
    except ModuleNotFoundError as error:  # torch comes with dlcp, but somebody may have left it out
        raise ConfigError("dlcp sim profile", "torch", str(error), "an installation of torch") from None

    model = find_model(args.model)
    if args.batch:
        name = args.batch if ":" in args.batch else f"{args.model.partition(':')[0]}:{args.batch}"
        make = find(name, "MODULE:FUNCTION")
        try:
            batch = make() if callable(make) else make
        except Exception as error:
            raise ConfigError(
                name, "FUNCTION", f"failed: {type(error).__name__}: {error}", "one that needs no arguments"
            ) from error
    elif args.input:
        batch = tuple(parse_input(text) for text in args.input)
    else:
        raise ConfigError(args.model, "input", "not given", HOW)
    shown = sys.stderr.isatty() and not args.json

    def report(done: int, total: int) -> None:
        if shown:
            end = "" if done < total else "\r\x1b[K"
            print(f"\r\x1b[Kstep {done} of {total}{end}", end="", file=sys.stderr, flush=True)

    found = profile(
        model,
        batch,
        name="".join(args.model.partition(":")[2].split()) or "model",
        device=args.device,
        steps=args.steps,
        warm_up=args.warm_up,
        optimizer=args.optimizer,
        report=report,
    )
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(found.workload.to_toml(), encoding="utf-8")
    print(json.dumps(_profile_json(found), indent=2) if args.json else "\n".join(_profile_table(found, args.out)))
    return 0


def _profile_json(found: Profile) -> dict[str, Any]:
    workload = found.workload
    return {
        "name": workload.name,
        "batch": workload.batch,
        "note": workload.note,
        "layers": [
            {
                "name": layer.name,
                "kind": layer.kind,
                "bytes": layer.bytes,
                "dtype": layer.dtype,
                "forward_s": layer.forward.seconds,
                "backward_s": layer.backward.seconds,
            }
            for layer in workload.layers
        ],
        "forward_s": found.forward,
        "backward_s": found.backward,
        "optimizer_s": found.optimizer,
        "unused": found.unused,
        "shared": found.shared,
    }


def _profile_table(found: Profile, out: Path | None) -> Iterator[str]:
    workload = found.workload
    width = max(5, *(len(layer.name) for layer in workload.layers))
    yield f"{'layer':<{width}}  {'kind':<20}{'bytes':>12}{'forward ms':>12}{'backward ms':>12}"
    for layer in workload.layers:
        times = f"{layer.forward.seconds * 1e3:>12.4g}{layer.backward.seconds * 1e3:>12.4g}"
        yield f"{layer.name:<{width}}  {layer.kind[:19]:<20}{layer.bytes:>12}{times}"
    times = f"{found.forward * 1e3:>12.4g}{found.backward * 1e3:>12.4g}"
    yield f"{'whole step':<{width}}  {'':<20}{workload.bytes:>12}{times}"
    yield workload.note + (f"; optimizer {found.optimizer * 1e3:.4g} ms" if workload.optimizer else "")
    if found.shared:
        yield f"shared, counted where it is used first: {', '.join(found.shared)}"
    if found.unused:
        yield f"left out, since it gets no gradient: {', '.join(found.unused)}"
    if out is not None:
        yield f"written: {out}"


def run_import(args: argparse.Namespace) -> int:
    """Reads files of other tools, and writes a scenario."""
    from sim.flows import KINDS
    from sim.readers.load import Options, load
    from sim.readers.output import write

    if args.transport not in KINDS:
        raise ConfigError("--transport", "--transport", repr(args.transport), ", ".join(KINDS))
    for name in ("ranks", "model_parallel", "iterations"):
        value = getattr(args, name)
        if value is not None and not 1 <= value <= 65_000:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(option, option, f"{value}", "1 to 65000")
    if args.flops is not None and not 1 <= args.flops <= 1e21:
        raise ConfigError("--flops", "--flops", f"{args.flops}", "1 to 1e21")
    options = Options(
        buffer=args.buffer,
        limit=None if args.limit is None else int(args.limit),
        ranks=args.ranks,
        model_parallel=args.model_parallel,
        iterations=args.iterations,
        unit=int(Delay.parse(f"1 {args.time_unit}")),
        flops=args.flops,
        groups=args.groups,
    )
    files: Sequence[Path] = args.files
    found = load(args.format, files, options)
    result = write(
        args.out,
        found,
        args.format,
        topology=args.topology,
        rate=args.rate,
        delay=args.delay,
        buffer=args.buffer,
        transport=args.transport,
    )
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    if args.json:
        print(json.dumps({**result, "notes": found.notes}, indent=2))
        return 0
    what = f"{result['messages']} messages, {result['bytes']} bytes" if result["messages"] else f"{result['layers']} layers"
    print(f"{args.format}: {result['hosts']} hosts, {result['links']} links, {what}")
    print(f"run it: dlcp sim run {args.out / 'scenario.toml'}")
    return 0


__all__ = ["FORMATS", "add_parsers", "run_import", "run_profile"]
