"""Broken frames into compiled programs: none raises (``fuzz.py`` is the long version)."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch.pipeline import Pipeline
from tests.softswitch import fuzz
from tests.softswitch.random_programs import make_program


@pytest.mark.parametrize("seed", range(3))
def test_the_switch_program_survives_broken_frames(seed):
    random = Random(seed)
    pipeline = Pipeline.load(fuzz.PROGRAM.read_bytes())
    fuzz.populate(pipeline, random)
    results: Counter[str] = Counter()
    fuzz.feed(pipeline, fuzz.frames(random, fuzz.seeds_for(fuzz.PROGRAM)), 0, results)
    assert results["forwarded"] + results["special"] > 100
    assert results["dropped"] == sum(pipeline.runtime.drops[cause] for cause in pipeline.runtime.drops if cause != "egress")


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_random_programs_survive_broken_frames(seed):
    random = Random(seed)
    pipeline = Pipeline.load(json.dumps(make_program(random)))
    fuzz.populate(pipeline, random)
    frames = [frame for frame in fuzz.frames(random, []) if len(frame) < 2000]
    fuzz.feed(pipeline, random.sample(frames, 150), 0, Counter())


def test_the_long_version_runs(capsys):
    assert fuzz.main(["--frames", "2000"]) == 0
    assert "none raised" in capsys.readouterr().out
