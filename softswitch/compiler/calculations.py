"""Source of hashes and checksums over fields, headers and payload.

Fields of headers that are not valid are left out, so the bits after them move up.  The usual case, all headers valid, has an
expression of its own with everything in place; the other one goes through a general function.
"""

from __future__ import annotations

import binascii
import zlib

from softswitch.compiler import hashes, support
from softswitch.compiler.context import Context
from softswitch.compiler.deparser import DeparserCompiler
from softswitch.compiler.expressions import Scope
from softswitch.compiler.packing import Part, pack
from softswitch.compiler.writer import Writer
from softswitch.errors import UnsupportedConstruct
from softswitch.program.ir import CalcInput, Calculation

NO_SCOPE = Scope()
SUMS = ("csum16", "cksum16")


def tail_sum(payload: bytes, shifted: int) -> int:
    """A number that is congruent to the sum of a payload's 16-bit words modulo 65535.

    Args:
        shifted: 1 if the payload starts at the second half of a word, else 0.
    """
    value = int.from_bytes(payload, "big")
    return value << 8 if (len(payload) + shifted) & 1 else value


class CalculationCompiler:
    """Makes source of calculations."""

    def __init__(self, context: Context, deparser: DeparserCompiler) -> None:
        self.context = context
        self.deparser = deparser

    def by_name(self, name: str, scope: Scope) -> str:
        """Source of a named calculation's value."""
        return self.text(self.context.program.calculations[name])

    def text(self, calculation: Calculation) -> str:
        """Source of a calculation's value."""
        headers = self.context.program.headers
        involved: dict[str, None] = {}
        for item in calculation.inputs:
            name = item.field.header if item.field is not None else item.header
            if name is not None and not headers[name].metadata:
                involved[f"v{headers[name].index}"] = None
        payload = any(item.payload for item in calculation.inputs)
        inputs = [item for item in calculation.inputs if not item.payload]
        slow = self._hash(calculation.algorithm, self._general(inputs, payload))
        fixed = self._parts(inputs)
        if fixed is None:
            return slow
        if calculation.algorithm in SUMS:
            fast = self._sum(fixed, payload)
        elif calculation.algorithm == "identity" and not payload and (number := self._number(fixed)) is not None:
            fast = number
        else:
            fast = self._hash(calculation.algorithm, self._bytes(fixed, payload))
        if not involved or fast == slow:
            return fast
        return f"({fast} if {' and '.join(involved)} else {slow})"

    def _hash(self, algorithm: str, data: str) -> str:
        pool = self.context.pool
        if algorithm.startswith("crc32"):
            return f"{pool.function(zlib.crc32)}({data})"
        if algorithm == "crcCCITT":
            return f"{pool.function(binascii.crc_hqx)}({data}, 65535)"
        if algorithm.startswith("round_robin"):
            return f"{pool.add('H', hashes.make(algorithm))}({data})"
        return f"{pool.function(hashes.make(algorithm))}({data})"

    def _payload(self) -> str:
        return "data[Q:Q + TR]" if "TR" in self.context.used else "data[Q:]"

    def _parts(self, inputs: list[CalcInput]) -> list[Part] | None:
        """The inputs with all headers valid, or None if their width depends on the packet."""
        headers = self.context.program.headers
        parts = []
        for item in inputs:
            if item.field is not None:
                described = self.context.program.field(item.field)
                if described.variable:
                    return None
                value = self.context.expressions.unsigned(item.field, NO_SCOPE)
                parts.append(Part(value.text, described.width))
            elif item.header is not None:
                header = headers[item.header]
                if header.type.variable is not None:
                    return None
                parts.append(Part(self.deparser.bytes_of(header), header.type.bits, raw=True))
            else:
                parts.append(Part(repr(item.constant), item.width))
        return parts

    def _sum(self, parts: list[Part], payload: bool) -> str:
        """Internet checksum: 2**16 is 1 modulo 65535, so each field counts with its place in a word, whatever its size."""
        total = sum(part.width for part in parts)
        padded = (total + 15) // 16 * 16
        terms = []
        place = 0
        for part in parts:
            place += part.width
            shift = (padded - place) % 16
            text = f"int.from_bytes({part.text}, 'big')" if part.raw else part.text
            if text == "0":
                continue
            terms.append(f"({text} << {shift!r})" if shift else f"({text})")
        if payload:
            if total % 8:
                raise UnsupportedConstruct("", "checksum with a payload that starts inside a byte")
            terms.append(f"{self.context.pool.function(tail_sum)}({self._payload()}, {int(total % 16 != 0)!r})")
        return f"(-x % 65535 if (x := {' + '.join(terms) or '0'}) else 65535)"

    @staticmethod
    def _number(parts: list[Part]) -> str | None:
        """The parts' bytes as a number, if they are eight at most."""
        bits = sum(part.width for part in parts)
        if bits > 64 or any(part.raw for part in parts):
            return None
        terms = []
        place = (bits + 7) // 8 * 8
        for part in parts:
            place -= part.width
            terms.append(f"({part.text} << {place!r})" if place else f"({part.text})")
        return f"({' | '.join(terms)})"

    def _bytes(self, parts: list[Part], payload: bool) -> str:
        total = sum(part.width for part in parts)
        if total % 8:
            parts = [*parts, Part("0", -total % 8)]
        bits = 0
        for part in parts:
            if part.raw and bits % 8:
                raise UnsupportedConstruct("", "calculation over a header that starts inside a byte")
            bits += part.width
        text = pack(parts, self.context.pool)
        return f"{text} + {self._payload()}" if payload else text

    def _general(self, inputs: list[CalcInput], payload: bool) -> str:
        """Source of the bytes, whatever is valid."""
        headers = self.context.program.headers
        triples = []
        for item in inputs:
            if item.field is not None:
                header = headers[item.field.header]
                valid = "1" if header.metadata else f"v{header.index}"
                described = self.context.program.field(item.field)
                width = f"w{header.index}" if described.variable else repr(described.width)
                value = self.context.expressions.unsigned(item.field, NO_SCOPE).text
                triples.append(f"({valid}, {value}, {width}), ")
            elif item.header is not None:
                header = headers[item.header]
                size = self.deparser.length_of(header)
                data = f"int.from_bytes({self.deparser.bytes_of(header)}, 'big')"
                triples.append(f"(v{header.index}, {data} if v{header.index} else 0, {size}), ")
            else:
                triples.append(f"(1, {item.constant!r}, {item.width!r}), ")
        text = f"{self.context.pool.function(support.bit_string)}(({''.join(triples)}))"
        return f"{text} + {self._payload()}" if payload else text

    def verify(self, writer: Writer) -> None:
        """Adds the verification of all checksums, if the program reads the result."""
        target = self.context.target_field("checksum_error")
        if target is None:
            return
        writer.line(f"{target} = 0")
        for checksum in self.context.program.checksums:
            if not checksum.verify:
                continue
            header = self.context.program.headers[checksum.target.header]
            tests = [] if header.metadata else [f"v{header.index}"]
            if checksum.condition is not None:
                tests.append(self.context.expressions.boolean(checksum.condition, NO_SCOPE))
            value = self.context.expressions.data(checksum.target, NO_SCOPE).text
            tests.append(f"{self.by_name(checksum.calculation, NO_SCOPE)} != {value}")
            with writer.block(f"if {' and '.join(tests)}:"):
                writer.line(f"{target} = 1")

    def update(self, writer: Writer) -> None:
        """Adds the update of all checksums."""
        program = self.context.program
        for checksum in program.checksums:
            ref = checksum.target
            if not checksum.update or not self.context.layout.is_live(ref.header, ref.field):
                continue
            width = program.field(ref).width
            value = self.by_name(checksum.calculation, NO_SCOPE)
            if width < 64 and not (width >= 16 and program.calculations[checksum.calculation].algorithm in SUMS):
                value += f" & {(1 << width) - 1!r}"
            header = program.headers[ref.header]
            condition = None
            if checksum.condition is not None:
                condition = self.context.expressions.boolean(checksum.condition, NO_SCOPE)
            elif not header.metadata:
                condition = f"v{header.index}"
            local = self.context.layout.name(ref.header, ref.field)
            if condition in (None, "True"):
                self._renew(writer, local, value, header.index)
            else:
                with writer.block(f"if {condition}:"):
                    self._renew(writer, local, value, header.index)

    @staticmethod
    def _renew(writer: Writer, local: str, value: str, index: int) -> None:
        """Sets a checksum; the header counts as changed only if the checksum did."""
        writer.line(f"y = {value}")
        with writer.block(f"if y != {local}:"):
            writer.line(f"{local} = y")
            writer.line(f"D = d{index} = 1")
