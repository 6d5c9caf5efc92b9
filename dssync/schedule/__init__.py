"""Who averages with whom in which round: pure functions of the number of ranks and the number of the round."""

from dssync.schedule.base import Group, Round, Schedule
from dssync.schedule.basek import BaseK
from dssync.schedule.domains import Domains, domains_of_size
from dssync.schedule.make import KINDS, make_schedule, restore_schedule
from dssync.schedule.shuffled import Shuffled
from dssync.schedule.simple import BSP, Digits

__all__ = [
    "BSP",
    "KINDS",
    "BaseK",
    "Digits",
    "Domains",
    "Group",
    "Round",
    "Schedule",
    "Shuffled",
    "domains_of_size",
    "make_schedule",
    "restore_schedule",
]
