"""What writing and reading table entries over P4Runtime costs, with finsy as the client and the switch in a process of its own.

    python benchmarks/bench_p4runtime.py [--entries 5000] [--batch 500] [--rounds 5] [--json]

Shown are medians over rounds, and the best round, for other work on the machine only ever adds time:

- entries a second in batches, of which finsy's own share (building the messages) is shown beside it;
- entries a second one by one, each request waiting for the answer to the one before, and with 8 requests in flight;
- entries a second of reading a whole table;
- CPU microseconds an entry of the server alone, without gRPC: translation and insertion of a batch, and reading.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from finsy import P4TableAction, P4TableEntry, P4TableMatch, Switch, SwitchOptions
from finsy.p4entity import encode_entities
from finsy.proto import p4r

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests" / "softswitch" / "programs" / "control.json"
P4INFO = PROGRAM.with_name("control.p4info.txtpb")
SERVER = """
import sys
from softswitch.server.testing import running_switches
with running_switches() as (switch,):
    print(switch.address, flush=True)
    sys.stdin.read()
"""


def entries(count: int) -> list[P4TableEntry]:
    """Returns as many exact entries of the table ``dmac``."""
    return [
        P4TableEntry("dmac", match=P4TableMatch(dst=number), action=P4TableAction("forward", port=number % 511))
        for number in range(1, count + 1)
    ]


async def timed(count: int, work: Callable[[], Awaitable[object]]) -> float:
    """Returns entries a second."""
    begin = time.perf_counter()
    await work()
    return count / (time.perf_counter() - begin)


async def over_grpc(address: str, count: int, batch: int, rounds: int) -> dict[str, list[float]]:
    """Measures writes and reads of a running switch."""
    results: dict[str, list[float]] = {}
    wanted = entries(count)
    singles = wanted[: max(100, count // 10)]
    async with Switch("bench", address, SwitchOptions(p4info=P4INFO, p4blob=PROGRAM)) as switch:

        async def batches() -> None:
            for start in range(0, count, batch):
                await switch.insert(wanted[start : start + batch])

        async def one_by_one() -> None:
            for entry in singles:
                await switch.insert([entry])

        async def eight_at_once() -> None:
            async def some(first: int) -> None:
                for entry in singles[first::8]:
                    await switch.insert([entry])

            await asyncio.gather(*(some(first) for first in range(8)))

        # finsy declares this method as if it had to be awaited.
        read_entities: Any = switch.read

        async def read() -> None:
            found = 0
            async for _ in read_entities([P4TableEntry("dmac")]):
                found += 1
            if found != count:
                raise SystemExit(f"{found} entries came back of {count}")

        async def remove(some: list[P4TableEntry]) -> None:
            for start in range(0, len(some), batch):
                await switch.delete(some[start : start + batch])

        for _ in range(rounds):
            results.setdefault("batched", []).append(await timed(count, batches))
            results.setdefault("read", []).append(await timed(count, read))
            await remove(wanted)
            results.setdefault("one_by_one", []).append(await timed(len(singles), one_by_one))
            await remove(singles)
            results.setdefault("eight_in_flight", []).append(await timed(len(singles), eight_at_once))
            await remove(singles)
            begin = time.perf_counter()
            list(encode_entities(wanted, switch.p4info))
            results.setdefault("finsy_alone", []).append(count / (time.perf_counter() - begin))
    return results


def alone(count: int, rounds: int) -> dict[str, list[float]]:
    """Measures the server's part without gRPC, in CPU microseconds an entry."""
    from finsy import P4Schema

    from softswitch.pipeline import Pipeline
    from softswitch.server import batches
    from softswitch.server.pipeline_config import load_target, read_p4info

    schema = P4Schema(P4INFO)
    config = p4r.ForwardingPipelineConfig(p4info=read_p4info(P4INFO.read_bytes()), p4_device_config=PROGRAM.read_bytes())
    updates = [p4r.Update(type=p4r.Update.INSERT, entity=entity) for entity in encode_entities(entries(count), schema)]
    request = p4r.WriteRequest(updates=updates).SerializeToString()
    query = [p4r.Entity(table_entry=p4r.TableEntry(table_id=schema.tables["dmac"].id))]
    results: dict[str, list[float]] = {"write": [], "read": []}
    for _ in range(rounds):
        target = load_target(config, Pipeline.load, range(512), 8)
        begin = time.thread_time()
        batches.write(target, lambda function: function(), p4r.WriteRequest.FromString(request).updates, 0)
        middle = time.thread_time()
        answers = [answer.SerializeToString() for answer in batches.read(target, lambda function: function(), query)]
        end = time.thread_time()
        if not answers or len(target.runtime.tables["TheIngress.dmac"]) != count:
            raise SystemExit("entries are missing")
        results["write"].append((middle - begin) / count * 1e6)
        results["read"].append((end - middle) / count * 1e6)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark P4Runtime writes and reads.")
    parser.add_argument("--entries", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    logging.getLogger("finsy").setLevel(logging.CRITICAL)
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        rates = asyncio.run(over_grpc(address, args.entries, args.batch, args.rounds))
    finally:
        server.communicate()
    costs = alone(args.entries, args.rounds)
    result: dict[str, Any] = {"entries": args.entries, "batch": args.batch, "rounds": args.rounds}
    for name, values in rates.items():
        result[f"{name}_per_s"] = round(statistics.median(values))
        result[f"{name}_per_s_best"] = round(max(values))
    for name, values in costs.items():
        result[f"{name}_cpu_us"] = round(statistics.median(values), 2)
        result[f"{name}_cpu_us_best"] = round(min(values), 2)
    if args.json:
        print(json.dumps(result))
        return
    print(f"{args.entries} exact entries, batches of {args.batch}; median of {args.rounds} rounds (best)")
    for name in rates:
        print(f"  {name.replace('_', ' '):<17} {result[f'{name}_per_s']:>8,} entries/s  ({result[f'{name}_per_s_best']:,})")
    for name in costs:
        print(
            f"  server's {name:<8} {result[f'{name}_cpu_us']:>8} us CPU an entry, without gRPC  ({result[f'{name}_cpu_us_best']})"
        )


if __name__ == "__main__":
    main()
