"""Patterns that stand for themselves: permutation and incast."""

from __future__ import annotations

import random

from sim.messages import Message


def permutation(hosts: int, size: int, seed: int = 0) -> list[Message]:
    """Every host sends to one other, and receives from one: a cycle through all hosts in random order.

    Raises:
        ValueError: There are fewer than two hosts.
    """
    if hosts < 2:
        raise ValueError(f"{hosts} hosts have nobody to send to")
    order = list(range(hosts))
    random.Random(seed).shuffle(order)
    following = {host: order[(place + 1) % hosts] for place, host in enumerate(order)}
    return [Message(host, following[host], size, group="permutation") for host in range(hosts)]


def incast(hosts: int, fan_in: int, size: int, receiver: int = 0) -> list[Message]:
    """``fan_in`` hosts send to one at once.

    Raises:
        ValueError: There are not as many other hosts.
    """
    if not 1 <= fan_in < hosts:
        raise ValueError(f"a fan-in of {fan_in} with {hosts} hosts; from 1 to {hosts - 1}")
    senders = [host for host in range(hosts) if host != receiver][:fan_in]
    return [Message(sender, receiver, size, group="incast") for sender in senders]


__all__ = ["incast", "permutation"]
