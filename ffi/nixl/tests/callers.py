"""Programs that move bytes through NIXL, taken from their wheels, as processes that `test_callers.py` starts.

    callers.py WHO ROLE, with NIXL_CALLERS naming the folder that the wheels are unpacked in
"""

import json
import logging
import os
import sys
import time
import types

PIPE = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import nixl  # noqa: E402,F401  Before there is a stand-in for torch, which it asks for its version.
import stand_ins  # noqa: E402
from partner import Memory, api  # noqa: E402,F401

FOLDER = os.environ["NIXL_CALLERS"]
BLOCK, BLOCKS = 16384, 256


def say(what):
    print(json.dumps(what), file=PIPE, flush=True)


def hear():
    return json.loads(sys.stdin.readline())


def blocks(memory, numbers):
    return [memory.bytes(number * BLOCK, 1)[0] for number in numbers]


def marked(base):
    memory = Memory(BLOCK * BLOCKS)
    for number in range(BLOCKS):
        memory.fill((base + number) % 256, number * BLOCK, BLOCK)
    return memory


def lmcache(role):
    """The channel between caches: `backends` of its options names the back end."""
    name = "lmcache.v1.distributed.transfer_channel"
    stand_ins.install({"lmcache"}, FOLDER, *(f"{name}.{one}" for one in ("impl.nixl_impl", "abstract", "api")))
    from lmcache.v1.distributed.transfer_channel.impl import nixl_impl

    nixl_impl.logger = logging.getLogger()
    memory = marked(0 if role == "source" else 100)
    port = hear()
    describe = types.SimpleNamespace(ptr=memory.address, size=memory.size, align_bytes=BLOCK)
    url = f"127.0.0.1:{port}"
    context = nixl_impl.create_nixl_transfer_channel_context(describe, url, url, backends=["POLYRAIL"])
    say("ready")
    if role == "source":
        hear()
        return
    client = context.get_transfer_channel_client(hear())

    def addresses(numbers):
        return context.get_transfer_channel_address([(number * BLOCK, BLOCK) for number in numbers])

    task = client.submit_read(addresses(range(0, 64)), addresses(range(63, -1, -1)))
    while not (result := client.query_read_status(task)).finished:
        pass
    say({"good": all(result.succeeded_mask), "blocks": blocks(memory, range(64))})
    hear()  # The source is killed now.
    try:
        task = client.submit_read(addresses(range(64)), addresses(range(64)))
        while not (result := client.query_read_status(task)).finished:
            pass
        say({"good": any(result.succeeded_mask)})
    except Exception as error:
        say({"raised": type(error).__name__})


def vllm_tier(role):
    """The tier of vLLM's offloading that writes blocks to peers: `backends` names the back end."""
    name = "vllm.v1.kv_offload.tiering.p2p.data"
    stand_ins.install({"vllm", "torch"}, FOLDER, f"{name}.nixl", f"{name}.base")
    module = types.ModuleType("vllm.distributed.nixl_utils")
    module.NixlWrapper, module.nixl_agent_config = api.nixl_agent, api.nixl_agent_config
    sys.modules[module.__name__] = module
    from vllm.v1.kv_offload.tiering.p2p.data import nixl

    nixl.logger = logging.getLogger()
    memory = marked(0 if role == "source" else 100)
    view = memoryview(memory.map).cast("B", [BLOCKS, BLOCK])
    transport = nixl.NixlTransport(role, view, backends=["POLYRAIL"])
    say({"metadata": transport.get_agent_metadata().hex(), "address": memory.address})
    if role == "target":
        while (asked := hear()) is not None:
            say(blocks(memory, asked))
        return
    peer = hear()
    transport.add_remote_peer("peer", bytes.fromhex(peer["metadata"]), peer["address"], BLOCKS, BLOCK)

    def write():
        number = transport.write_blocks("peer", list(range(100)), list(range(150, 250)))
        while number is not None:
            result = transport.poll("peer")
            if number in result.done:
                return "done"
            if number in result.failed or result.peer_fault:
                return result.peer_fault or "failed"
        return transport.poll("peer").peer_fault

    say(write())
    hear()
    say(write())


def vllm_connector(role):
    """The path of vLLM's NixlConnector that reads blocks, finishes them and takes notifications. What it works out from a
    model, which descriptors belong to which blocks, is given."""
    name = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
    stand_ins.install({"vllm", "torch", "regex"}, FOLDER, f"{name}.base_worker", f"{name}.pull_worker")
    import collections

    import numpy
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker, pull_worker

    for one in (base_worker, pull_worker):
        one.logger = logging.getLogger()
    kinds = [one for one in vars(pull_worker).values() if isinstance(one, type) and "_read_blocks_mixed" in vars(one)]
    worker = object.__new__(kinds[0])
    memory = marked(0 if role == "source" else 100)
    worker.nixl_wrapper = api.nixl_agent(role, api.nixl_agent_config(backends=["POLYRAIL"], capture_telemetry=True))
    worker.nixl_backends = ["POLYRAIL"]
    worker.transfer_topo = object()
    worker.xfer_stats = stand_ins.Thing()
    descriptors = worker.nixl_wrapper.get_reg_descs([(memory.address, memory.size, 0, "")], "DRAM")
    worker.nixl_wrapper.register_memory(descriptors, backends=worker.nixl_backends)
    say({"metadata": worker.nixl_wrapper.get_agent_metadata().hex(), "address": memory.address})
    counts = collections.defaultdict(int)
    worker.consumer_notification_counts_by_req, worker.expected_consumer_notifications_by_req = counts, {}
    if role == "source":
        worker._reqs_to_send, worker._reqs_to_process = {"request": 0}, {"request"}
        while not (done := worker._get_new_notifs()):
            pass
        say(sorted(done))
        hear()
        return
    peer = hear()
    remote = worker.nixl_wrapper.add_remote_agent(bytes.fromhex(peer["metadata"]))

    def side(agent, base):
        rows = [(base + number * BLOCK, BLOCK, 0) for number in range(BLOCKS)]
        return worker.nixl_wrapper.prep_xfer_dlist(agent, worker.nixl_wrapper.get_xfer_descs(rows, "DRAM"))

    worker._skip_dram_xfer = False
    worker._desc_is_dram_by_block_size = {16: numpy.ones(BLOCKS, bool)}
    worker._desc_pos_by_block_size = {16: numpy.arange(BLOCKS)}
    worker._recving_transfers, worker._pending_recv_notifs = collections.defaultdict(list), {}
    worker._log_failure = lambda **said: logging.error("%s", said)
    local_side, remote_side = side("NIXL_INIT_AGENT", memory.address), side(remote, peer["address"])
    failures = set()

    def read():
        worker._read_blocks_mixed("request", 16, local_side, local_side, remote_side, numpy.arange(64),
                                  numpy.arange(63, -1, -1), remote, b"request:1")  # fmt: skip
        end = time.monotonic() + 10
        while time.monotonic() < end:
            done, failed = worker._pop_done_transfers(worker._recving_transfers)
            failures.update(failed)
            if done:
                return sorted(done)
        return "still in progress"

    done = read()
    for agent, told in worker._pending_recv_notifs.pop("request"):
        worker.nixl_wrapper.send_notif(agent, notif_msg=told)
    say({"done": done, "failed": sorted(failures), "blocks": blocks(memory, range(64))})
    hear()
    try:
        done = read()
    except Exception as error:
        done = type(error).__name__
    say({"done": done, "failed": sorted(failures)})


def sglang(role):
    """SGLang's connection for disaggregation: `SGLANG_DISAGGREGATION_NIXL_BACKEND` names the back end."""
    import numpy

    name = "sglang.srt.disaggregation.nixl.conn"
    stand_ins.install({"sglang", "torch", "fastapi", "orjson"}, FOLDER, name)
    from sglang.srt.disaggregation.nixl import conn

    conn.logger = logging.getLogger()
    manager = object.__new__(conn.NixlKVManager)
    memory = marked(0 if role == "source" else 100)
    manager.agent = api.nixl_agent(role, api.nixl_agent_config(
        backends=[], num_threads=8, sync_mode=api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT))  # fmt: skip
    parameters = json.loads(os.environ.get("SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS", "{}"))
    manager.agent.create_backend(os.environ["SGLANG_DISAGGREGATION_NIXL_BACKEND"], parameters)
    aux = Memory(4096, 7 if role == "source" else 0)
    manager.kv_args = types.SimpleNamespace(
        kv_data_ptrs=[memory.address], kv_data_lens=[memory.size], kv_data_mem_kinds=["DRAM"], gpu_id=0,
        aux_data_ptrs=[aux.address], aux_data_lens=[4096], aux_item_lens=[4096], state_data_ptrs=[], state_types=[],
        state_data_lens=[], state_item_lens=[], kv_item_lens=[BLOCK])  # fmt: skip
    manager.register_buffer_to_engine()
    say({"metadata": manager.agent.get_agent_metadata().hex(), "address": memory.address, "aux": aux.address})
    if role == "target":
        told = []
        while not told:
            told = manager.agent.get_new_notifs().get("source", [])
        say({"told": told[0].decode(), "blocks": blocks(memory, range(150, 250))})
        hear()
        say(aux.bytes(0, 1)[0])
        hear()
        return
    peer = hear()
    manager.agent.add_remote_agent(bytes.fromhex(peer["metadata"]))

    def send():
        pages = numpy.arange(100, dtype=numpy.int32)
        manager.is_mla_backend, manager.attn_tp_size = False, 1
        sides = [
            manager._prep_xfer_dlist(who, manager._pack_stride_descs([(base, BLOCK, 0, BLOCK, BLOCKS)]), "DRAM")
            for who, base in (("", memory.address), ("target", peer["address"]))
        ]
        handle = manager.agent.make_prepped_xfer("WRITE", sides[0], pages, sides[1], pages + 150, b"room_0_kv")
        manager._post_xfer(handle, "KV transfer")
        return handle

    handles = [send(), manager.send_aux("target", 0, [peer["aux"]], 0)]
    settled, failed = manager._await_handles(handles, failure_seen=False)
    say({"settled": settled, "failed": failed})
    hear()
    try:
        settled, failed = manager._await_handles([send()], failure_seen=False)
        say({"settled": settled, "failed": failed})
    except Exception as error:
        say({"raised": type(error).__name__})


if __name__ == "__main__":
    {"lmcache": lmcache, "vllm_tier": vllm_tier, "vllm_connector": vllm_connector, "sglang": sglang}[sys.argv[1]](sys.argv[2])
    PIPE.flush()
    os._exit(0)
