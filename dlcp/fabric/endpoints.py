"""Where switches are reached, and how: addresses from the topology or the command line; TLS, or plain text on this host only."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from dlcp.errors import ConfigError
from dlcp.fabric.intent import DEPLOYABLE
from dlcp.topology import Topology
from dlcp.topology.addresses import Endpoint


@dataclass(frozen=True)
class TLS:
    """Certificates, as files in PEM.

    Attributes:
        ca: Authority that has signed the switches' certificates; None takes the system's.
        certificate: The controller's own, for mutual TLS.
        key: Its private key.
        name: Name that the switches' certificates bear, if it is not that of the address.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    name: str = ""


@dataclass(frozen=True)
class Target:
    """A switch that can be reached.

    Attributes:
        name: Its name in the topology.
        address: Host and port of its P4Runtime server.
        device_id: P4Runtime's.
        tls: Certificates; None is plain text.
    """

    name: str
    address: str
    device_id: int
    tls: TLS | None = None


def targets(
    topology: Topology,
    *,
    at: Mapping[str, str] | None = None,
    only: Collection[str] = (),
    tls: TLS | None = None,
    insecure: bool = False,
) -> list[Target]:
    """Returns the switches that P4Runtime reaches.

    Args:
        topology: The network.
        at: Addresses in place of those of the topology, by switch.
        only: Switches that are meant; all if empty.
        tls: Certificates for all of them.
        insecure: Plain text is allowed to addresses other than this host's.

    Raises:
        ConfigError: A switch is unknown, has no address or no P4Runtime, or would be spoken to in plain text over the network.
    """
    source = f"topology {topology.name}"
    given = dict(at or {})
    names = [switch.name for switch in topology.switches]
    for name in (*given, *only):
        if name not in names:
            raise ConfigError(source, "switches", f"there is no switch {name!r}", ", ".join(names) or "a topology with switches")
    found = []
    for index, switch in enumerate(topology.switches):
        if only and switch.name not in only:
            continue
        where = f"switches[{index}]"
        if switch.target not in DEPLOYABLE:
            if switch.name in only:
                problem = f'{switch.name} is a "{switch.target}" switch, which has no P4Runtime'
                raise ConfigError(source, f"{where}.target", problem, "dlcp switch export for such switches")
            continue
        address = Endpoint().parse(given.get(switch.name, switch.grpc), f"--at {switch.name}")
        if not address:
            accepted = f"grpc in the topology, or --at {switch.name}=HOST:PORT"
            raise ConfigError(source, f"{where}.grpc", f"{switch.name} has no address", accepted)
        if tls is None and not insecure and not is_local(address):
            problem = f"{switch.name} at {address} is not on this host, and plain text would let anyone on the way reprogram it"
            raise ConfigError(source, f"{where}.grpc", problem, "--tls-ca FILE for TLS, or --insecure")
        found.append(Target(switch.name, address, topology.device_ids[switch.name], tls))
    if not found:
        raise ConfigError(source, "switches", "no switch has P4Runtime", f"a switch with a target of {', '.join(DEPLOYABLE)}")
    return found


def is_local(address: str) -> bool:
    """Whether an address with a port is one of this host's loopback."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_certificates(tls: TLS) -> None:
    """Finds out that the files can be read.

    Raises:
        ConfigError: One cannot, or a certificate comes without its key.
    """
    if (tls.certificate is None) != (tls.key is None):
        missing = "--tls-key" if tls.key is None else "--tls-cert"
        raise ConfigError("(command line)", missing, "is missing", "a certificate and its key together")
    for option, file in (("--tls-ca", tls.ca), ("--tls-cert", tls.certificate), ("--tls-key", tls.key)):
        if file is None:
            continue
        try:
            file.read_bytes()
        except OSError as error:
            raise ConfigError(file, option, f"cannot be read: {error.strerror}", "a file in PEM") from None


__all__ = ["TLS", "Target", "is_local", "read_certificates", "targets"]
