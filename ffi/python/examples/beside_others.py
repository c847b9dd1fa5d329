"""How fast bytes go from Python: polyrail beside Mooncake's engine and NIXL, by turns.

    pip install --no-deps mooncake-transfer-engine-non-cuda nixl-cu12; pip install numpy ./ffi/python
    python beside_others.py [ROUNDS [SECONDS]]

Two processes on one host, over TCP on loopback. The initiator writes a batch of blocks between private memories and waits until it is done, again
and again; blocks are 4 KiB apart on both sides, so none can be merged. Each engine is asked in its quickest way: NIXL and polyrail make the
batch ready once and post it, Mooncake takes lists. NIXL's initiator has no thread of its own, which is quicker for it on few cores. Printed are medians of
rounds: GB/s, µs that half of the batches took at most, and seconds of processor time of both processes for a GB.
"""

from __future__ import annotations

import base64
import ctypes
import importlib.metadata
import json
import mmap
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

KIB, MIB, GAP = 1 << 10, 1 << 20, 4 << 10
CELLS = [(1, 4 * KIB), (16, 4 * KIB), (1000, 4 * KIB), (1, 64 * KIB), (16, 64 * KIB), (1000, 64 * KIB), (1, MIB), (16, MIB)]
SIZE = max(count * (block + GAP) for count, block in CELLS)
PACKAGES = {"polyrail": "polyrail", "Mooncake": "mooncake-transfer-engine-non-cuda", "NIXL": "nixl-cu12"}
ENVIRONMENT = {
    "POLYRAIL_TRANSPORTS__SHM__ENABLE": "false",
    "MC_FORCE_TCP": "1",
    "MC_TCP_BIND_ADDRESS": "127.0.0.1",
    "GLOG_minloglevel": "3",
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "lo",
}


def memory() -> tuple[mmap.mmap, int]:
    """Private and touched."""
    content = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(content))
    ctypes.memset(base, 1, SIZE)
    return content, base


class Polyrail:
    def __init__(self, content: mmap.mmap, base: int, is_target: bool) -> None:
        import polyrail

        self.engine = polyrail.Engine(listen="127.0.0.1:0" if is_target else None)
        self.local = self.engine.register(content, "memory" if is_target else None)
        self.hello = f"{self.engine.listening}/memory"

    def ready(self, hello: Any, count: int, block: int) -> Callable[[], object]:
        import numpy

        places = numpy.arange(count) * (block + GAP)
        remote = self.engine.open(hello)
        prepared = self.engine.prepare("write", self.local, remote, block, local_offset=places, remote_offset=places)
        return lambda: prepared.post().wait()


class Mooncake:
    def __init__(self, content: mmap.mmap, base: int, is_target: bool) -> None:
        from mooncake.engine import TransferEngine

        self.engine, self.content, self.base = TransferEngine(), content, base
        assert self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        assert self.engine.register_memory(base, SIZE) == 0
        self.hello = [f"127.0.0.1:{self.engine.get_rpc_port()}", base]

    def ready(self, hello: Any, count: int, block: int) -> Callable[[], object]:
        session, far = hello
        places = [index * (block + GAP) for index in range(count)]
        buffers, addresses = [self.base + place for place in places], [far + place for place in places]
        lengths = [block] * count

        def write() -> None:
            assert self.engine.batch_transfer_sync_write(session, buffers, addresses, lengths) == 0

        return write


class Nixl:
    def __init__(self, content: mmap.mmap, base: int, is_target: bool) -> None:
        from nixl_cu12._api import nixl_agent, nixl_agent_config

        self.agent = nixl_agent(str(is_target), nixl_agent_config(enable_prog_thread=is_target, backends=[]))
        self.content, self.base = content, base
        self.agent.create_backend("UCX", {})
        self.agent.register_memory([(base, SIZE, 0, "")], "DRAM")
        self.hello = [base64.b64encode(self.agent.get_agent_metadata()).decode(), base]

    def ready(self, hello: Any, count: int, block: int) -> Callable[[], object]:
        meta, far = hello
        peer = self.agent.add_remote_agent(base64.b64decode(meta))
        descriptors = [
            self.agent.get_xfer_descs([(start + index * (block + GAP), block, 0) for index in range(count)], "DRAM")
            for start in (self.base, far)
        ]
        handle = self.agent.initialize_xfer("WRITE", *descriptors, peer)

        def write() -> None:
            state = self.agent.transfer(handle)
            while state == "PROC":
                state = self.agent.check_xfer_state(handle)
            assert state == "DONE", state

        return write


ENGINES: dict[str, Any] = {"polyrail": Polyrail, "Mooncake": Mooncake, "NIXL": Nixl}


def processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def target(name: str) -> None:
    side = ENGINES[name](*memory(), is_target=True)
    print("@" + json.dumps(side.hello), flush=True)
    for _ in sys.stdin:
        print(f"@{processor_time()}", flush=True)
    os._exit(0)


def initiator(name: str, seconds: float) -> None:
    """Measures all cells against a target of its own."""
    process = subprocess.Popen([sys.executable, __file__, "target", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdin is not None

    def answer() -> Any:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("@"):
            assert line, "the target has ended"
        return json.loads(line[1:])

    def both() -> float:
        assert process.stdin is not None
        print(file=process.stdin, flush=True)
        return processor_time() + float(answer())

    hello = answer()
    side = ENGINES[name](*memory(), is_target=False)
    found = []
    for count, block in CELLS:
        write = side.ready(hello, count, block)
        end = time.perf_counter() + seconds / 4
        while time.perf_counter() < end:
            write()
        used, took = both(), []
        start = last = time.perf_counter()
        while last - start < seconds or len(took) < 3:
            write()
            now = time.perf_counter()
            took.append(now - last)
            last = now
        gb = count * block * len(took) / 1e9
        found.append([gb / (last - start), statistics.median(took) * 1e6, (both() - used) / gb])
    print("@" + json.dumps(found), flush=True)
    process.kill()
    os._exit(0)


def main(rounds: int, seconds: float) -> None:
    versions = {name: importlib.metadata.version(package) for name, package in PACKAGES.items()}
    print(", ".join(f"{name} {version}" for name, version in versions.items()), f"Python {platform.python_version()}", sep=", ")
    found: dict[str, list[Any]] = {name: [] for name in ENGINES}
    for _ in range(rounds):
        for name in ENGINES:
            command = [sys.executable, __file__, "initiator", name, str(seconds)]
            ended = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=300)
            lines = [line[1:] for line in ended.stdout.splitlines() if line.startswith("@")]
            if not lines:
                raise SystemExit(f"{name} ended with {ended.returncode}: {ended.stderr}")
            found[name].append(json.loads(lines[-1]))
    print(f"load {os.getloadavg()[0]:.0f}\n\n| blocks | {' | '.join(ENGINES)} |\n|---|{'---|' * len(ENGINES)}")
    for cell, (count, block) in enumerate(CELLS):
        size = f"{block // MIB} MiB" if block >= MIB else f"{block // KIB} KiB"
        words = []
        for name in ENGINES:
            speed, half, used = (statistics.median(one[cell][which] for one in found[name]) for which in range(3))
            words.append(f"{speed:.2f} / {half:,.0f} / {used:.2f}")
        print(f"| {count:,} × {size} | {' | '.join(words)} |")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["target", name]:
            target(name)
        case ["initiator", name, seconds]:
            initiator(name, float(seconds))
        case more:
            main(int(more[0]) if more else 3, float(more[1]) if len(more) > 1 else 0.5)
