"""SGLang: the engine's wrapper, and the sending half of a PD connection."""

import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import common
import numpy
import standin

finder = standin.install(
    "sglang",
    real={
        "sglang.srt.disaggregation.base.conn",
        "sglang.srt.disaggregation.common.conn",
        "sglang.srt.disaggregation.common.utils",
        "sglang.srt.disaggregation.mooncake.conn",
        "sglang.srt.distributed.device_communicators.mooncake_transfer_engine",
        "sglang.srt.environ",
        "sglang.srt.utils.network",
    },
    instead={"aiohttp", "prometheus_client", "psutil", "requests", "torch"},
)

from sglang.srt.disaggregation.mooncake import conn  # noqa: E402
from sglang.srt.distributed.device_communicators import mooncake_transfer_engine as wrapper  # noqa: E402

# A stand-in answers nothing of use.
wrapper.run_with_deadline = lambda function, **_: function()

LAYERS, PAGE, PAGES, AUX = 4, 4096, 256, 64
# K of each layer, then V of each.
kv = [common.Memory(PAGE * PAGES, None if sys.argv[1] == "prefill" else 0) for _ in range(2 * LAYERS)]
aux = common.Memory(AUX * 16, None if sys.argv[1] == "prefill" else 0)
engine = wrapper.MooncakeTransferEngine("127.0.0.1", gpu_id=0, ib_device=None)

manager = conn.MooncakeKVManager.__new__(conn.MooncakeKVManager)
manager.engine = engine
manager.kv_args = SimpleNamespace(
    kv_data_ptrs=[one.base for one in kv],
    kv_data_lens=[one.size for one in kv],
    kv_item_lens=[PAGE] * len(kv),
    kv_layer_ids=[],
    aux_data_ptrs=[aux.base],
    aux_data_lens=[aux.size],
    aux_item_lens=[AUX],
    state_data_ptrs=[],
    state_data_lens=[],
    prefill_start_layer=0,
)
manager.is_mla_backend = manager.is_hybrid_mla_backend = manager.enable_custom_mem_pool = False
manager.max_transfer_batch_indices = 0
manager.pp_size = 1
manager.state_strides_validated = set()
manager.session_lock = threading.Lock()
manager.session_failures = defaultdict(int)
manager.failed_sessions, manager.failed_session_probes = set(), {}
manager.failed_session_probe_interval, manager.failed_session_probe_max_interval = 1e-6, 1e-5
manager.failed_session_idle_timeout = 3600
manager.register_buffer_to_engine()
executor = ThreadPoolExecutor(4)


def pages(numbers):
    return numpy.array(numbers, numpy.int32)


def send(session, pointers, source, target):
    return manager.send_kvcache(session, pages(source), pointers, pages(target), executor)


def send_aux(session, pointers, source, target):
    to = SimpleNamespace(mooncake_session_id=session, dst_aux_index=target)
    return manager.send_aux(to, source, pointers)


def blacklist(session):
    manager.failed_sessions.add(session)


def probe():
    manager._run_one_probe_pass()
    return sorted(manager.failed_sessions)


def crcs(numbers):
    return [[one.crc(number * PAGE, PAGE) for number in numbers] for one in kv]


common.serve(
    {
        "session": engine.get_session_id,
        "pointers": lambda: [manager.kv_args.kv_data_ptrs, manager.kv_args.aux_data_ptrs],
        "send": send,
        "send_aux": send_aux,
        "send_one": lambda session, pointer: engine.transfer_sync(session, kv[0].base, pointer, PAGE),
        "blacklist": blacklist,
        "probe": probe,
        "crcs": crcs,
        "aux": lambda index: aux.crc(index * AUX, AUX),
        "kind": lambda: [type(engine.engine).__module__, engine.get_engine(), [path for path in finder.used]],
        "end": lambda: manager.deregister_buffer_to_engine(),
    }
)
