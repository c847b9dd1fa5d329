"""What is known of peers: who answers where, and which segments their addresses are."""

from __future__ import annotations

import threading
import time

import polyrail
from polyrail._native import Regions as Ranges
from polyrail.mooncake import _table

LOOK_WITHIN = 5.0
"""Seconds that a peer's table may take to come."""


class Unregistered(Exception):
    """An address that the process which should have it has not registered."""


class Peer:
    """A process that we have reached, until it is lost."""

    def __init__(self, session: str, engine: polyrail.Engine) -> None:
        self.session = session
        self.ranges = Ranges()
        self._engine = engine
        self.table = engine.open(f"{session}/{_table.NAME}")
        self._opened: dict[int, tuple[int, polyrail.Remote]] = {}
        self._lock = threading.Lock()

    def learn(self, look: Look, addresses: list[int], lengths: list[int]) -> None:
        """Makes sure that transfers to these addresses find their segments. Raises `Unregistered`."""
        with self._lock:
            missing = self.ranges.missing(addresses, lengths)
            if not missing:
                return
            regions = look.at(self.table)
            added: list[_table.Region] = []
            for index in missing:
                address, nbytes = addresses[index], lengths[index]
                if added and added[-1].address <= address and address + nbytes <= added[-1].address + added[-1].nbytes:
                    continue
                region = regions.find(address, nbytes)
                if region is None:
                    raise Unregistered(f"{nbytes} bytes from {address:#x} on are in no region that {self.session} has registered")
                if region.number in self._opened:
                    continue
                segment = self._engine.open(f"{self.session}/{_table.name_of(region.number)}")
                self._opened[region.number] = (region.address, segment)
                self.ranges.add(region.address, region.nbytes, segment)
                added.append(region)

    def forget_what_has_gone(self, look: Look) -> bool:
        """Looks which regions are not registered any more: whether there are some."""
        with self._lock:
            gone = self._opened.keys() - look.at(self.table).numbers
            for number in gone:
                address, segment = self._opened.pop(number)
                self.ranges.remove(address, segment)
                try:
                    segment.close()
                except polyrail.InUse:
                    # By another thread's transfer, which will fail as well.
                    pass
            return bool(gone)


class Look:
    """Reads peers' tables, one after the other, into memory of its own."""

    def __init__(self, engine: polyrail.Engine) -> None:
        self._engine = engine
        self._memory = engine.allocate(_table.BYTES)
        self._bytes = memoryview(self._memory).cast("B")
        self._lock = threading.Lock()

    def at(self, table: polyrail.Remote) -> _table.Regions:
        """What is in a table now."""
        with self._lock:
            end = time.monotonic() + LOOK_WITHIN
            while True:
                try:
                    return self._once(table, end)
                except _table.Torn:
                    if time.monotonic() > end:
                        raise _table.NoTable("its table of regions is never whole") from None

    def _once(self, table: polyrail.Remote, end: float) -> _table.Regions:
        self._read(table, 0, _table.FIRST_LOOK, end)
        used = _table.places(self._bytes)
        size = 32 * (used + 1)
        if size > _table.FIRST_LOOK:
            self._read(table, _table.FIRST_LOOK, size - _table.FIRST_LOOK, end)
        return _table.Regions(self._bytes, used)

    def _read(self, table: polyrail.Remote, offset: int, length: int, end: float) -> None:
        left = max(end - time.monotonic(), 0.001)
        batch = self._engine.read(self._memory, table, length, local_offset=offset, remote_offset=offset, deadline=left)
        try:
            batch.wait()
        except polyrail.Indeterminate:
            # It may still come in, over what is read next: other memory for that.
            self._memory = self._engine.allocate(_table.BYTES)
            self._bytes = memoryview(self._memory).cast("B")
            raise
