"""A Thrift client for the registers of BMv2, which its P4Runtime server does not serve."""

from __future__ import annotations

import socket
import struct

from tests.softswitch.targets import Refused, eventually

PATIENCE = 20


class Thrift:
    """The calls on registers that we need, in Thrift's binary protocol."""

    STOP, I32, I64, STRING, LIST = 0, 8, 10, 11, 15

    def __init__(self, port):
        eventually(lambda: self._connect(port))

    def _connect(self, port):
        try:
            self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        except ConnectionRefusedError:
            return False
        return True

    def close(self):
        self.socket.close()

    def call(self, method, *arguments):
        """Arguments are (type, value); returns the numbers that come back."""
        name = f"standard:{method}".encode()
        message = struct.pack(">II", 0x80010001, len(name)) + name + bytes(4)
        for number, (kind, value) in enumerate(arguments, 1):
            message += struct.pack(">Bh", kind, number)
            if kind == self.STRING:
                message += struct.pack(">I", len(value)) + value.encode()
            else:
                message += struct.pack(">i" if kind == self.I32 else ">q", value)
        self.socket.sendall(message + b"\0")
        version, length = struct.unpack(">II", self._read(8))
        assert version & 0xFFFF0000 == 0x80010000
        self._read(length + 4)
        if version & 0xFF != 2:
            raise Refused(f"Thrift exception from {method}")
        kind = self._read(1)[0]
        if kind == self.STOP:
            return []
        (field,) = struct.unpack(">h", self._read(2))
        if field != 0:
            self.socket.close()
            raise Refused(f"{method} failed")
        count = struct.unpack(">BI", self._read(5))[1] if kind == self.LIST else 1
        values = struct.unpack(f">{count}q", self._read(8 * count))
        assert self._read(1) == b"\0"
        return [value % (1 << 64) for value in values]

    def _read(self, size):
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            assert piece, "Thrift server hung up"
            data += piece
        return data
