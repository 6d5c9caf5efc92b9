"""Traffic: patterns, training jobs and their collectives, background flows."""

from sim.traffic.background import Background, together
from sim.traffic.collectives import COLLECTIVES, ring, sharded
from sim.traffic.job import Job, Ready
from sim.traffic.layout import chosen, places, racks_of, ranks_of, rounds_of
from sim.traffic.pace import Pace
from sim.traffic.patterns import incast, permutation
from sim.traffic.sizes import SIZES, Sizes
from sim.traffic.training import training
from sim.traffic.units import SCHEDULES, Unit, buckets, by_layer, units

__all__ = [
    "COLLECTIVES",
    "SCHEDULES",
    "SIZES",
    "Background",
    "Job",
    "Pace",
    "Ready",
    "Sizes",
    "Unit",
    "buckets",
    "by_layer",
    "chosen",
    "incast",
    "permutation",
    "places",
    "racks_of",
    "ranks_of",
    "ring",
    "rounds_of",
    "sharded",
    "together",
    "training",
    "units",
]
