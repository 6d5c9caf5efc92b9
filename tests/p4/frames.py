"""Frames for the tests of the switch program, and what must hold of every frame that comes out of it."""

import numpy as np
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.packet import Raw

from dlcp import Policy
from dlcp.wire import codec
from dlcp.wire.header import HEADER, HEADER_BYTES, PacketType

POLICY = Policy()
COOKIE = 0x0123_4567_89AB_CDEF
MACS = {port: f"02:00:0a:00:00:{port:02x}" for port in range(1, 9)}
"""MAC address of the host behind each port."""
ROUTER = "02:00:00:00:ff:01"
GROUP_MAC = "02:00:0a:00:01:00"
"""MAC address of a host that is reached over several paths."""


def header(priority=3, protected=False, kind=PacketType.DATA, **fields):
    """Bytes of a sealed DLCP header."""
    values = dict(type=int(kind), priority=priority, protected=int(protected), source=1, destination=2, cookie=COOKIE)
    values |= dict(operation=7, part=1, length=100_000, offset=1024, sequence=99, timestamp=123_456, stride=1024, bound=3277)
    return codec.encode_header(**values | fields)


def dlcp(
    src=1,
    dst=2,
    *,
    priority=3,
    protected=False,
    kind=PacketType.DATA,
    size=1024,
    ipv6=False,
    vlans=(),
    checksum=True,
    sport=40_001,
    dport=40_002,
    ttl=64,
    ecn=None,
    dscp=None,
    dst_mac=None,
    dst_ip=None,
    payload=None,
    **fields,
):
    """Bytes of an Ethernet frame with a DLCP datagram between the hosts behind two ports, tagged as the policy says."""
    tos = POLICY.tos(priority, protected)
    if dscp is not None:
        tos = dscp << 2 | tos & 3
    if ecn is not None:
        tos = tos & ~3 | ecn
    body = bytes(i & 255 for i in range(size)) if payload is None else payload
    packet = UDP(sport=sport, dport=dport, **({} if checksum else {"chksum": 0}))
    packet /= Raw(header(priority, protected, kind, **fields) + body)
    return bytes(link(src, dst, vlans, dst_mac) / network(src, dst, ipv6, tos, ttl, dst_ip) / packet)


def link(src=1, dst=2, vlans=(), dst_mac=None):
    """Ethernet header with VLAN tags; of two the first is a service tag."""
    layer = Ether(src=MACS[src], dst=dst_mac or MACS[dst])
    for index, vlan in enumerate(vlans):
        layer /= (Dot1AD if index == 0 and len(vlans) == 2 else Dot1Q)(vlan=vlan)
    return layer


def network(src=1, dst=2, ipv6=False, tos=0, ttl=64, dst_ip=None):
    """IPv4 or IPv6 header."""
    if ipv6:
        return IPv6(src=f"fd00::{src}", dst=dst_ip or f"fd00::{dst}", tc=tos, hlim=ttl)
    return IP(src=f"10.0.0.{src}", dst=dst_ip or f"10.0.0.{dst}", tos=tos, ttl=ttl, id=0x1234)


def udp(src=1, dst=2, *, ipv6=False, tos=0, ttl=64, sport=5001, dport=5002, size=100, vlans=(), dst_mac=None, dst_ip=None):
    """Bytes of a frame with an ordinary datagram."""
    inner = UDP(sport=sport, dport=dport) / Raw(b"\xff" * size)
    return bytes(link(src, dst, vlans, dst_mac) / network(src, dst, ipv6, tos, ttl, dst_ip) / inner)


def tcp(src=1, dst=2, *, ipv6=False, tos=0, sport=5001, dport=80, size=100, dst_mac=None):
    """Bytes of a frame with a TCP segment."""
    inner = TCP(sport=sport, dport=dport, seq=1, ack=2, flags="A") / Raw(b"x" * size)
    return bytes(link(src, dst, (), dst_mac) / network(src, dst, ipv6, tos) / inner)


def parse(data):
    """The frame as scapy sees it."""
    return Ether(data)


def ip_layer(packet):
    return packet[IPv6] if IPv6 in packet else packet[IP]


def dlcp_fields(data):
    """Fields of the DLCP header of a frame, by name."""
    raw = bytes(parse(data)[UDP].payload)
    return HEADER.decode_one(raw[:HEADER_BYTES])


def dlcp_payload(data):
    """Bytes behind the DLCP header."""
    return bytes(parse(data)[UDP].payload)[HEADER_BYTES:]


def assert_sound(data):
    """Checks lengths and checksums of a frame by having scapy compute them again, and the check of a DLCP header."""
    packet = parse(data)
    network_layer = ip_layer(packet)
    again = packet.copy()
    if IP in again:
        del again[IP].chksum
        del again[IP].len
    else:
        del again[IPv6].plen
    if UDP in again:
        if again[UDP].chksum != 0:
            del again[UDP].chksum
        del again[UDP].len
    elif TCP in again:
        del again[TCP].chksum
    assert bytes(again) == data
    if UDP in network_layer:
        raw = bytes(packet[UDP].payload)
        if len(raw) >= HEADER_BYTES and raw[0] >> 4 == 1:
            assert codec.check_ok(np.frombuffer(raw[:HEADER_BYTES], np.uint8)[None].copy())[0]
