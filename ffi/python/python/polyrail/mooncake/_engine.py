"""`TransferEngine`, as Mooncake has it, with answers that are true."""

from __future__ import annotations

import ctypes
import itertools
import json
import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import polyrail
from polyrail._native import Regions as Ranges
from polyrail._native import submit_at
from polyrail.mooncake import _settings, _table, _types
from polyrail.mooncake._peers import Look, Peer, Unregistered
from polyrail.mooncake._types import TransferNotify, TransferOpcode, notification_of, notify_of

log = logging.getLogger("polyrail.mooncake")

RELEASE_WITHIN = 5.0
"""Seconds that a transfer which ended without proof is waited for, until its memory is quarantined."""
PROBE_WITHIN = 0.9
"""Seconds in which a peer that lives answers a probe."""

FAILED = -1
TIMED_OUT = -2
NOT_REGISTERED = -3
BAD_ADDRESS = -101
UNREACHABLE = -102

if TYPE_CHECKING:
    _Op: TypeAlias = Literal["write", "read"]


class Held(NamedTuple):
    """Memory of this process that a transfer may still touch: do not use it, nor free it."""

    session: str
    batch: polyrail.Batch
    ranges: list[tuple[int, int]]
    """Addresses and lengths."""


class _Registered(NamedTuple):
    memory: polyrail.Memory
    region: _table.Region
    place: int


class _Transfer(NamedTuple):
    """One that was started."""

    session: str
    op: _Op
    batch: polyrail.Batch | None
    buffers: Sequence[int]
    lengths: Sequence[int]


class _Running:
    """What there is once `initialize` has been called."""

    def __init__(self, hostname: str, protocol: str, devices: str) -> None:
        config = _settings.keys(protocol, devices)
        why: polyrail.Error | None = None
        for address in _settings.listen_addresses(hostname):
            try:
                self.engine = polyrail.Engine(config, name=f"mooncake-{hostname}", listen=address)
                break
            except polyrail.Unavailable as error:
                why = error
        else:
            raise why or polyrail.Unavailable("no port is free in MC_MIN_RPC_PORT to MC_MAX_RPC_PORT")
        self.port = int(str(self.engine.listening).rpartition(":")[2])
        self.ranges = Ranges()
        self.table = _table.Table(self.engine)
        self.look = Look(self.engine)
        self.notifications = self.engine.notifications()
        self.registered: dict[int, list[_Registered]] = {}
        self.peers: dict[str, Peer] = {}
        self.peers_lock = threading.Lock()
        self.lock = threading.Lock()
        self.numbers = itertools.count(1)

    def peer(self, session: str) -> Peer:
        """A peer, who is reached if that has not been done."""
        peer = self.peers.get(session)
        if peer is None:
            peer = Peer(session, self.engine)
            with self.peers_lock:
                peer = self.peers.setdefault(session, peer)
        return peer

    def forget(self, peer: Peer) -> None:
        """It is lost: the next transfer reaches out anew."""
        with self.peers_lock:
            if self.peers.get(peer.session) is peer:
                del self.peers[peer.session]

    def add(self, memory: polyrail.Memory, number: int) -> None:
        """Tells peers of memory of ours."""
        region = _table.Region(memory.address, memory.nbytes, number)
        with self.lock:
            place = self.table.add(region)
            self.registered.setdefault(region.address, []).append(_Registered(memory, region, place))
        self.ranges.add(region.address, region.nbytes, memory)


class TransferEngine:
    """Moves bytes between absolute addresses of processes, which it names by `HOST:PORT` sessions.

    What goes wrong is answered with a number below 0, and said to the logger `polyrail.mooncake`; only arguments of wrong types raise.
    """

    TransferOpcode = TransferOpcode

    def __init__(self) -> None:
        self._running: _Running | None = None
        self._transfers: dict[int, _Transfer] = {}
        self._ids = itertools.count(1)
        self._held: list[Held] = []
        self._held_lock = threading.Lock()
        self._said: set[tuple[str, str]] = set()
        self._probes: dict[str, threading.Thread] = {}

    # Its life.

    def initialize(self, hostname: str, metadata_server: str, protocol: str, device_name: str, /) -> int:
        """Begins to listen at a free port of `hostname`. `metadata_server` is "P2PHANDSHAKE", `protocol` "tcp" or "rdma"; `device_name`
        names the devices that are rails, with commas, "": those that fit."""
        _strings(hostname, metadata_server, protocol, device_name)
        if metadata_server != "P2PHANDSHAKE":
            log.error("metadata server %r: polyrail has none; \"P2PHANDSHAKE\" expected", metadata_server)
            return FAILED
        if protocol not in _settings.PROTOCOLS:
            log.error("protocol %r: \"tcp\" or \"rdma\" expected", protocol)
            return FAILED
        _settings.warn_of_others()
        self.close()
        try:
            self._running = _Running(hostname, protocol, device_name)
        except (polyrail.Error, ValueError) as error:
            log.error("initialize(%r): %s", hostname, error)
            return FAILED
        log.info("polyrail serves as mooncake.engine at port %d", self._running.port)
        return 0

    def initialize_ext(
        self, hostname: str, metadata_server: str, protocol: str, device_name: str, metadata_type: str, /
    ) -> int:
        """The same; `metadata_type` says of which kind a metadata server is, and there is none."""
        _strings(metadata_type)
        return self.initialize(hostname, metadata_server, protocol, device_name)

    def get_rpc_port(self) -> int:
        """The port that peers reach it at; 0: it is not initialised."""
        return self._running.port if self._running else 0

    def get_engine(self) -> None:
        """`None`: there is no engine of Mooncake's for its store to share."""
        return None

    def get_engine_ptr(self) -> int:
        """0, for the same reason."""
        return 0

    def get_local_topology(self, device_name: str | None = None) -> str:
        """RDMA devices by NUMA node, in JSON."""
        return json.dumps(_settings.topology(device_name)) + "\n"

    def warmup_efa_segment(self, segment_name: str) -> int:
        """0: nothing has to be warmed up."""
        _strings(segment_name)
        return 0

    def close(self) -> None:
        """Ends it; Mooncake's has no such method, and ends when nothing refers to it. So does this one."""
        running, self._running = self._running, None
        if running is not None:
            running.engine.close()
        self._transfers.clear()

    def held(self) -> list[Held]:
        """Memory that a transfer which was answered with -1 may still touch: do not use it, nor free it, while it is listed."""
        with self._held_lock:
            self._held = [held for held in self._held if _is_held(held.batch)]
            return list(self._held)

    @property
    def engine(self) -> polyrail.Engine | None:
        """The engine below, for its `stats`; `None`: it is not initialised."""
        return self._running.engine if self._running else None

    # Memory.

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Lets peers read and write memory, and this engine use it. Ranges may overlap, and be registered repeatedly."""
        _numbers(buffer_addr, capacity)
        running = self._ready("register_memory")
        if running is None:
            return FAILED
        number = next(running.numbers)
        try:
            memory = running.engine.register((buffer_addr, capacity), _table.name_of(number), "read-write")
        except (polyrail.Error, ValueError, OverflowError) as error:
            log.error("register_memory(%#x, %d): %s", buffer_addr, capacity, error)
            return FAILED
        return self._tell(running, memory, number)

    def _tell(self, running: _Running, memory: polyrail.Memory, number: int) -> int:
        try:
            running.add(memory, number)
        except polyrail.Unavailable as error:
            log.error("%s", error)
            memory.close()
            return FAILED
        return 0

    def unregister_memory(self, buffer_addr: int, /) -> int:
        """Takes it back: at 0, nothing touches it any more. -3: it was not registered. -1: a transfer may touch it; it stays
        registered, and must not be freed."""
        _numbers(buffer_addr)
        running = self._ready("unregister_memory")
        if running is None:
            return FAILED
        with running.lock:
            known = running.registered.get(buffer_addr)
            if not known:
                return NOT_REGISTERED
            registered = known.pop()
            if not known:
                del running.registered[buffer_addr]
            running.table.remove(registered.place)
        running.ranges.remove(buffer_addr, registered.memory)
        end = time.monotonic() + RELEASE_WITHIN
        while True:
            try:
                registered.memory.close()
                return 0
            except polyrail.InUse as error:
                if time.monotonic() > end:
                    log.error("unregister_memory(%#x): %s. Do not free it while held() lists it", buffer_addr, error)
                    running.add(registered.memory, registered.region.number)
                    return FAILED
            except polyrail.Error as error:
                log.error("unregister_memory(%#x): %s", buffer_addr, error)
                return FAILED
            # Transfers of other threads use it, and end by themselves.
            time.sleep(0.001)

    def batch_register_memory(self, buffer_addresses: list[int], capacities: list[int], location: str = "*") -> int:
        """All of these, or none."""
        if len(buffer_addresses) != len(capacities):
            log.error("batch_register_memory: %d addresses and %d capacities", len(buffer_addresses), len(capacities))
            return FAILED
        for index, (address, capacity) in enumerate(zip(buffer_addresses, capacities, strict=True)):
            answer = self.register_memory(address, capacity, location)
            if answer != 0:
                for done in buffer_addresses[:index]:
                    self.unregister_memory(done)
                return answer
        return 0

    def batch_unregister_memory(self, buffer_addresses: list[int], /) -> int:
        """Each of these; the first answer that is not 0."""
        answers = [self.unregister_memory(address) for address in buffer_addresses]
        return next((answer for answer in answers if answer != 0), 0)

    def allocate_managed_buffer(self, length: int, /) -> int:
        """Allocates memory that is registered: its address; 0: there is none."""
        _numbers(length)
        running = self._ready("allocate_managed_buffer")
        if running is None:
            return 0
        number = next(running.numbers)
        try:
            memory = running.engine.allocate(length, _table.name_of(number), "read-write")
        except (polyrail.Error, ValueError, OverflowError) as error:
            log.error("allocate_managed_buffer(%d): %s", length, error)
            return 0
        return memory.address if self._tell(running, memory, number) == 0 else 0

    def free_managed_buffer(self, buffer_addr: int, length: int, /) -> int:
        """Frees it."""
        _numbers(length)
        return self.unregister_memory(buffer_addr)

    def write_bytes_to_buffer(self, buffer_addr: int, data: str | bytes, length: int, /) -> int:
        """Copies bytes into registered memory of this process. -1: it is not registered, is a GPU's, or there are not so many bytes."""
        _numbers(buffer_addr, length)
        content = data.encode() if isinstance(data, str) else data
        if length > len(content) or not self._is_here(buffer_addr, length):
            return FAILED
        ctypes.memmove(buffer_addr, content, length)
        return 0

    def read_bytes_from_buffer(self, buffer_addr: int, length: int, /) -> bytes:
        """Bytes of registered memory of this process."""
        _numbers(buffer_addr, length)
        if not self._is_here(buffer_addr, length):
            raise ValueError(f"{length} bytes from {buffer_addr:#x} on are not registered memory of the host")
        return ctypes.string_at(buffer_addr, length)

    def _is_here(self, address: int, length: int) -> bool:
        running = self._running
        if running is None:
            return False
        with running.lock:
            regions = [one for several in running.registered.values() for one in several]
        return any(
            one.region.address <= address
            and address + length <= one.region.address + one.region.nbytes
            and one.memory.device == "cpu"
            for one in regions
        )

    def get_first_buffer_address(self, segment_name: str, /) -> int:
        """The address of a peer's first region; 0: it has none, or is not there."""
        _strings(segment_name)
        running = self._ready("get_first_buffer_address")
        if running is None:
            return 0
        try:
            peer = running.peer(segment_name)
            return running.look.at(peer.table).first
        except (polyrail.Error, _table.NoTable) as error:
            self._lost(running, segment_name, error)
            return 0

    # Transfers that wait.

    def transfer_sync_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Writes: 0 once all bytes are there. Otherwise -1, and nothing moves any more unless `held` lists it."""
        return self._sync("write", target_hostname, [buffer], [peer_buffer_address], [length])

    def transfer_sync_read(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Reads: 0 once all bytes are here. Otherwise -1, and nothing moves any more unless `held` lists it."""
        return self._sync("read", target_hostname, [buffer], [peer_buffer_address], [length])

    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: _types.TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Either; `notify` is told to the peer once the bytes are there."""
        return self._sync(_op(opcode), target_hostname, [buffer], [peer_buffer_address], [length], notify)

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
        transport_hint: str = "",
    ) -> int:
        """Writes several ranges: 0 once all bytes of all are there."""
        return self._sync("write", target_hostname, buffers, peer_buffer_addresses, lengths)

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
        transport_hint: str = "",
    ) -> int:
        """Reads several ranges: 0 once all bytes of all are here."""
        return self._sync("read", target_hostname, buffers, peer_buffer_addresses, lengths)

    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
        opcode: _types.TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Either; `notify` is told to the peer once the bytes are there."""
        return self._sync(_op(opcode), target_hostname, buffers, peer_buffer_addresses, lengths, notify)

    def _sync(
        self,
        op: _Op,
        session: str,
        buffers: list[int],
        addresses: list[int],
        lengths: list[int],
        notify: TransferNotify | None = None,
    ) -> int:
        end = time.monotonic() + _patience(lengths)
        answer = FAILED
        # A second time only if the peer's regions are others than we thought.
        for _ in range(2):
            transfer = self._start(op, session, buffers, addresses, lengths, end, notify)
            if transfer is None:
                return FAILED
            if transfer.batch is None:
                return 0
            try:
                transfer.batch.wait()
                return 0
            except polyrail.Error as error:
                answer = self._ended(transfer, error)
                if answer != FAILED or not self._has_moved(session, error):
                    return FAILED
            except BaseException:
                # Ctrl-C: whoever catches it may use the memory again.
                transfer.batch.cancel()
                self._settle(transfer)
                raise
        return answer

    # Transfers that are asked for.

    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
        transport_hint: str = "",
    ) -> int:
        """Starts to write: a number for `transfer_check_status`; 0: it was not started."""
        return self._async("write", target_hostname, buffers, peer_buffer_addresses, lengths)

    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
        transport_hint: str = "",
    ) -> int:
        """Starts to read: a number for `transfer_check_status`; 0: it was not started."""
        return self._async("read", target_hostname, buffers, peer_buffer_addresses, lengths)

    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
        opcode: _types.TransferOpcode,
        transport_hint: str = "",
    ) -> int:
        """Either."""
        return self._async(_op(opcode), target_hostname, buffers, peer_buffer_addresses, lengths)

    def transfer_submit_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Starts to write one range: a number for `transfer_check_status`; 0: it was not started."""
        return self._async("write", target_hostname, [buffer], [peer_buffer_address], [length])

    def _async(self, op: _Op, session: str, buffers: list[int], addresses: list[int], lengths: list[int]) -> int:
        transfer = self._start(op, session, buffers, addresses, lengths, time.monotonic() + _patience(lengths), None)
        if transfer is None:
            return 0
        number = next(self._ids)
        # The lists are the caller's.
        self._transfers[number] = transfer._replace(buffers=tuple(buffers), lengths=tuple(lengths))
        return number

    def transfer_check_status(self, batch_id: int, /) -> int:
        """How all of it stands. 1: it is done. 0: not yet. -1: it failed, -2: its time is over; in both cases nothing moves any more,
        unless `held` lists it. What has ended is forgotten."""
        _numbers(batch_id)
        transfer = self._transfers.get(batch_id)
        if transfer is None:
            log.error("transfer_check_status(%d): no transfer has this number, or its end was told before", batch_id)
            return FAILED
        batch = transfer.batch
        if batch is not None and not batch.done:
            return 0
        try:
            if batch is not None:
                batch.wait(0)
            answer = 1
        except polyrail.Error as error:
            answer = self._ended(transfer, error)
        self._transfers.pop(batch_id, None)
        return answer

    def get_batch_transfer_status(self, batch_ids: list[int], /) -> int:
        """Waits until all of these have ended: 0 if all are done, else -1."""
        answer = 0
        for batch_id in batch_ids:
            transfer = self._transfers.get(batch_id)
            if transfer is not None and transfer.batch is not None:
                try:
                    transfer.batch.wait()
                except polyrail.Error:
                    # `transfer_check_status` says so.
                    pass
            if self.transfer_check_status(batch_id) != 1:
                answer = FAILED
        return answer

    # Peers.

    def get_notifies(self) -> list[TransferNotify]:
        """What peers have told since it was last asked."""
        running = self._ready("get_notifies")
        found: list[TransferNotify] = []
        try:
            while running is not None and (notification := running.notifications.poll()) is not None:
                notify = notify_of(notification.data)
                if notify is not None:
                    found.append(notify)
        except polyrail.Error as error:
            log.error("get_notifies: %s", error)
        return found

    def send_probe(self, peer_server_name: str) -> int:
        """0: the process at this session answers now. Otherwise it does not, within a second."""
        _strings(peer_server_name)
        running = self._ready("send_probe")
        if running is None:
            return FAILED
        if not peer_server_name.rpartition(":")[2].isdigit():
            return BAD_ADDRESS
        before = self._probes.get(peer_server_name)
        if before is not None and before.is_alive():
            # One that was asked earlier still waits.
            before.join(PROBE_WITHIN)
            if before.is_alive():
                return UNREACHABLE
        answers: list[bool] = []
        engine = running.engine
        probe = threading.Thread(target=lambda: answers.append(_answers(engine, peer_server_name)), daemon=True)
        self._probes[peer_server_name] = probe
        probe.start()
        probe.join(PROBE_WITHIN)
        if not probe.is_alive():
            self._probes.pop(peer_server_name, None)
        return 0 if answers == [True] else UNREACHABLE

    # What all of these do.

    def _ready(self, what: str) -> _Running | None:
        if self._running is None:
            log.error("%s: initialize() has not been called, or has failed", what)
        return self._running

    def _start(
        self,
        op: _Op,
        session: str,
        buffers: list[int],
        addresses: list[int],
        lengths: list[int],
        end: float,
        notify: TransferNotify | None,
    ) -> _Transfer | None:
        """Submits. `None`: it could not, which has been said."""
        _strings(session)
        running = self._ready("a transfer")
        if running is None:
            return None
        if len(buffers) != len(addresses) or len(buffers) != len(lengths):
            log.error("%d buffers, %d addresses and %d lengths: as many of each expected", len(buffers), len(addresses), len(lengths))
            return None
        told = notification_of(notify) if notify is not None else None
        has_lost = False
        while True:
            left = max(end - time.monotonic(), 0.001)
            try:
                peer = running.peer(session)
                batch = submit_at(
                    running.engine, op, running.ranges, peer.ranges, buffers, addresses, lengths, deadline=left, notify=told, room=left
                )
                if batch is None and told is not None:
                    running.engine.notify(peer.table, told)
                if self._said:
                    self._said = {said for said in self._said if said[0] != session}
                return _Transfer(session, op, batch, buffers, lengths)
            except LookupError as error:
                side, index = error.args
                if side == "here":
                    self._say(session, f"{lengths[index]} bytes from {buffers[index]:#x} on are not registered here")
                    return None
                try:
                    peer.learn(running.look, addresses, lengths)
                except (Unregistered, _table.NoTable) as why:
                    self._say(session, str(why))
                    return None
                except polyrail.Error as why:
                    lost = why
                else:
                    # Unless they are registered anew all the time.
                    if time.monotonic() < end:
                        continue
                    self._say(session, "its regions change too fast")
                    return None
            except (polyrail.PeerLost, polyrail.Closed) as error:
                lost = error
            except polyrail.Error as error:
                self._lost(running, session, error)
                return None
            self._lost(running, session, lost if has_lost else None)
            if has_lost or time.monotonic() > end:
                return None
            # Who answers there now may be another process.
            has_lost = True

    def _lost(self, running: _Running, session: str, why: Exception | None) -> None:
        """What is known of a peer does not hold any more. `why` is said."""
        peer = running.peers.get(session)
        if peer is not None:
            running.forget(peer)
        if why is not None:
            self._say(session, str(why))

    def _say(self, session: str, text: str) -> None:
        """Each trouble with a peer is a warning once, until something goes well again."""
        level = logging.DEBUG if (session, text) in self._said else logging.WARNING
        self._said.add((session, text))
        log.log(level, "%s: %s", session, text)

    def _has_moved(self, session: str, error: polyrail.Error) -> bool:
        """Whether a transfer failed because its peer's regions are others than we knew."""
        running = self._running
        peer = running.peers.get(session) if running else None
        if running is None or peer is None or not isinstance(error, polyrail.Failed):
            return False
        try:
            return peer.forget_what_has_gone(running.look)
        except (polyrail.Error, _table.NoTable):
            return False

    def _ended(self, transfer: _Transfer, error: polyrail.Error) -> int:
        """What is answered about a transfer that did not end well, once its memory is free."""
        self._settle(transfer)
        if isinstance(error, polyrail.PeerLost) and self._running is not None:
            self._lost(self._running, transfer.session, None)
        self._say(transfer.session, str(error))
        return TIMED_OUT if isinstance(error, polyrail.DeadlineExceeded) else FAILED

    def _settle(self, transfer: _Transfer) -> None:
        """Waits until nothing touches its memory here any more. What does not get free in time is quarantined."""
        batch = transfer.batch
        if batch is None:
            return
        end = time.monotonic() + RELEASE_WITHIN
        while time.monotonic() < end and not batch.done:
            try:
                batch.wait(max(end - time.monotonic(), 0))
            except polyrail.Error:
                pass
        if not _is_held(batch):
            return
        try:
            batch.wait_released(max(end - time.monotonic(), 0))
            return
        except polyrail.Error:
            pass
        if not _is_held(batch):
            return
        ranges = _held_ranges(transfer)
        with self._held_lock:
            self._held.append(Held(transfer.session, batch, ranges))
        log.error(
            "%s may still %s memory here, %d ranges from %#x on, for a transfer that was answered as failed: do not use or free it while "
            "TransferEngine.held() lists it. It is released when the process there goes on or ends",
            transfer.session,
            "read" if transfer.op == "write" else "write",
            len(ranges),
            ranges[0][0] if ranges else 0,
        )


def _is_held(batch: polyrail.Batch) -> bool:
    if not batch.done:
        return True
    return batch.status == polyrail.Status.INDETERMINATE and any(report.local == "Held" for report in batch.reports.failed())


def _held_ranges(transfer: _Transfer) -> list[tuple[int, int]]:
    """Those of its ranges here that may still be touched."""
    assert transfer.batch is not None
    moved = [(int(buffer), int(length)) for buffer, length in zip(transfer.buffers, transfer.lengths, strict=True) if length]
    reports = transfer.batch.reports
    return [moved[report.index] for report in reports if report.status == "Pending" or report.local == "Held"]


def _answers(engine: polyrail.Engine, session: str) -> bool:
    """Whether the process there says what segments it has: that it has none of this name."""
    try:
        engine.open(f"{session}/probe")
    except polyrail.Invalid as error:
        return "no segment" in str(error)
    except polyrail.Error:
        return False
    return True


def _patience(lengths: Sequence[int]) -> float:
    """Seconds that a transfer may take."""
    return _settings.timeout() + sum(lengths) * 1e-9


def _op(opcode: TransferOpcode) -> _Op:
    return "write" if TransferOpcode(opcode) is TransferOpcode.Write else "read"


def _numbers(*values: int) -> None:
    for value in values:
        if not hasattr(value, "__index__") or value < 0 or value >= 1 << 64:
            raise TypeError(f"{value!r}: a whole number from 0 to 2^64 - 1 expected")


def _strings(*values: str) -> None:
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"{value!r}: a str expected")
