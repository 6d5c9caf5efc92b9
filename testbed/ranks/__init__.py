"""Ranks of a training in the hosts of a lab: forked from a process that has torch loaded, or under torchrun."""
