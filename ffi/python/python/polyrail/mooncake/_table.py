"""How a process tells its peers which addresses it has registered.

Each engine offers a segment named `mooncake`, which peers read: a header and then places of 32 bytes, each empty or one region: its
address, its size and its number, `n`, which is never used again; the region itself is the segment `mooncake-n`. A place is written
while peers may read it, so it ends with a checksum: one that does not fit is read again.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import NamedTuple

import polyrail

NAME = "mooncake"
PLACES = 65_536
"""The most regions that an engine has at a time."""

_PLACE = struct.Struct("<QQQQ")
_MAGIC = int.from_bytes(b"polyrail", "little")
_VERSION = 1
_MASK = (1 << 64) - 1
BYTES = _PLACE.size * (PLACES + 1)
FIRST_LOOK = 4096
"""So many bytes are read at first: the header and 127 places."""


def name_of(number: int) -> str:
    """That of a region's segment."""
    return f"{NAME}-{number}"


def _check(a: int, b: int, c: int) -> int:
    return (a * 0x9E3779B97F4A7C15 ^ b * 0xC2B2AE3D27D4EB4F ^ c * 0x165667B19E3779F9 ^ _MAGIC) & _MASK


def _pack(a: int, b: int, c: int) -> bytes:
    return _PLACE.pack(a, b, c, _check(a, b, c))


class Region(NamedTuple):
    """What a process has registered."""

    address: int
    nbytes: int
    number: int


class Torn(Exception):
    """It was being written meanwhile: read it again."""


class NoTable(Exception):
    """There is no table there that we can read."""


class Table:
    """What this process tells its peers."""

    def __init__(self, engine: polyrail.Engine) -> None:
        self._memory = engine.allocate(BYTES, NAME, access="read")
        self._bytes = memoryview(self._memory).cast("B")
        self._free: list[int] = []
        self._used = 0
        self._write(-1, _pack(_MAGIC, _VERSION, 0))

    def _write(self, place: int, what: bytes) -> None:
        start = _PLACE.size * (place + 1)
        self._bytes[start : start + _PLACE.size] = what

    def add(self, region: Region) -> int:
        """Tells of a region: its place."""
        if self._free:
            place = self._free.pop()
        elif self._used < PLACES:
            place = self._used
            self._used += 1
        else:
            raise polyrail.Unavailable(f"{PLACES} regions are registered, which is as many as can be")
        self._write(place, _pack(*region))
        # Peers look at so many places.
        self._write(-1, _pack(_MAGIC, _VERSION, self._used))
        return place

    def remove(self, place: int) -> None:
        """Tells of it no more."""
        self._write(place, bytes(_PLACE.size))
        self._free.append(place)


def places(header: bytes | memoryview) -> int:
    """How many places a table has, by its header."""
    numbers: tuple[int, int, int, int] = _PLACE.unpack_from(header)
    magic, version, used, check = numbers
    if (magic, version) != (_MAGIC, _VERSION):
        raise NoTable(f"its table of regions begins with {magic:#x}, {version}: {_MAGIC:#x}, {_VERSION} expected")
    if check != _check(magic, version, used) or used > PLACES:
        raise Torn
    return used


class Regions:
    """What a peer has told."""

    def __init__(self, data: bytes | memoryview, used: int) -> None:
        found = []
        for place in range(used):
            address, nbytes, number, check = _PLACE.unpack_from(data, _PLACE.size * (place + 1))
            if not address and not nbytes and not number and not check:
                continue
            if check != _check(address, nbytes, number):
                raise Torn
            found.append(Region(address, nbytes, number))
        self.first = found[0].address if found else 0
        self.numbers = {region.number for region in found}
        self._sorted = sorted(found)
        self._starts = [region.address for region in self._sorted]
        self._longest = max((region.nbytes for region in found), default=0)

    def find(self, address: int, nbytes: int) -> Region | None:
        """One that holds all of these bytes."""
        for index in range(bisect_right(self._starts, address) - 1, -1, -1):
            region = self._sorted[index]
            if address - region.address > self._longest:
                return None
            if address + nbytes <= region.address + region.nbytes:
                return region
        return None
