"""Runs a switch over capture files instead of interfaces, in the time of the captures.

Frames arrive when their time stamps say, links and queues keep that time, and what leaves is stamped with it: the same files give
the same files, on any machine and however busy it is.  Frames with equal stamps arrive by port number, then by position.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from softswitch.ports.pcap import PcapWriter, read_pcap
from softswitch.switch import Switch


def replay(switch: Switch, inputs: Mapping[int, Path], outputs: Mapping[int, Path]) -> int:
    """Feeds captures to a switch and writes what it sends, until nothing is left in it.

    Args:
        switch: With a port for each number.  Its clock stands still meanwhile: the first frame arrives at what it shows.
        inputs: Port to the capture of what arrives there.
        outputs: Port to the capture to write.

    Returns:
        Frames that arrived.

    Raises:
        PortError: A capture that cannot be read or written.
    """
    arrivals = sorted(
        ((time, port, index, frame) for port, path in inputs.items() for index, (time, frame) in enumerate(read_pcap(path))),
        key=lambda arrival: arrival[:3],
    )
    base = switch.clock()
    epoch = arrivals[0][0] if arrivals else 0
    with ExitStack() as stack:
        writers = {port: stack.enter_context(PcapWriter(path)) for port, path in outputs.items()}

        def take(now: int) -> None:
            for number, frame in switch.transmit(now):
                if number in writers:
                    writers[number].write(now - base + epoch, (frame,))

        def run_until(end: int | None) -> None:
            while (due := switch.next_timer()) is not None and (end is None or due <= end):
                take(due)

        for time, port, _, frame in arrivals:
            now = base + time - epoch
            run_until(now)
            switch.receive(port, frame, now)
            take(now)
        run_until(None)
    return len(arrivals)


__all__ = ["replay"]
