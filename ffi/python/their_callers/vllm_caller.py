"""vLLM: the worker of its Mooncake connector. Prefill listens for decode's requests and sends blocks with its ten threads."""

import asyncio
import importlib
import sys
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import common
import msgspec
import standin
import zmq
import zmq.asyncio

CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.mooncake."
finder = standin.install(
    "vllm", real={CONNECTOR + "mooncake_connector", CONNECTOR + "stats", "vllm.distributed.kv_transfer.kv_connector.v1.metrics"}, instead={"huggingface_hub", "prometheus_client", "torch"}
)
theirs = importlib.import_module(CONNECTOR + "mooncake_connector")
stats = importlib.import_module(CONNECTOR + "stats")

LAYERS, BLOCK, BLOCKS = 4, 16_384, 512
is_prefill = sys.argv[1] == "prefill"
caches = [common.Memory(BLOCK * BLOCKS, None if is_prefill else 0) for _ in range(LAYERS)]

worker = theirs.MooncakeConnectorWorker.__new__(theirs.MooncakeConnectorWorker)
worker.engine = theirs.TransferEngine()
worker.hostname = "127.0.0.1"
assert worker.engine.initialize(worker.hostname, "P2PHANDSHAKE", "tcp", "") == 0
worker.rpc_port = worker.engine.get_rpc_port()
worker.seen_base_addresses = worker.kv_caches_base_addr = [one.base for one in caches]
worker._kv_data_lens = [one.size for one in caches]
worker._kv_unregistered = True
worker.restore_kv_caches()
worker.block_len_per_layer = worker.kv_block_len_per_layer = [BLOCK] * LAYERS
worker.registered_layer_names = [f"layer{index}" for index in range(LAYERS)]
worker.registered_layer_indices = list(range(LAYERS))
worker.registered_group_indices = [0] * LAYERS
worker.region_shared_groups = [(0,)] * LAYERS
worker.region_row_offsets = [-1] * LAYERS


def start_prefill():
    worker.tp_rank, worker.tp_size, worker.pp_size, worker.device_id = 0, 1, 1, 0
    worker.use_mla = False
    worker.opaque_packed_storages = set()
    worker._prepared_transfer_regions, worker._layout_by_peer = {}, OrderedDict()
    worker._physical_blocks_per_logical_kv_block = 1
    worker.transfer_topo = SimpleNamespace(handshake_target_ranks=lambda size: [0], total_num_kv_heads=1)
    worker._producer_cache_is_replicated = lambda: False
    worker.kv_cache_config = SimpleNamespace(
        transfer_groups=[SimpleNamespace(kv_cache_spec=object())], has_mamba_layers=False, transfer_group_index_by_layer={}
    )
    worker.reqs_need_send, worker.finished_sending_reqs = {}, set()
    worker.xfer_stats = stats.MooncakeKVConnectorStats()
    worker.async_zmq_ctx = zmq.asyncio.Context()
    worker._encoder = msgspec.msgpack.Encoder()
    worker._xfer_meta_decoder = msgspec.msgpack.Decoder(theirs.MooncakeXferMetadata)
    # As its constructor makes them.
    worker.num_sender_workers, worker.num_sender_tasks = 10, 20
    worker._sender_executor = ThreadPoolExecutor(max_workers=10, initializer=worker._bind_sender_thread_device)
    worker.sender_worker_queue = asyncio.Queue()
    worker.sender_loop = asyncio.new_event_loop()
    threading.Thread(target=theirs._async_loop, args=(worker.sender_loop,), daemon=True).start()

    async def no_bootstrap():
        pass

    worker.register_worker_with_bootstrap = no_bootstrap
    theirs.envs.VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT = 30
    ready = threading.Event()
    asyncio.run_coroutine_threadsafe(worker._mooncake_sender_listener(ready), worker.sender_loop)
    assert ready.wait(30)


def offer(requests):
    """Requests that prefill has computed: their names and blocks."""

    async def put():
        for name, blocks in requests:
            is_ready = asyncio.Event()
            is_ready.set()
            worker.reqs_need_send[name] = theirs.SendBlockMeta(
                p_req_id=name, transfer_id=name, local_block_ids=[blocks], ready=is_ready
            )

    asyncio.run_coroutine_threadsafe(put(), worker.sender_loop).result(30)


def pull(port, requests):
    """Asks prefill for the blocks of requests, each with a message of its own, all at once: what it says of each."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(f"tcp://127.0.0.1:{port}")
        for name, blocks in requests:
            asked = theirs.MooncakeXferMetadata(
                remote_hostname=worker.hostname,
                remote_port=worker.rpc_port,
                remote_tp_size=1,
                remote_tp_rank=0,
                req_blocks={name: (name, [blocks])},
                kv_caches_base_addr=worker.kv_caches_base_addr,
                block_lens=worker.block_len_per_layer,
                kv_block_lens=worker.kv_block_len_per_layer,
                registered_layer_names=worker.registered_layer_names,
                registered_layer_indices=worker.registered_layer_indices,
                registered_group_indices=worker.registered_group_indices,
                registered_shared_group_ids=[[0]] * LAYERS,
                registered_row_offsets=worker.region_row_offsets,
            )
            socket.send(msgspec.msgpack.encode(asked))
        answers = []
        for _ in requests:
            assert socket.poll(60_000)
            answer = msgspec.msgpack.decode(socket.recv(), type=theirs.MooncakeXferResponse)
            answers.append([answer.ok_reqs, answer.err_reqs, answer.err_msg])
        return answers


if is_prefill:
    start_prefill()
common.serve(
    {
        "port": lambda: worker.side_channel_port,
        "offer": offer,
        "pull": pull,
        "send": lambda session, pointer: worker._send_blocks(session, [caches[0].base], [pointer], [BLOCK]),
        "session": lambda: f"{worker.hostname}:{worker.rpc_port}",
        "base": lambda: caches[0].base,
        "sent": lambda: sorted(worker.finished_sending_reqs),
        "crcs": lambda blocks: [[one.crc(block * BLOCK, BLOCK) for block in blocks] for one in caches],
        "threads": lambda: sum(thread.name.startswith("ThreadPoolExecutor") for thread in threading.enumerate()),
        "unregister": lambda: worker.unregister_kv_caches(),
        "kind": lambda: [type(worker.engine).__module__, finder.used],
    }
)
