"""The compiled program: where it is, what it declares, and the cookie by which a switch that runs it is known."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from finsy import P4Schema
from finsy.proto import p4i, p4r
from google.protobuf import text_format

from dlcp.fabric.errors import ProgramMissing

NAME: Final = "dlcp"
_INSTALLED: Final = "share/dlcp/p4/build/"


@dataclass(frozen=True)
class Program:
    """P4Info and the target's own part.

    Attributes:
        source: Where it was read from.
        info: P4Info as text.
        config: What the target runs; for v1model, BMv2's JSON.
    """

    source: str
    info: str
    config: bytes

    @cached_property
    def p4info(self) -> p4i.P4Info:
        """P4Info, parsed."""
        try:
            info: p4i.P4Info = text_format.Parse(self.info, p4i.P4Info())
        except text_format.ParseError as error:
            raise ProgramMissing(f"{self.source} holds no P4Info: {error}; build it again with make p4") from None
        return info

    @cached_property
    def schema(self) -> P4Schema:
        """P4Info, by name."""
        return P4Schema(self.p4info)

    @cached_property
    def cookie(self) -> int:
        """64 bits that differ if the program does; never 0, which switches without a program have."""
        digest = hashlib.sha256(self.p4info.SerializeToString(deterministic=True) + b"\0" + self.config).digest()
        return int.from_bytes(digest[:8], "big") or 1

    def pipeline(self) -> p4r.ForwardingPipelineConfig:
        """Returns what SetForwardingPipelineConfig takes."""
        cookie = p4r.ForwardingPipelineConfig.Cookie(cookie=self.cookie)
        return p4r.ForwardingPipelineConfig(p4info=self.p4info, p4_device_config=self.config, cookie=cookie)


def folder() -> Path:
    """Returns where the compiled program is: in the source tree, or where the wheel put it.

    Raises:
        ProgramMissing: It is in neither place.
    """
    tree = Path(__file__).resolve().parents[2] / "p4" / "build"
    if (tree / f"{NAME}.json").is_file():
        return tree
    try:
        installed = distribution("dlcp")
    except PackageNotFoundError:
        installed = None
    for file in (installed.files if installed else None) or ():
        if file.as_posix().endswith(f"{_INSTALLED}{NAME}.json"):
            return Path(str(file.locate())).resolve().parent
    raise ProgramMissing(f"{NAME}.json is neither in {tree} nor installed; build it with make p4, or install dlcp again")


def paths(place: Path | None = None) -> tuple[Path, Path]:
    """Returns the files: P4Info, and the target's part."""
    place = folder() if place is None else place
    return place / f"{NAME}.p4info.txtpb", place / f"{NAME}.json"


def load(place: Path | None = None) -> Program:
    """Reads the program.

    Raises:
        ProgramMissing: It cannot be read.
    """
    info, config = paths(place)
    try:
        return Program(str(info), info.read_text(encoding="utf-8"), config.read_bytes())
    except (OSError, UnicodeDecodeError) as error:
        raise ProgramMissing(f"{info.parent}: {error}; build it with make p4") from None


__all__ = ["NAME", "Program", "folder", "load", "paths"]
