"""Process groups of a schedule, and a process group that follows one.  Importing this registers the backend ``dssync``."""

from dssync.groups.link import GroupLink, Missing, TorchLink
from dssync.groups.members import GroupSet
from dssync.groups.shuffle import ShuffleOptions, ShuffleProcessGroup, register

register()

__all__ = ["GroupLink", "GroupSet", "Missing", "ShuffleOptions", "ShuffleProcessGroup", "TorchLink", "register"]
