"""Many posts, one after the other: as many as a busy program makes in a day, if `NIXL_SOAK_SECONDS` says 600."""

import base64
import os
import time
from pathlib import Path

SECONDS = float(os.environ.get("NIXL_SOAK_SECONDS") or 3)
# Resident memory that may come with caches and arenas, whatever the time.
GROWTH_MAX = 8 << 20
# Descriptors that agents of other tests in this process may open meanwhile.
OPENED_MAX = 8


def resident(pid="self"):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid="self"):
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_posts_without_end_take_no_memory(agent, partner):
    here, there = agent(), partner()
    here.know(there.metadata)
    there.know(base64.b64encode(here.nixl.get_agent_metadata()).decode())
    memory = here.memory(1 << 20)
    prepared = here.transfer("WRITE", [(memory.address, 65536)], [(there.address, 65536)], there.name, b"again")
    told = 0

    def turn():
        nonlocal told
        for _ in range(50):
            assert here.finish(prepared, b"again") == "DONE"
        handle = here.transfer("READ", [(memory.address, 4096)] * 64, [(there.address, 4096)] * 64, there.name, b"new")
        assert here.finish(handle) == "DONE"
        here.nixl.release_xfer_handle(handle)
        there.notifs(51)
        told += 51

    end = time.monotonic() + 1
    while time.monotonic() < end:
        turn()
    before = [(resident(pid), descriptors(pid)) for pid in ("self", there.process.pid)]
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        turn()
    after = [(resident(pid), descriptors(pid)) for pid in ("self", there.process.pid)]
    print(f"{told} posts; {before} before, {after} after")
    for (bytes_before, open_before), (bytes_after, open_after) in zip(before, after):
        assert bytes_after - bytes_before < GROWTH_MAX and open_after - open_before < OPENED_MAX
