"""Random programs on the softswitch and on BMv2's simple_switch: the same packet comes out of the same port."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from random import Random

import pytest

from softswitch.pipeline import Pipeline
from tests.softswitch.files_switch import make_defined, simple_switch
from tests.softswitch.random_programs import make_packet
from tests.softswitch.test_compiler_random import run

PATIENCE = 20
"""Seconds until a packet that must come out has come out."""

DROPPED = 0.5
"""Seconds without a packet after which one counts as dropped: too short a time can only hide a difference, not make one."""


def compare(folder: Path, seed: int) -> None:
    random = Random(seed)
    program = make_defined(random)
    packet = make_packet(random)
    while len(packet) < 14:
        packet = make_packet(random)
    ours = run(Pipeline.load(json.dumps(program)), packet, 1)
    if ours is not None and not ours[1]:
        return  # A capture file cannot show a packet of no bytes.
    ports = {0, 2, 3} if ours is None else {ours[0]}
    theirs = simple_switch(folder, program, packet, 1, ports, DROPPED if ours is None else PATIENCE)
    assert theirs == ([] if ours is None else [ours]), packet.hex()


@pytest.mark.skipif(shutil.which("simple_switch") is None, reason="simple_switch is not on PATH")
@pytest.mark.parametrize("part", range(4))
def test_random_programs_do_the_same_on_bmv2(tmp_path, part):
    for number in range(6):
        folder = tmp_path / str(number)
        folder.mkdir()
        compare(folder, zlib.crc32(b"%d.%d" % (part, number)))
