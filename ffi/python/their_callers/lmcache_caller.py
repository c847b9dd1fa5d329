"""LMCache: the transfer channel of a cache that reads pages of another one's."""

import sys
from pathlib import Path

import common
import standin

sys.path.append(str(Path(__file__).parents[2] / "nixl" / "tests"))
from ports import free_port  # noqa: E402

CHANNEL = "lmcache.v1.distributed.transfer_channel."
finder = standin.install(
    "lmcache",
    real={
        "lmcache.v1.distributed.internal_api",
        CHANNEL + "abstract",
        CHANNEL + "api",
        CHANNEL + "factory",
        CHANNEL + "impl.mooncake_te_impl",
    },
    instead={"torch"},
)

from lmcache.v1.distributed.internal_api import L1MemoryDesc  # noqa: E402
from lmcache.v1.distributed.transfer_channel.impl import mooncake_te_impl  # noqa: E402

memory = common.Memory(64 << 20, None if sys.argv[1] == "source" else 0)
url = f"127.0.0.1:{free_port()}"
context = mooncake_te_impl.create_mooncake_te_transfer_channel_context(
    L1MemoryDesc(ptr=memory.base, size=memory.size, align_bytes=4096), listen_url=url, advertise_url=url
)


def read(peer, here, there):
    """Reads lists of (offset, size): which of them have come."""
    client = context.get_transfer_channel_client(peer)
    find = context.get_transfer_channel_address
    task = client.submit_read(find([tuple(one) for one in here]), find([tuple(one) for one in there]))
    while not (result := client.query_read_status(task)).finished:
        pass
    return result.succeeded_mask


def try_read(peer, here, there):
    try:
        return read(peer, here, there)
    except RuntimeError as error:
        return str(error)


common.serve(
    {
        "url": lambda: url,
        "read": try_read,
        "crc": memory.crc,
        "kind": lambda: [type(context.mooncake_te_engine).__module__, finder.used],
        "end": lambda: context.close(),
    }
)
