"""Cost of the header codec in CPU microseconds per packet, by batch size.

    python benchmarks/bench_codec.py [--json]

Prints, for each batch size, what it costs to build sealed data headers, to check them, and to read the columns that a receiver
reads.  The best of several rounds is shown: other work on the machine only ever adds time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence

import numpy as np

from dlcp.wire import codec
from dlcp.wire.header import HEADER, PacketType

READ = ("type", "trimmed", "source", "cookie", "operation", "phase", "dtype", "part", "length", "offset", "sequence", "stride")


def best_us(function: Callable[[], object], packets: int, rounds: int = 7, packets_a_round: int = 65_536) -> float:
    """Returns the lowest CPU microseconds per packet over ``rounds``."""
    repeat = max(1, packets_a_round // packets)
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time_ns()
        for _ in range(repeat):
            function()
        best = min(best, (time.process_time_ns() - start) / repeat / packets / 1000)
    return best


def measure(packets: int) -> dict[str, float]:
    """Measures one batch size."""
    index = np.arange(packets)
    columns = {
        "type": PacketType.DATA,
        "priority": 5,
        "protected": index % 4 == 0,
        "source": 3,
        "destination": 1,
        "cookie": 0x1122334455667788,
        "operation": 17,
        "dtype": 0x81,
        "length": packets * 1424,
        "offset": index * 1424,
        "sequence": index,
        "timestamp": 123456789,
        "stride": 1424,
        "bound": 3277,
    }
    buffer = np.zeros((packets, 1472), np.uint8)
    buffer[:, :48] = codec.encode_headers(packets, **columns)

    def decode() -> None:
        view = codec.records(codec.gather(buffer))
        for name in READ:
            HEADER.get(view, name)

    headers = codec.gather(buffer)
    out = {
        "encode_us": best_us(lambda: codec.encode_headers(packets, **columns), packets),
        "check_us": best_us(lambda: codec.check_ok(headers), packets),
        "decode_us": best_us(decode, packets),
    }
    out["sum_us"] = sum(out.values())
    return {"packets": packets, **out}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    results = [measure(packets) for packets in (1, 8, 44, 256, 1024)]
    if options.json:
        print(json.dumps(results))
        return 0
    print(f"{'packets':>8} {'encode':>8} {'check':>8} {'decode':>8} {'sum':>8}   CPU us per packet")
    for row in results:
        print(f"{row['packets']:>8} " + " ".join(f"{row[k]:>8.3f}" for k in ("encode_us", "check_us", "decode_us", "sum_us")))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
