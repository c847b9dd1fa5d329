"""checkpoint-engine: the store that trainers put named tensors into, and others read them from."""

import os
import sys
from types import SimpleNamespace

import common
import standin

os.environ["RANK"] = "0"
finder = standin.install("checkpoint_engine", real={"checkpoint_engine.p2p_store", "checkpoint_engine.device_utils"}, instead={"torch"})

from checkpoint_engine import p2p_store  # noqa: E402

p2p_store.get_ip = lambda: "127.0.0.1"
devices = SimpleNamespace(
    device_module=SimpleNamespace(device_count=lambda: 1), rdma_device=lambda rank: "", transfer_engine_protocol="rdma"
)
store = p2p_store.P2PStore(devices)
memory = [common.Memory(1 << 20, None if sys.argv[1] == "trainer" else 0) for _ in range(4)]
tensors = {f"layer{index}": SimpleNamespace(data_ptr=lambda one=one: one.base, nbytes=one.size) for index, one in enumerate(memory)}


def read(address, pointers, lengths):
    store.batch_transfer_sync_read(address, [one.base for one in memory], pointers, lengths)


def try_read(address, pointers, lengths):
    try:
        read(address, pointers, lengths)
    except AssertionError:
        return "it asserts that the answer is 0"


common.serve(
    {
        "address": lambda: store.addr,
        "register": lambda: store.register_named_tensors(tensors),
        "unregister": lambda: store.unregister_named_tensors(list(tensors)),
        "pointers": lambda: [[one.base for one in memory], [one.size for one in memory]],
        "read": try_read,
        "crcs": lambda: [one.crc() for one in memory],
        "kind": lambda: [type(store.engine).__module__, finder.used],
    }
)
