"""The drop-in for `mooncake.engine`, between processes that are killed, stopped and started again."""

import ctypes
import inspect
import logging
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import pytest
from conftest import LONG, Target, pulled, run

from polyrail.mooncake import TransferEngine, TransferNotify, TransferOpcode, _engine

MIB = 1 << 20
HERE = Path(__file__).parent
# Of mooncake-transfer-engine 0.3.13.post1, as its docstrings have them; those that begin with a slash have no names.
SURFACE = {
    "allocate_managed_buffer": "/length",
    "batch_register_memory": "buffer_addresses, capacities, location='*'",
    "batch_transfer_async": "target_hostname, buffers, peer_buffer_addresses, lengths, opcode, transport_hint=''",
    "batch_transfer_async_read": "target_hostname, buffers, peer_buffer_addresses, lengths, transport_hint=''",
    "batch_transfer_async_write": "target_hostname, buffers, peer_buffer_addresses, lengths, transport_hint=''",
    "batch_transfer_sync": "target_hostname, buffers, peer_buffer_addresses, lengths, opcode, notify=None, transport_hint=''",
    "batch_transfer_sync_read": "target_hostname, buffers, peer_buffer_addresses, lengths, transport_hint=''",
    "batch_transfer_sync_write": "target_hostname, buffers, peer_buffer_addresses, lengths, transport_hint=''",
    "batch_unregister_memory": "/buffer_addresses",
    "free_managed_buffer": "/buffer_addr, length",
    "get_batch_transfer_status": "/batch_ids",
    "get_engine": "",
    "get_engine_ptr": "",
    "get_first_buffer_address": "/segment_name",
    "get_local_topology": "device_name=None",
    "get_notifies": "",
    "get_rpc_port": "",
    "initialize": "/hostname, metadata_server, protocol, device_name",
    "initialize_ext": "/hostname, metadata_server, protocol, device_name, metadata_type",
    "read_bytes_from_buffer": "/buffer_addr, length",
    "register_memory": "buffer_addr, capacity, location='*'",
    "send_probe": "peer_server_name",
    "transfer_check_status": "/batch_id",
    "transfer_submit_write": "target_hostname, buffer, peer_buffer_address, length, transport_hint=''",
    "transfer_sync": "target_hostname, buffer, peer_buffer_address, length, opcode, notify=None, transport_hint=''",
    "transfer_sync_read": "target_hostname, buffer, peer_buffer_address, length, transport_hint=''",
    "transfer_sync_write": "target_hostname, buffer, peer_buffer_address, length, transport_hint=''",
    "unregister_memory": "/buffer_addr",
    "warmup_efa_segment": "segment_name",
    "write_bytes_to_buffer": "/buffer_addr, data, length",
}
OVER_TCP = "POLYRAIL_TRANSPORTS__SHM__ENABLE"


class Peer(Target):
    """`mooncake_target.py` in a process of its own."""

    def __init__(self, host="127.0.0.1", size=MIB, **environment):
        command = [sys.executable, str(HERE / "mooncake_target.py"), host, str(size)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        self.session, base = self.line().split()
        self.base = int(base)


@pytest.fixture
def peers():
    made = []

    def make(*terms, **more):
        made.append(Peer(*terms, **more))
        return made[-1]

    yield make
    for peer in made:
        peer.close()


@pytest.fixture
def engines():
    made = []

    def make(host="127.0.0.1", protocol="tcp", devices=""):
        engine = TransferEngine()
        assert engine.initialize(host, "P2PHANDSHAKE", protocol, devices) == 0
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()


class Memory:
    """Memory of this process, by its address."""

    def __init__(self, engine, size=MIB, content=None):
        self.bytes = mmap.mmap(-1, size)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))
        self.bytes[:] = os.urandom(size) if content is None else bytes([content]) * size
        assert engine.register_memory(self.base, size) == 0

    def crc(self, offset=0, length=None):
        end = None if length is None else offset + length
        return zlib.crc32(self.bytes[offset:end])


def test_it_has_their_methods_with_their_arguments():
    assert len(SURFACE) == 30
    for name, text in SURFACE.items():
        said = list(inspect.signature(getattr(TransferEngine, name)).parameters.values())[1:]
        words = [one.name + ("" if one.default is one.empty else f"={one.default!r}") for one in said]
        unnamed = bool(text.startswith("/"))
        assert ", ".join(words) == text.removeprefix("/"), name
        assert {one.kind for one in said} <= {one.POSITIONAL_ONLY if unnamed else one.POSITIONAL_OR_KEYWORD for one in said[:1]}, name
    assert TransferEngine.TransferOpcode is TransferOpcode and (TransferOpcode.Read, TransferOpcode.Write) == (0, 1)


def test_bytes_go_both_ways_by_absolute_addresses(engines, peers):
    engine, peer = engines(), peers()
    memory = Memory(engine)
    assert engine.transfer_sync_write(peer.session, memory.base, peer.base + 4096, 10_000) == 0
    assert peer.crc(4096, 10_000) == memory.crc(0, 10_000)
    pages = [page * 8192 for page in (7, 3, 100, 5)]
    addresses = [peer.base + MIB // 2 + index * 4096 for index in range(4)]
    buffers = [memory.base + page for page in pages]
    assert engine.batch_transfer_sync_write(peer.session, buffers, addresses, [4096] * 4) == 0
    assert [peer.crc(MIB // 2 + index * 4096, 4096) for index in range(4)] == [memory.crc(page, 4096) for page in pages]
    before = memory.crc(0, 4096)
    memory.bytes[:4096] = bytes(4096)
    assert engine.batch_transfer_sync_read(peer.session, [memory.base], [peer.base + 4096], [4096]) == 0
    assert memory.crc(0, 4096) == before
    assert engine.get_first_buffer_address(peer.session) == peer.base
    # Of no bytes, and to oneself.
    assert engine.batch_transfer_sync_write(peer.session, [], [], []) == 0
    assert engine.transfer_sync_read(peer.session, memory.base, peer.base, 0) == 0
    own = f"127.0.0.1:{engine.get_rpc_port()}"
    assert engine.transfer_sync_write(own, memory.base, memory.base + MIB // 2, 4096) == 0
    assert memory.crc(MIB // 2, 4096) == before


def test_sessions_have_brackets_around_ipv6_addresses(engines, peers):
    engine, peer = engines("::1"), peers("::1")
    memory = Memory(engine)
    assert peer.session.startswith("[::1]:")
    assert engine.transfer_sync_write(peer.session, memory.base, peer.base, MIB) == 0
    assert peer.crc(0, MIB) == memory.crc()


def test_ranges_may_overlap_and_be_registered_repeatedly(engines, peers):
    engine, peer = engines(), peers()
    memory = Memory(engine)
    for offset, length in [(0, MIB), (4096, 8192), (0, 65_536)]:
        assert engine.register_memory(memory.base + offset, length) == 0
        assert peer.ask("register", offset, length) == "0"
    for offset in (0, 4096, 8192, 500_000):
        assert engine.transfer_sync_write(peer.session, memory.base + offset, peer.base + offset, 4096) == 0
        assert peer.crc(offset, 4096) == memory.crc(offset, 4096)
    # As often as it was registered.
    assert [engine.unregister_memory(memory.base) for _ in range(4)] == [0, 0, 0, -3]
    assert engine.transfer_sync_write(peer.session, memory.base + 4096, peer.base, 4096) == 0
    assert engine.transfer_sync_write(peer.session, memory.base, peer.base, 4096) == -1
    assert engine.batch_unregister_memory([memory.base + 4096, 5]) == -3


def test_regions_that_come_later_and_others_at_the_same_address_are_found(engines, peers, caplog):
    engine, peer = engines(), peers()
    memory = Memory(engine)
    write = lambda offset: engine.transfer_sync_write(peer.session, memory.base, peer.base + offset, 4096)  # noqa: E731
    assert write(0) == 0 and peer.ask("unregister", 0) == "0"
    # What is not registered is not written, and is said once.
    assert [write(0) for _ in range(3)] == [-1, -1, -1]
    assert len([record for record in caplog.records if "has registered" in record.message and record.levelname == "WARNING"]) == 1
    assert peer.ask("register", 0, 8192) == "0"
    assert write(0) == 0 and write(8192) == -1
    assert peer.ask("unregister", 0) == "0" and peer.ask("register", 0, MIB) == "0"
    assert write(0) == 0 and write(8192) == 0
    # More than one look at the table has room for.
    for index in range(300):
        assert peer.ask("register", index * 1024, 1024) == "0"
    assert peer.ask("unregister", 0) == "0" and peer.ask("unregister", 0) == "0"
    assert write(0) == -1
    addresses = [peer.base + index * 1024 for index in range(1, 300)]
    buffers = [memory.base + index * 1024 for index in range(1, 300)]
    assert engine.batch_transfer_sync_write(peer.session, buffers, addresses, [1024] * 299) == 0
    assert peer.crc(1024, 299 * 1024) == memory.crc(1024, 299 * 1024)


def test_what_cannot_be_is_answered_as_theirs_does(engines, caplog):
    engine = TransferEngine()
    assert engine.get_rpc_port() == 0
    assert engine.register_memory(4096, 4096) == -1 and engine.transfer_sync_write("127.0.0.1:1", 1, 1, 1) == -1
    assert "initialize() has not been called" in caplog.text
    assert engine.initialize("127.0.0.1", "etcd://127.0.0.1:1", "tcp", "") == -1
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "ascend", "") == -1
    assert engine.initialize_ext("127.0.0.1", "P2PHANDSHAKE", "tcp", "", "") == 0 != engine.get_rpc_port()
    engine.close()
    engine = engines()
    memory = Memory(engine)
    assert engine.get_engine() is None and engine.get_engine_ptr() == 0 and engine.warmup_efa_segment("x") == 0
    assert engine.get_local_topology().startswith("{")
    assert engine.register_memory(memory.base, 0) == -1 and engine.register_memory(0, 4096) == -1
    assert engine.unregister_memory(12_345) == -3
    assert engine.batch_register_memory([memory.base], [1, 2]) == -1
    assert engine.batch_register_memory([memory.base, 0], [4096, 4096]) == -1
    assert engine.unregister_memory(memory.base) == 0 and engine.unregister_memory(memory.base) == -3
    own = f"127.0.0.1:{engine.get_rpc_port()}"
    assert engine.batch_transfer_sync_write(own, [1], [1], [1, 2]) == -1
    assert engine.batch_transfer_async_write(own, [1], [1], [1, 2]) == 0
    assert engine.batch_transfer_sync_write("127.0.0.1:1", [1], [1], [1]) == -1
    assert engine.batch_transfer_async_read("127.0.0.1:1", [1], [1], [1]) == 0 == engine.transfer_submit_write("nonsense", 1, 1, 1)
    assert engine.get_first_buffer_address("127.0.0.1:1") == 0
    assert engine.transfer_check_status(77) == -1 and engine.get_batch_transfer_status([]) == 0
    for wrong in (
        lambda: engine.transfer_sync_write(own, 1.0, 1, 1),
        lambda: engine.transfer_sync_write(own, -1, 1, 1),
        lambda: engine.transfer_sync_write(7, 1, 1, 1),
        lambda: engine.register_memory(-1, 1),
        lambda: engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", None),
    ):
        with pytest.raises(TypeError):
            wrong()


def test_managed_buffers(engines):
    engine = engines()
    address = engine.allocate_managed_buffer(4096)
    assert engine.write_bytes_to_buffer(address, "grüß", 6) == 0
    assert engine.read_bytes_from_buffer(address, 6) == "grüß".encode()
    assert engine.write_bytes_to_buffer(address, b"ab", 3) == -1 and engine.write_bytes_to_buffer(address + 4095, b"ab", 2) == -1
    with pytest.raises(ValueError, match="not registered"):
        engine.read_bytes_from_buffer(address, 4097)
    own = f"127.0.0.1:{engine.get_rpc_port()}"
    assert engine.transfer_sync_read(own, address + 2048, address, 6) == 0
    assert engine.read_bytes_from_buffer(address + 2048, 6) == "grüß".encode()
    assert engine.free_managed_buffer(address, 4096) == 0 and engine.free_managed_buffer(address, 4096) == -3


def test_a_status_is_that_of_the_whole_batch(engines, peers, monkeypatch):
    """Theirs answers "done" when the first of a batch's ranges is."""
    monkeypatch.setenv(OVER_TCP, "false")
    size = 256 * MIB
    engine, peer = engines(), peers(size=size)
    memory = Memory(engine, size, 0x5A)
    assert engine.transfer_sync_write(peer.session, memory.base, peer.base, 4096) == 0
    peer.stop()
    lengths = [4096, size - 8192]
    ask = lambda: engine.batch_transfer_async_write(  # noqa: E731
        peer.session, [memory.base, memory.base + 8192], [peer.base, peer.base + 8192], lengths
    )
    number = ask()
    assert number > 0
    assert engine.transfer_check_status(number) == 0
    peer.go_on()
    polls = 0
    while (status := engine.transfer_check_status(number)) == 0:
        polls += 1
    assert status == 1 and polls > 0
    assert int(peer.ask("count", 0x5A)) == size - 4096
    # Its end is told once.
    assert engine.transfer_check_status(number) == -1
    numbers = [ask() for _ in range(3)]
    assert engine.get_batch_transfer_status(numbers) == 0


def test_a_peer_is_told_of_a_transfer(engines, peers):
    engine, peer = engines(), peers()
    memory = Memory(engine)
    assert engine.get_notifies() == []
    assert peer.ask("notify", f"127.0.0.1:{engine.get_rpc_port()}", memory.base) == "0"
    end = time.monotonic() + LONG
    while not (told := engine.get_notifies()):
        assert time.monotonic() < end
        time.sleep(0.001)
    assert [(one.name, one.msg) for one in told] == [("from", "the target")]
    assert memory.bytes[:64] == bytes(64)
    assert engine.batch_transfer_sync(peer.session, [], [], [], TransferOpcode.Write, TransferNotify("a", "b")) == 0


@pytest.mark.parametrize("shared_memory", ["true", "false"])
def test_a_killed_peer_is_answered_soon_and_its_successor_works(engines, peers, monkeypatch, shared_memory):
    monkeypatch.setenv(OVER_TCP, shared_memory)
    size = 256 * MIB
    engine, peer = engines(), peers(size=size)
    memory = Memory(engine, size)
    port = peer.session.rpartition(":")[2]
    assert engine.transfer_sync_write(peer.session, memory.base, peer.base, 4096) == 0
    assert engine.send_probe(peer.session) == 0
    number = engine.batch_transfer_async_write(peer.session, [memory.base] * 8, [peer.base] * 8, [size] * 8)
    peer.kill()
    start = time.monotonic()
    while (status := engine.transfer_check_status(number)) == 0:
        time.sleep(0.001)
    assert status == -1 and engine.held() == []
    assert engine.transfer_sync_write(peer.session, memory.base, peer.base, 4096) == -1
    assert engine.send_probe(peer.session) != 0
    assert time.monotonic() - start < 5
    # Another process, at the same place.
    second = peers(size=size, MC_MIN_RPC_PORT=port, MC_MAX_RPC_PORT=port)
    assert second.session == peer.session
    assert engine.transfer_sync_write(peer.session, memory.base, second.base, MIB) == 0
    assert second.crc(0, MIB) == memory.crc(0, MIB)
    assert engine.send_probe(peer.session) == 0
    # And without a failed call in between.
    second.kill()
    third = peers(size=size, MC_MIN_RPC_PORT=port, MC_MAX_RPC_PORT=port)
    assert engine.transfer_sync_write(peer.session, memory.base, third.base, MIB) == 0
    assert third.crc(0, MIB) == memory.crc(0, MIB)


@pytest.mark.parametrize("shared_memory", ["true", "false"])
@pulled
def test_when_a_call_has_timed_out_the_memory_is_the_callers_again(engines, peers, monkeypatch, caplog, shared_memory):
    """Theirs answers -1 while bytes still move: what the caller writes into its memory then arrives at the peer."""
    monkeypatch.setenv(OVER_TCP, shared_memory)
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "5")
    size = 128 * MIB
    engine, peer = engines(), peers(size=size)
    memory = Memory(engine, size, 0x11)
    assert engine.transfer_sync_write(peer.session, memory.base, peer.base, size) == 0
    assert peer.ask("fill", 0) == "filled"
    peer.stop()
    start = time.monotonic()
    answer = engine.transfer_sync_write(peer.session, memory.base, peer.base, size)
    took = time.monotonic() - start
    held = engine.held()
    assert answer == -1
    if not held:
        memory.bytes[:] = b"\x77" * size
    assert took < 5 + 2.5 + 5 + 2
    unregistered = engine.unregister_memory(memory.base) if held else None
    peer.go_on()
    assert int(peer.ask("count", 0x77)) == 0
    if held:
        assert unregistered == -1 and "do not use or free it" in caplog.text
        assert held[0].session == peer.session and held[0].ranges == [(memory.base, size)]
        held[0].batch.wait_released(LONG)
        assert engine.held() == [] and engine.unregister_memory(memory.base) == 0
        Memory.__init__(memory, engine, size, 0x22)
    # And nobody is blamed for it for ever.
    assert engine.transfer_sync_write(peer.session, memory.base, peer.base, 4096) == 0


@pulled
def test_what_cannot_be_proved_is_quarantined(engines, peers, monkeypatch, caplog):
    """A peer that stands still in the midst of a pull may go on with it."""
    monkeypatch.setenv("POLYRAIL_HEALTH__FENCE_TIMEOUT_MS", "200")
    monkeypatch.setenv("POLYRAIL_HEALTH__PEER_SILENCE_MS", "1200")
    monkeypatch.setattr(_engine, "RELEASE_WITHIN", 0.1)
    size = 64 * MIB
    engine, peer = engines(), peers(size=size)
    memory = Memory(engine, size, 0x11)
    assert engine.transfer_sync_write(peer.session, memory.base, peer.base, size) == 0
    chance = random.Random(1)
    for _ in range(50):
        number = engine.batch_transfer_async_write(peer.session, [memory.base], [peer.base], [size])
        # Some moment of the pull, which takes some milliseconds.
        time.sleep(chance.uniform(0, 0.01))
        peer.stop()
        while (status := engine.transfer_check_status(number)) == 0:
            time.sleep(0.001)
        if held := engine.held():
            break
        peer.go_on()
        assert int(peer.ask("count", 0x11)) == size
    else:
        pytest.fail("the target was never stopped in a pull")
    assert status == -1
    assert (held[0].session, held[0].ranges) == (peer.session, [(memory.base, size)])
    assert caplog.text.count("do not use or free it while") == 1
    # It is not given back, nor lost track of.
    assert engine.unregister_memory(memory.base) == -1
    peer.go_on()
    held[0].batch.wait_released(LONG)
    assert engine.held() == []
    assert engine.unregister_memory(memory.base) == 0


def test_a_probe_tells_a_live_peer_from_a_dead_one_within_a_second(engines, peers):
    engine, peer = engines(), peers()
    assert engine.send_probe(peer.session) == 0
    peer.stop()
    for _ in range(3):
        start = time.monotonic()
        assert engine.send_probe(peer.session) == -102
        assert time.monotonic() - start < 1
    peer.go_on()
    end = time.monotonic() + LONG
    while engine.send_probe(peer.session) != 0:
        assert time.monotonic() < end
    peer.kill()
    start = time.monotonic()
    assert engine.send_probe(peer.session) == -102
    assert engine.send_probe("nonsense") == -101
    assert time.monotonic() - start < 1


def test_ten_threads_use_one_engine_from_its_first_contact_on(engines, peers):
    engine, peer = engines(), peers()
    memory = Memory(engine)
    part, answers = MIB // 10, []

    def move(number):
        offset = number * part
        for page in range(20):
            places = [offset + page * 4096 % (part - 4096)]
            answers.append(
                engine.batch_transfer_sync_write(
                    peer.session, [memory.base + place for place in places], [peer.base + place for place in places], [4096]
                )
            )
        answers.append(engine.transfer_sync_write(peer.session, memory.base + offset, peer.base + offset, part))

    threads = [threading.Thread(target=move, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [0] * 210 and peer.crc(0, 10 * part) == memory.crc(0, 10 * part)


def test_control_c_leaves_nothing_that_moves(engines, peers, monkeypatch):
    monkeypatch.setenv(OVER_TCP, "false")
    size = 128 * MIB
    engine, peer = engines(), peers(size=size)
    memory = Memory(engine, size, 0x11)
    assert engine.transfer_sync_write(peer.session, memory.base, peer.base, 4096) == 0
    assert peer.ask("fill", 0) == "filled"
    peer.stop()
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        engine.transfer_sync_write(peer.session, memory.base, peer.base, size)
    timer.join()
    assert engine.held() == []
    memory.bytes[:] = b"\x77" * size
    peer.go_on()
    assert int(peer.ask("count", 0x77)) == 0


def test_what_their_variables_mean_here_is_said(engines, monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("MC_SLICE_SIZE", "65536")
    monkeypatch.setenv("MC_GID_INDEX", "3")
    monkeypatch.setenv("MC_STORE_CLUSTER_ID", "x")
    for _ in range(2):
        engines(protocol="rdma", devices="lo,mlx5_77")
    warnings = [record.message for record in caplog.records if "without effect" in record.message]
    assert len(warnings) == 1 and warnings[0].startswith("MC_SLICE_SIZE: Mooncake's")
    assert "device 'mlx5_77' has no interface" in caplog.text
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "1")
    from polyrail.mooncake import _settings

    assert _settings.timeout() == 5
    more = {"verbs": {"gid_row": 3}, "rails": ["127.0.0.1"], "rail_map": "nearest"}
    assert _settings.keys("rdma", "lo").items() >= more.items()
    monkeypatch.setenv("MC_FORCE_TCP", "1")
    keys = _settings.keys("rdma", "lo")
    assert keys["transports"] == {"verbs": {"enable": False}} and not keys.keys() & more.keys()


AS_THEIRS = "import mooncake.engine as e; print(e.TransferEngine.__module__, e.__spec__.origin)"


def test_mooncake_engine_is_ours_only_where_that_is_asked():
    plain = {name: value for name, value in os.environ.items() if name != "POLYRAIL_AS_MOONCAKE"}
    # Their wheel is not installed here.
    assert "ModuleNotFoundError" in run(AS_THEIRS, env=plain).stderr
    asked = run(AS_THEIRS, env={**plain, "POLYRAIL_AS_MOONCAKE": "1"})
    assert asked.stdout == "polyrail.mooncake._engine polyrail.mooncake\n", asked
    quiet = run("import polyrail; polyrail.Engine()", env={**plain, "POLYRAIL_AS_MOONCAKE": "1"})
    assert quiet.returncode == 0 and quiet.stderr == "", quiet
    assert run("import polyrail.as_mooncake;" + AS_THEIRS, env=plain).stdout == asked.stdout
    lean = run("import sys; print('polyrail' in sys.modules, '_polyrail_as_mooncake' in sys.modules)", env=plain)
    assert lean.stdout == "False False\n"


def test_no_file_of_ours_is_under_mooncake():
    import importlib.metadata

    files = [str(path) for path in importlib.metadata.files("polyrail")]
    assert not [path for path in files if path.startswith("mooncake")]
    assert "polyrail_as_mooncake.pth" in files and logging.getLogger("polyrail.mooncake")
