"""Frames for ``programs/steer.p4``, which say themselves where they go."""

import struct
from pathlib import Path

JSON = Path(__file__).parent / "programs" / "steer.json"
P4INFO = JSON.with_suffix(".p4info.txtpb")
SEND, DROP, REPLICATE, COPY, RESUBMIT = range(5)
STAY, VANISH, COPY_AFTER, RECIRCULATE, CUT = range(5)
_STEP = struct.Struct("!BBBBBBHHHII")
_NAMES = ("kind", "port", "priority", "after", "number", "instance", "rid", "before", "behind", "waited", "tag")


def frame(port, priority=0, *, kind=SEND, after=STAY, number=0, tag=0, length=60):
    head = bytes(12) + b"\x88\x88" + _STEP.pack(kind, port, priority, after, number, 0, 0, 0, 0, 0, tag)
    return head + bytes(length - len(head))


def fields(data):
    return dict(zip(_NAMES, _STEP.unpack_from(data, 14), strict=True))
