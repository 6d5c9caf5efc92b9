"""Feeds broken frames to compiled programs: nothing may raise.

``python -m tests.softswitch.fuzz --frames 10000000`` runs for about a minute a program and core; the test suite runs a short
version.  Frames are random bytes, truncated and damaged versions of frames that the program's parser likes, and frames of extreme
length; tables are filled with random entries, so that actions run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

from softswitch.errors import SwitchError
from softswitch.pipeline import Outcome, Pipeline
from softswitch.program.model import KeyField, TableModel
from softswitch.runtime import Call, GroupMember, GroupRef, MemberRef, MeterConfig

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "p4" / "build" / "dlcp.json"
LENGTHS = [0, 1, 13, 14, 15, 33, 34, 41, 42, 60, 64, 89, 90, 128, 256, 1450, 9000, 65535]
WORDS = [b"\x08\x00", b"\x86\xdd", b"\x81\x00", b"\x08\x06", b"\x45\x00", b"\x60\x00", b"\x11", b"\x06", b"\xff\xff", b"\0\0"]


def value(random: Random, width: int) -> int:
    """A number of at most ``width`` bits, often a small or a large one."""
    full = (1 << width) - 1
    return random.choice([0, 1, 2, 3, full, full - 1, random.getrandbits(width), 0x0800, 17, 6]) & full


def match_item(random: Random, key: KeyField) -> object:
    number = value(random, key.width)
    if key.mask is not None:
        number &= key.mask
    match key.kind:
        case "exact":
            return number
        case "lpm":
            length = random.randint(0, key.width)
            return (number >> (key.width - length) << (key.width - length), length)
        case "ternary":
            mask = random.choice([0, (1 << key.width) - 1, random.getrandbits(key.width)])
            return (number & mask, mask)
        case "range":
            return (number, max(number, value(random, key.width)))
    return random.choice([None, number])


def call(random: Random, table: TableModel) -> Call:
    index = random.randrange(len(table.actions))
    return Call(index, tuple(value(random, parameter.width) for parameter in table.actions[index].parameters))


def populate(pipeline: Pipeline, random: Random, entries: int = 12) -> None:
    """Fills tables, profiles, meters and value sets with random contents; what a table refuses is left out."""
    runtime = pipeline.runtime
    for name, table in runtime.tables.items():
        model = table.model
        profile = runtime.profiles.get(model.profile or "")
        if profile is not None and not profile.members and model.actions:
            for number in range(1, 6):
                profile.insert_member(number, call(random, model))
            if profile.selects:
                profile.insert_group(1, [GroupMember(number) for number in range(1, 6)])
        for priority in range(entries if model.keys else 0):
            match = tuple(match_item(random, key) for key in model.keys)
            action: object = call(random, model)
            if profile is not None:
                action = GroupRef(1) if profile.selects and random.random() < 0.6 else MemberRef(random.randint(1, 5))
            ranked = priority + 1 if model.match in ("ternary", "range") else 0
            try:
                table.insert(match, ranked, action)  # type: ignore[arg-type]
            except SwitchError:
                continue
        if not model.default_const and model.kind == "simple" and random.random() < 0.5:
            runtime.tables[name].set_default(call(random, model))
    for meter in runtime.meters.values():
        meter.write(None, MeterConfig(1000, 2000, 2000, 3000))
    for value_set in runtime.value_sets.values():
        value_set.set(sorted({value(random, value_set.model.width) for _ in range(3)})[: value_set.model.size])


def frames(random: Random, seeds: list[bytes]) -> list[bytes]:
    """Some thousand frames."""
    made = []
    for _ in range(1000):
        length = random.choice(LENGTHS[:-3])
        made.append(random.randbytes(length))
        made.append(b"".join(random.choice(WORDS) for _ in range(length // 2)))
        made.append(bytes([random.choice([0, 1, 255])]) * length)
        if seeds:
            seed = random.choice(seeds)
            made.append(seed[: random.randrange(len(seed) + 1)])
            damaged = bytearray(seed)
            for _ in range(random.randint(1, 6)):
                if damaged:
                    damaged[random.randrange(min(len(damaged), 120))] = random.choice([0, 1, 255, random.getrandbits(8)])
            made.append(bytes(damaged))
    made += [bytes(length) for length in LENGTHS] + [b"\xff" * length for length in LENGTHS]
    random.shuffle(made)
    return made


def feed(pipeline: Pipeline, batch: list[bytes], now: int, results: Counter[str]) -> None:
    """Sends frames through ingress and egress, and what comes of them.

    Raises:
        Exception: Whatever compiled code raises, with the frame that did it.
    """
    ingress, egress = pipeline.ingress, pipeline.egress
    for data in batch:
        now += 1
        try:
            result = ingress(data, now & 7, now)
            if result is None:
                results["dropped"] += 1
                continue
            if isinstance(result, Outcome):
                results["special"] += 1
                phvs = [phv for _, phv in result.clones]
                phvs += [item[2] for item in (result.multicast, result.unicast) if item is not None]
                if result.resubmit is not None:
                    ingress(data, 0, now, 6, result.resubmit)
                for phv in phvs:
                    sent = egress(phv, 1, now, 1, 5, 0, now, 3, 4, 5)
                    if isinstance(sent, Outcome) and sent.recirculate is not None:
                        ingress(sent.recirculate[0], 0, now, 4, sent.recirculate[1])
            else:
                results["forwarded"] += 1
                sent = egress(result[2], result[0], now, 0, -1, result[1], now, 3, 4, 5)
                if isinstance(sent, Outcome) and sent.recirculate is not None:
                    ingress(sent.recirculate[0], 0, now, 4, sent.recirculate[1])
        except Exception as error:
            error.add_note(f"frame: {data[:200].hex()} ({len(data)} bytes)")
            raise


def main(arguments: list[str] | None = None) -> int:
    """Runs until the wanted number of frames went through."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--frames", type=float, default=1e6, help="frames a program (default: 1e6)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("programs", nargs="*", type=Path, default=[PROGRAM], help="BMv2 JSON files (default: dlcp.json)")
    options = parser.parse_args(arguments)
    random = Random(options.seed)
    for path in options.programs:
        pipeline = Pipeline.load(path.read_bytes())
        populate(pipeline, random)
        results: Counter[str] = Counter()
        start = time.monotonic()
        while (sent := sum(results.values())) < options.frames:
            batch = frames(random, seeds_for(path))
            feed(pipeline, batch * 4, sent, results)
        seconds = time.monotonic() - start
        drops = dict(pipeline.runtime.drops)
        print(f"{path.name}: {sent} frames in {seconds:.0f} s, none raised: {dict(results)}, drops {drops}")
    return 0


def seeds_for(path: Path) -> list[bytes]:
    """Frames that a program's parser goes through to its end."""
    if path.name != PROGRAM.name:
        return []
    ethernet = bytes.fromhex("020000000002020000000001")
    ipv4 = bytes.fromhex("4500005c00010000401100000a0000010a000002")
    ipv6 = bytes.fromhex("6000000000481140") + bytes(15) + b"\1" + bytes(15) + b"\2"
    udp = bytes.fromhex("9c419c4200480000")
    header = bytes.fromhex("1018") + bytes(46)
    tcp = bytes.fromhex("9c419c42") + bytes(16)
    inner = [b"\x08\x00" + ipv4 + udp + header, b"\x86\xdd" + ipv6 + udp + header]
    inner.append(b"\x08\x00" + ipv4[:9] + b"\6" + ipv4[10:] + tcp)
    inner += [b"\x81\x00\x00\x07" + item for item in inner] + [b"\x88\xa8\0\5\x81\0\0\7" + item for item in inner]
    return [ethernet + item + bytes(100) for item in inner]


if __name__ == "__main__":
    sys.exit(main())
