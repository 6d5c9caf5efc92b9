"""Addresses and numbers of a topology: what they may be, and how those that are not given are chosen.

What is chosen depends only on the description: given values are taken first, then the others take the lowest free ones in the
order of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from itertools import count
from typing import Final

from dlcp.schema import refuse
from dlcp.schema_kinds import Kind, refused

AUTO: Final = "auto"
_MAC: Final = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")
_ENDPOINT: Final = re.compile(r"(?P<host>[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True)
class Address(Kind):
    """An IPv4 address that a host can have."""

    @property
    def accepted(self) -> str:
        return 'an IPv4 address of one host, such as "10.0.0.1"'

    def parse(self, value: object, key: str) -> str:
        if not isinstance(value, str):
            raise refused(key, value, "is not a string", self.accepted)
        try:
            address = IPv4Address(value)
        except AddressValueError:
            raise refused(key, value, "is not an IPv4 address", self.accepted) from None
        if address.is_multicast or address.is_unspecified or address.is_reserved:
            raise refused(key, value, "is no address of one host", self.accepted)
        return str(address)


@dataclass(frozen=True)
class Network(Kind):
    """An IPv4 network."""

    @property
    def accepted(self) -> str:
        return 'an IPv4 network without host bits, such as "10.0.0.0/16", of /8 to /30'

    def parse(self, value: object, key: str) -> str:
        if not isinstance(value, str):
            raise refused(key, value, "is not a string", self.accepted)
        try:
            network = IPv4Network(value)
        except ValueError:
            raise refused(key, value, "is not an IPv4 network", self.accepted) from None
        if not 8 <= network.prefixlen <= 30 or network.is_multicast or network.is_reserved or network.is_unspecified:
            raise refused(key, value, "holds no addresses for hosts, or too many", self.accepted)
        return str(network)


@dataclass(frozen=True)
class MAC(Kind):
    """A MAC address of one interface."""

    @property
    def accepted(self) -> str:
        return 'a MAC address of one interface, such as "02:00:0a:00:00:01"'

    def parse(self, value: object, key: str) -> str:
        if not isinstance(value, str):
            raise refused(key, value, "is not a string", self.accepted)
        if _MAC.fullmatch(value) is None:
            raise refused(key, value, "is not a MAC address", self.accepted)
        if int(value[:2], 16) & 1 or not int(value.replace(":", ""), 16):
            raise refused(key, value, "is a group address, or zero", self.accepted)
        return value.lower()


@dataclass(frozen=True)
class Endpoint(Kind):
    """Where a server listens."""

    @property
    def accepted(self) -> str:
        return 'an address with a port, such as "127.0.0.1:9559" or "[::1]:9559", or "" for none'

    def parse(self, value: object, key: str) -> str:
        if not isinstance(value, str):
            raise refused(key, value, "is not a string", self.accepted)
        match = _ENDPOINT.fullmatch(value)
        if value and (match is None or not 1 <= int(match["port"]) <= 65_535):
            raise refused(key, value, "is not an address with a port", self.accepted)
        return value


def unclaimed(taken: Iterable[int], candidates: Iterable[int]) -> Iterator[int]:
    """Yields the candidates that are not taken."""
    used = set(taken)
    return (number for number in candidates if number not in used)


def host_addresses(given: Sequence[str], subnet: str) -> tuple[str, ...]:
    """Returns an IPv4 address for each host; those given as ``auto`` come from ``subnet``.

    Raises:
        ConfigError: An address is given twice, is the network's own or its broadcast address, or the subnet is too small.
    """
    network = IPv4Network(subnet)
    seen: dict[str, int] = {}
    for index, address in enumerate(given):
        if address == AUTO:
            continue
        if IPv4Address(address) in (network.network_address, network.broadcast_address):
            raise refuse(f"hosts[{index}].ipv4", f"{address} is the network or broadcast address of {network}", "another address")
        if address in seen:
            problem = f"{address} is also the address of hosts[{seen[address]}]"
            raise refuse(f"hosts[{index}].ipv4", problem, "an address of its own")
        seen[address] = index
    first, last = int(network.network_address) + 1, int(network.broadcast_address)
    free = unclaimed((int(IPv4Address(address)) for address in seen), range(first, last))
    result = []
    for address in given:
        number = int(IPv4Address(address)) if address != AUTO else next(free, None)
        if number is None:
            problem = f"{network} has no room for {len(given)} hosts"
            raise refuse("subnet", problem, "a network with an address for every host")
        result.append(str(IPv4Address(number)))
    return tuple(result)


def host_macs(given: Sequence[str], addresses: Sequence[str]) -> tuple[str, ...]:
    """Returns a MAC address for each host: given, or ``02:00`` followed by the four bytes of its IPv4 address.

    Raises:
        ConfigError: Two hosts would have the same.
    """
    result: list[str] = []
    seen: dict[str, int] = {}
    for index, (mac, address) in enumerate(zip(given, addresses, strict=True)):
        if mac == AUTO:
            # Locally administered (bit 1 of the first byte), and readable in a capture.
            mac = ":".join(f"{byte:02x}" for byte in b"\x02\x00" + IPv4Address(address).packed)
        if mac in seen:
            problem = f"{mac} is also the address of hosts[{seen[mac]}]"
            raise refuse(f"hosts[{index}].mac", problem, "an address of its own")
        seen[mac] = index
        result.append(mac)
    return tuple(result)


def device_ids(given: Sequence[str | int], endpoints: Sequence[str]) -> tuple[int, ...]:
    """Returns a P4Runtime device id for each switch: given, or the lowest that is free, from 1.

    Switches that are reached through different servers may have the same.

    Raises:
        ConfigError: Two switches are given the same id with the same server.
    """
    seen: dict[tuple[str, int], int] = {}
    for index, (device, endpoint) in enumerate(zip(given, endpoints, strict=True)):
        if isinstance(device, str):
            continue
        if (endpoint, device) in seen:
            problem = f"{device} is also the device id of switches[{seen[endpoint, device]}]"
            raise refuse(f"switches[{index}].device_id", problem, "an id of its own, or another grpc address")
        seen[endpoint, device] = index
    free = unclaimed((device for _, device in seen), count(1))
    return tuple(next(free) if isinstance(device, str) else device for device in given)


__all__ = ["AUTO", "MAC", "Address", "Endpoint", "Network", "device_ids", "host_addresses", "host_macs", "unclaimed"]
