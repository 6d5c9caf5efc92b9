"""Hash algorithms that simple_switch knows, as functions of bytes."""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Callable

Hash = Callable[[bytes], int]
_MASK64 = (1 << 64) - 1


def _reflect(value: int, bits: int) -> int:
    return int(f"{value:0{bits}b}"[::-1], 2)


def _reflected_table(polynomial: int, bits: int) -> tuple[int, ...]:
    """Table of a reflected CRC."""
    reversed_polynomial = _reflect(polynomial, bits)
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (reversed_polynomial if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC16 = _reflected_table(0x8005, 16)
_CRC64 = _reflected_table(0x1B, 64)


def crc16(data: bytes) -> int:
    """CRC-16/ARC."""
    table = _CRC16
    value = 0
    for byte in data:
        value = value >> 8 ^ table[(value ^ byte) & 255]
    return value


def crc64(data: bytes) -> int:
    """Reflected CRC of polynomial 0x1b without initial or final value: what ``crc64_custom`` is before it is configured."""
    table = _CRC64
    value = 0
    for byte in data:
        value = value >> 8 ^ table[(value ^ byte) & 255]
    return value


def crc8(data: bytes) -> int:
    """CRC-8 of polynomial 0x07: what ``crc8_custom`` is before it is configured."""
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value << 1 ^ 7) & 255 if value & 128 else value << 1
    return value


def crc_ccitt(data: bytes) -> int:
    """CRC-16/CCITT-FALSE."""
    return binascii.crc_hqx(data, 0xFFFF)


def csum16(data: bytes) -> int:
    """Internet checksum (RFC 1071); an odd last byte is the high half of a word."""
    if len(data) & 1:
        data += b"\0"
    total = int.from_bytes(data, "big")
    return -total % 65535 if total else 65535


def identity(data: bytes) -> int:
    """The first eight bytes as a number."""
    return int.from_bytes(data[:8], "big")


def _xor(size: int) -> Hash:
    def xor(data: bytes) -> int:
        data += bytes(-len(data) % size)
        value = 0
        for start in range(0, len(data), size):
            value ^= int.from_bytes(data[start : start + size], "big")
        return value

    return xor


def hash_ex(data: bytes) -> int:
    """The FNV-like hash of simple_switch's sources (bytes count as signed there)."""
    value = 2166136261
    for byte in data:
        value = ((value ^ (byte | 0xFFFFFF00 if byte > 127 else byte)) * 16777619) & 0xFFFFFFFF
    value = (value + (value << 13)) & 0xFFFFFFFF
    value ^= value >> 7
    value = (value + (value << 3)) & 0xFFFFFFFF
    value ^= value >> 17
    return (value + (value << 5)) & 0xFFFFFFFF


_P1, _P2, _P3, _P4, _P5 = (
    11400714785074694791,
    14029467366897019727,
    1609587929392839161,
    9650029242287828579,
    2870177450012600261,
)


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK64


def _round(lane: int, word: int) -> int:
    return _rotate((lane + word * _P2) & _MASK64, 31) * _P1 & _MASK64


def xxh64(data: bytes) -> int:
    """XXH64 with seed 0 (xxHash specification)."""
    size = len(data)
    position = 0
    if size >= 32:
        lanes = [(_P1 + _P2) & _MASK64, _P2, 0, -_P1 & _MASK64]
        while position + 32 <= size:
            for place in range(4):
                word = int.from_bytes(data[position : position + 8], "little")
                lanes[place] = _round(lanes[place], word)
                position += 8
        value = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK64
        for lane in lanes:
            value = ((value ^ _round(0, lane)) * _P1 + _P4) & _MASK64
    else:
        value = _P5
    value = (value + size) & _MASK64
    while position + 8 <= size:
        value = (_rotate(value ^ _round(0, int.from_bytes(data[position : position + 8], "little")), 27) * _P1 + _P4) & _MASK64
        position += 8
    if position + 4 <= size:
        value ^= int.from_bytes(data[position : position + 4], "little") * _P1 & _MASK64
        value = (_rotate(value, 23) * _P2 + _P3) & _MASK64
        position += 4
    for byte in data[position:]:
        value = _rotate(value ^ byte * _P5 & _MASK64, 11) * _P1 & _MASK64
    value = (value ^ value >> 33) * _P2 & _MASK64
    value = (value ^ value >> 29) * _P3 & _MASK64
    return value ^ value >> 32


def toeplitz(data: bytes) -> int:
    """The Toeplitz hash with BMv2's initial key, which is all zeros."""
    return 0


def make(algorithm: str) -> Hash:
    """The function of an algorithm; those with memory get one of their own each time."""
    if algorithm == "round_robin":
        return _round_robin()
    if algorithm == "round_robin_consistent":
        return _round_robin_consistent()
    return HASHES[algorithm]


def _round_robin() -> Hash:
    count = -1

    def next_number(data: bytes) -> int:
        nonlocal count
        count += 1
        return count

    return next_number


MAX_REMEMBERED = 1 << 16


def _round_robin_consistent() -> Hash:
    numbers: dict[bytes, int] = {}

    def number(data: bytes) -> int:
        if data not in numbers and len(numbers) >= MAX_REMEMBERED:
            numbers.clear()
        return numbers.setdefault(data, len(numbers))

    return number


HASHES: dict[str, Hash] = {
    "xxh64": xxh64,
    "bmv2_hash": xxh64,
    "crc16": crc16,
    "crc16_custom": crc16,
    "crc32": zlib.crc32,
    "crc32_custom": zlib.crc32,
    "crc64_custom": crc64,
    "crc8_custom": crc8,
    "crcCCITT": crc_ccitt,
    "csum16": csum16,
    "cksum16": csum16,
    "toeplitz": toeplitz,
    "identity": identity,
    "xor16": _xor(2),
    "xor32": _xor(4),
    "hash_ex": hash_ex,
}
"""Algorithms without memory."""
