"""Where packets come from and go to: network interfaces, pcap files, memory."""

from softswitch.ports.base import PacketIO
from softswitch.ports.memory import MemoryIO

__all__ = ["MemoryIO", "PacketIO"]
