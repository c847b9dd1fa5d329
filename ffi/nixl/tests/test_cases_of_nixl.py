"""The cases of NIXL's own suite for its Python interface (`test/python/test_nixl_api.py`) and of its examples of two peers and of
partial metadata, with this back end. Written after what they do, since neither is in the wheel: cases that are about no back end,
such as wrong lists of descriptors, are left out."""

import importlib
import pickle
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from partner import BACKEND, MODULE, Memory, api
from ports import free_port

bindings = importlib.import_module(MODULE + "._bindings")
utils = importlib.import_module(MODULE + "._utils")
SYNC_MODES = [None, *getattr(api, "nixl_thread_sync_t", [])]


def make(name=None, **config):
    return api.nixl_agent(name or str(uuid.uuid4()), api.nixl_agent_config(backends=[BACKEND], **config))


def until(is_so, limit=10):
    end = time.monotonic() + limit
    while not is_so():
        assert time.monotonic() < end


@pytest.mark.parametrize("mode", SYNC_MODES)
@pytest.mark.parametrize("listens", [True, False])
def test_agents_of_every_sync_mode(mode, listens):
    more = {} if mode is None else {"sync_mode": mode}
    agent = make(enable_listen_thread=listens, listen_port=free_port(), **more)
    assert BACKEND in agent.backends


def test_plugins_and_back_ends_that_are_not_there():
    agent = make()
    assert agent.get_plugin_mem_types("UVX") == [] and not agent.get_plugin_params("UVX")
    assert agent.get_backend_mem_types("UVX") == [] and not agent.get_backend_params("UVX")
    with pytest.raises(bindings.nixlNotFoundError):
        agent.create_backend("UVX")
    assert "DRAM_SEG" in str(agent.get_plugin_mem_types(BACKEND)) and "listen" in agent.get_plugin_params(BACKEND)
    assert "DRAM_SEG" in str(agent.get_backend_mem_types(BACKEND))


def test_a_back_end_is_created_once():
    agent = make()
    with pytest.raises(Exception):
        agent.create_backend(BACKEND)


def test_metadata_says_whose_it_is():
    one, two = make(), make()
    address = utils.malloc_passthru(1024)
    assert one.register_memory(one.get_reg_descs([(address, 1024, 0, "test")], "DRAM")) is not None
    assert two.add_remote_agent(one.get_agent_metadata()) == one.name.encode()
    utils.free_passthru(address)


def test_a_notification_by_itself_of_agents_without_memory():
    one, two = make(), make()
    one.add_remote_agent(two.get_agent_metadata())
    two.add_remote_agent(one.get_agent_metadata())
    one.send_notif(two.name, b"whatever")
    until(lambda: two.check_remote_xfer_done(one.name, b""), 5)
    one.remove_remote_agent(two.name)
    two.remove_remote_agent(one.name)


@pytest.mark.parametrize("how", ["no sink", "buffer", "configured, but switched off"])
def test_telemetry_of_a_transfer(monkeypatch, tmp_path, how):
    for name in ("NIXL_TELEMETRY_DIR", "NIXL_TELEMETRY_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    is_off = how.startswith("configured")
    monkeypatch.setenv("NIXL_TELEMETRY_ENABLE", "no" if is_off else "y")
    if how == "buffer":
        monkeypatch.setenv("NIXL_TELEMETRY_DIR", str(tmp_path))
    one, two = make(capture_telemetry=is_off), make()
    memories = [Memory(128), Memory(128)]
    for agent, memory in zip((one, two), memories):
        agent.register_memory([(memory.address, 128, 0, "")], "DRAM")
    one.add_remote_agent(two.get_agent_metadata())
    lists = [one.get_xfer_descs([(memory.address, 64, 0), (memory.address + 64, 64, 0)], "DRAM") for memory in memories]
    handle = one.initialize_xfer("WRITE", *lists, two.name, b"told")
    one.transfer(handle)
    until(lambda: one.check_xfer_state(handle) == "DONE")
    until(lambda: two.check_remote_xfer_done(one.name, b"told"))
    if is_off or (how == "no sink" and not has_telemetry_without_sink()):
        with pytest.raises(bindings.nixlNoTelemetryError):
            one.get_xfer_telemetry(handle)
        return
    seen = one.get_xfer_telemetry(handle)
    # Newer ones say the back end too.
    assert (seen.totalBytes, getattr(seen, "backendName", BACKEND)) == (128, BACKEND)
    assert seen.descCount in (1, 2) and seen.startTime > 0
    assert seen.xferDuration >= seen.postDuration >= 0
    if how == "buffer":
        # What NIXL counts of every back end, in the file that its readers read.
        until(lambda: any(file.stat().st_size > 0 for file in tmp_path.iterdir()))


def has_telemetry_without_sink():
    """Since 1.5; before, nothing was collected where nobody reads it."""
    from importlib import metadata

    return tuple(map(int, metadata.version(MODULE.replace("_", "-")).split(".")[:2])) >= (1, 5)


PEER = """
import pickle, sys
from partner import BACKEND, Memory, api
agent = api.nixl_agent("target", api.nixl_agent_config(True, True, int(sys.argv[1]), backends=[BACKEND]))
rows, size = 16, 128
memory = Memory(rows * size, 1)
agent.register_memory([(memory.address, memory.size, 0, "")], "DRAM")
descriptors = agent.get_xfer_descs([(memory.address + row * size, size, 0) for row in range(rows)], "DRAM")
while not agent.check_remote_metadata("initiator"):
    pass
agent.send_notif("initiator", pickle.dumps((agent.get_serialized_descs(descriptors), memory.address)))
left = 10
while left:
    left -= len(agent.get_new_notifs().get("initiator", []))
assert memory.bytes(12 * size) == bytes(4 * size), "what was written is not there"
"""


def test_two_peers_that_exchange_metadata_by_nixls_listener():
    port = free_port()
    there = subprocess.Popen([sys.executable, "-c", PEER, str(port)], cwd=Path(__file__).parent)
    try:
        here = make("initiator", enable_listen_thread=True, listen_port=free_port())
        rows, size = 16, 128
        memory = Memory(rows * size)
        here.register_memory([(memory.address, memory.size, 0, "")], "DRAM")
        until_listens(port)
        here.send_local_metadata("127.0.0.1", port)
        here.fetch_remote_metadata("target", "127.0.0.1", port)
        got = {}
        until(lambda: got.update(here.get_new_notifs()) or got)
        serialized, base = pickle.loads(got["target"][0])
        until(lambda: here.check_remote_metadata("target"))
        local = here.prep_xfer_dlist("", [(memory.address + row * size, size, 0) for row in range(rows)], "DRAM")
        remote = here.prep_xfer_dlist("target", here.deserialize_descs(serialized))
        indices = [[first, first + 4, first + 8] for first in range(4)]
        reads = [here.make_prepped_xfer("READ", local, some, remote, some[::-1], b"read") for some in indices]
        writes = []
        for first in (12, 14):
            pairs = [
                [(start + row * size, size, 0) for row in (first, first + 1)] for start in (memory.address, base)
            ]
            lists = [here.get_xfer_descs(one, "DRAM") for one in pairs]
            writes.append(here.initialize_xfer("WRITE", *lists, "target", b"written"))
        for some, told in ((reads, b""), (writes, b""), (reads, b"again")):
            for one in some:
                here.transfer(one, told)
            for one in some:
                until(lambda: here.check_xfer_state(one) == "DONE")
        assert memory.bytes() == bytes([1]) * (12 * size) + bytes(4 * size)
        assert there.wait(10) == 0
        here.remove_remote_agent("target")
    finally:
        there.kill()
        there.wait()


def until_listens(port):
    def listens():
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    until(listens, 20)
