"""The verbs of ``dlcp switch`` that talk to switches."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dlcp.cli import switch_view as view
from dlcp.errors import ConfigError
from dlcp.fabric import counters as counting
from dlcp.fabric import jobs, shell
from dlcp.fabric import program as compiled
from dlcp.fabric.deploy import Fabric, Outcome
from dlcp.fabric.endpoints import TLS, Target, read_certificates, targets
from dlcp.fabric.entities import Entity
from dlcp.fabric.errors import DeploymentError
from dlcp.fabric.intent import both_ends
from dlcp.fabric.session import Session
from dlcp.fabric.transaction import SAME
from dlcp.policy import Policy
from dlcp.topology import Topology
from dlcp.units import Rate

FAILED: Final = 1


def run(args: argparse.Namespace) -> int:
    """Runs a verb."""
    if args.verb == "shell":
        return _shell(args)
    verbs: dict[str, Callable[[argparse.Namespace], Awaitable[int]]] = {
        "plan": _plan,
        "deploy": _deploy,
        "status": _status,
        "counters": _counters,
        "drain": _drain,
        "undrain": _drain,
        "remove": _remove,
        "permit": _permit,
        "forbid": _permit,
    }
    return asyncio.run(_call(verbs[args.verb], args))


async def _call(verb: Callable[[argparse.Namespace], Awaitable[int]], args: argparse.Namespace) -> int:
    try:
        return await verb(args)
    except BaseExceptionGroup as group:  # what one of the concurrent tasks has raised
        raise _first(group) from None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _described(args: argparse.Namespace) -> tuple[Topology, Policy, list[Target]]:
    topology = Topology.from_toml(args.topology)
    file: Path | None = getattr(args, "policy", None)
    policy = Policy() if file is None else Policy.from_toml(file)
    return topology, policy, _targets(args, topology, args.only)


def _targets(args: argparse.Namespace, topology: Topology, only: list[str]) -> list[Target]:
    at = {}
    for pair in args.at:
        name, _, address = pair.partition("=")
        if not name or not address:
            raise ConfigError("(command line)", "--at", f"{pair!r} is not NAME=HOST:PORT", "such as leaf0=127.0.0.1:9559")
        at[name] = address
    tls = None
    if args.tls_ca or args.tls_cert or args.tls_key or args.tls_name:
        tls = TLS(args.tls_ca, args.tls_cert, args.tls_key, args.tls_name)
        read_certificates(tls)
    return targets(topology, at=at, only=only, tls=tls, insecure=args.insecure)


def _election(args: argparse.Namespace) -> int:
    """A higher number takes over from a lower one; with equal ones the first to come goes on undisturbed."""
    return int(args.election_id) << 64 | 1


@contextmanager
def _progress(names: list[str], quiet: bool) -> Iterator[Callable[[str, str], None]]:
    """Shows how many switches are how far, on a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    stages: dict[str, str] = {}
    if quiet or not console.is_terminal:
        yield lambda switch, stage: None
        return
    with console.status(f"0 of {len(names)} switches") as status:

        def notify(switch: str, stage: str) -> None:
            stages[switch] = stage
            counts = {each: list(stages.values()).count(each) for each in dict.fromkeys(stages.values())}
            status.update(f"{len(names)} switches: {', '.join(f'{count} {each}' for each, count in counts.items())}")

        yield notify


async def _plan(args: argparse.Namespace) -> int:
    topology, policy, wanted = _described(args)
    with _progress([target.name for target in wanted], args.json) as notify:
        async with Fabric(topology, policy, wanted, compiled.load(), notify) as fabric:
            await fabric.look()
            plans = fabric.plans(fabric.intent())
    if args.json:
        _print_json(view.plan_document(fabric, plans))
    else:
        view.print_plan(fabric, plans, None if args.all else 10)
    if fabric.failures:
        raise DeploymentError(fabric.failures, "the others were looked at")
    return FAILED if args.check and not all(plan.empty for plan in plans.values()) else 0


async def _apply(args: argparse.Namespace, change: Callable[[Fabric], tuple[Any, Any]]) -> int:
    """Looks at all switches, and carries out what ``change`` returns: plans, and their order."""
    topology, policy, wanted = _described(args)
    with _progress([target.name for target in wanted], args.json) as notify:
        async with Fabric(topology, policy, wanted, compiled.load(), notify) as fabric:
            await fabric.look()
            if fabric.failures:
                raise DeploymentError(fabric.failures, "no switch was changed")
            plans, order = change(fabric)
            outcomes = await fabric.apply(plans, _election(args), order)
    _report(args, fabric, outcomes)
    return 0


def _report(args: argparse.Namespace, fabric: Fabric, outcomes: dict[str, Outcome]) -> None:
    if args.json:
        _print_json(view.outcome_document(fabric, outcomes))
    else:
        view.print_outcome(outcomes)


def _anyhow(switch: str) -> int:
    return 0


async def _deploy(args: argparse.Namespace) -> int:
    return await _apply(args, lambda fabric: (fabric.plans(fabric.intent()), _anyhow))


async def _drain(args: argparse.Namespace) -> int:
    draining = args.verb == "drain"

    def change(fabric: Fabric) -> tuple[Any, Any]:
        topology = fabric.topology
        ends = both_ends(topology, args.switch, _port(topology, args.switch, args.port))
        now = fabric.drained()
        intent = fabric.intent(now | ends if draining else now - ends)
        cut = intent.cut_off()
        if draining and cut and not args.force:
            switch, host = cut[0]
            problem = f"without it {switch} cannot reach {host}" + (f", and {len(cut) - 1} more" if len(cut) > 1 else "")
            raise ConfigError(f"drain {args.switch} {args.port}", "(port)", problem, "another port, or --force")
        names = {name for name, _ in ends}
        # Who sends towards a link leaves it before its ends do, and comes back after them.
        return fabric.plans(intent), lambda name: int((name in names) == draining)

    return await _apply(args, change)


def _port(topology: Topology, switch: str, given: str) -> int:
    if given.isdigit():
        return int(given)
    names = [each.name for each in topology.switches]
    if switch not in names:
        raise ConfigError(f"topology {topology.name}", "switches", f"there is no switch {switch!r}", ", ".join(names))
    arcs = topology.graph.leaving(switch)
    found = [arc.port for arc in arcs if arc.target == given]
    if len(found) != 1:
        problem = f"{len(found) or 'no'} ports lead to {given!r}"
        accepted = "one of " + ", ".join(f"{arc.port} (to {arc.target})" for arc in arcs[:16])
        raise ConfigError(f"topology {topology.name}", switch, problem, accepted)
    return found[0]


async def _remove(args: argparse.Namespace) -> int:
    if not args.yes:
        if not sys.stdin.isatty():
            raise ConfigError("remove", "--yes", "is missing, and there is nobody to ask", "--yes")
        names = ", ".join(target.name for target in _described(args)[2])
        if input(f"Delete all entries of {names}? They will forward nothing. [y/N] ").strip().lower() not in ("y", "yes"):
            return FAILED
    return await _apply(args, lambda fabric: (fabric.removals(), _anyhow))


async def _permit(args: argparse.Namespace) -> int:
    rate = None
    if args.verb == "permit" and args.rate is not None:
        try:
            rate = Rate.parse(args.rate)
        except ValueError as error:
            raise ConfigError("(command line)", "--rate", str(error), 'a rate with its unit, such as "10 Gbit/s"') from None
    edit = jobs.with_job if args.verb == "permit" else jobs.without_job

    def change(fabric: Fabric) -> tuple[Any, Any]:
        hard = args.verb == "permit" and args.hard

        def edited(name: str, held: list[Entity]) -> list[Entity]:
            return edit(held, jobs.entries(fabric.topology, name, cookie=args.cookie, hosts=args.host, rate=rate, hard=hard))

        return fabric.edits(edited), _anyhow

    return await _apply(args, change)


async def _status(args: argparse.Namespace) -> int:
    topology, policy, wanted = _described(args)
    async with Fabric(topology, policy, wanted, compiled.load()) as fabric:
        await fabric.look()
        plans = fabric.plans(fabric.intent())
    rows = view.status_rows(fabric, plans)
    if args.json:
        _print_json(rows)
    else:
        view.print_status(rows)
    good = not fabric.failures and all(plan.empty for plan in plans.values())
    if fabric.failures and not args.check:
        raise DeploymentError(fabric.failures, "the others answered")
    return FAILED if args.check and not good else 0


async def _counters(args: argparse.Namespace) -> int:
    topology, policy, wanted = _described(args)
    async with Fabric(topology, policy, wanted, compiled.load()) as fabric:
        await fabric.look()
        if fabric.failures:
            raise DeploymentError(fabric.failures, "nothing was read")
        for name, held in fabric.held().items():
            if held.program != SAME:
                raise fabric.session(name).failed("it does not run this program", "run dlcp switch deploy")
        if not args.watch:
            counts = await fabric.counters()
            _print_json(view.counters_document(counts)) if args.json else view.print_counters(counts, args.each)
            return 0
        await _watch(args, fabric)
    return 0


async def _watch(args: argparse.Namespace, fabric: Fabric) -> None:
    """Shows totals and rates; with --json a line each time."""
    loop = asyncio.get_running_loop()
    before, at = await fabric.counters(), loop.time()
    shown = 0
    with view.live(args.json) as show:
        while args.count is None or shown < args.count:
            await asyncio.sleep(max(at + args.interval - loop.time(), 0))
            counts, now = await fabric.counters(), loop.time()
            rates = {name: each.add(before[name], -1) for name, each in counts.items()}
            if args.json:
                line = {"seconds": now - at, **view.counters_document(counts), "since": counting.total(rates).to_dict()}
                print(json.dumps(line), flush=True)
            else:
                show(view.counters_table(counts, args.each, rates, now - at))
            before, at, shown = counts, now, shown + 1


def _shell(args: argparse.Namespace) -> int:
    topology = Topology.from_toml(args.topology)
    (target,) = _targets(args, topology, [args.switch])
    files = compiled.paths()

    async def absent() -> bool:
        async with Session(target) as session:
            await session.version()
            return await session.pipeline(whole=True) is None

    empty = asyncio.run(absent())
    place = shell.environment(os.environ)
    if not (place / ".complete").is_file():
        print(f"installing p4runtime-shell into {place} (once)", file=sys.stderr)
    python = shell.prepare(place)
    return shell.run(python, shell.arguments(target, files if empty else None, _election(args)))


def _print_json(document: Any) -> None:
    json.dump(document, sys.stdout, indent=2)
    print()


__all__ = ["run"]
