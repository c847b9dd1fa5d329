"""Agents of tests: this process's, and partners that are processes of their own and do what they are told over a pipe."""

from __future__ import annotations

import base64
import ctypes
import importlib
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    # NIXL says things on standard output, which is the pipe here.
    PIPE = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

MODULE = os.environ.get("NIXL_MODULE", "nixl_cu12")
api = importlib.import_module(MODULE + "._api")
BACKEND = os.environ.get("NIXL_BACKEND", "POLYRAIL")


class Memory:
    """Memory that may be shared with nobody, as a program's tensors."""

    def __init__(self, size: int, fill: int = 0) -> None:
        self.map = mmap.mmap(-1, size)
        self.size = size
        self.view = (ctypes.c_ubyte * size).from_buffer(self.map)
        self.address = ctypes.addressof(self.view)
        self.fill(fill)

    def fill(self, byte: int, first: int = 0, count: int | None = None) -> None:
        ctypes.memset(self.address + first, byte, self.size - first if count is None else count)

    def bytes(self, first: int = 0, count: int | None = None) -> bytes:
        return ctypes.string_at(self.address + first, self.size - first if count is None else count)

    def put(self, data: bytes, first: int = 0) -> None:
        ctypes.memmove(self.address + first, data, len(data))


class OnGpu:
    """Memory of the first GPU, which PyTorch allocates."""

    def __init__(self, size: int, fill: int = 0) -> None:
        import torch

        self.size, self.tensor = size, torch.full((size,), fill, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize()
        self.address = self.tensor.data_ptr()


class Agent:
    """An agent of this process."""

    def __init__(self, name: str, *, threads: bool = False, params: dict[str, str] | None = None, **config) -> None:
        self.name = name
        self.nixl = api.nixl_agent(name, api.nixl_agent_config(enable_prog_thread=threads, backends=[], **config))
        self.nixl.create_backend(BACKEND, dict(params or {}))
        self.memories: list[Memory | OnGpu] = []
        self.registered = []

    def memory(self, size: int, fill: int = 0, kind: str = "DRAM"):
        memory = OnGpu(size, fill) if kind == "VRAM" else Memory(size, fill)
        self.memories.append(memory)
        self.registered.append(self.nixl.register_memory([(memory.address, size, 0, "")], kind))
        return memory

    def know(self, metadata: bytes) -> str:
        name = self.nixl.add_remote_agent(metadata)
        return name.decode() if isinstance(name, bytes) else name

    def transfer(self, op: str, here: list[tuple[int, int]], there: list[tuple[int, int]], peer: str, notif: bytes = b""):
        """A prepared transfer: pairs of an address and a length at either end."""
        lists = [self.nixl.get_xfer_descs([(at, length, 0) for at, length in side], "DRAM") for side in (here, there)]
        return self.nixl.initialize_xfer(op, *lists, peer, notif)

    def finish(self, handle, notif: bytes = b"", limit: float = 10) -> str:
        """Posts it, and its state when that is known: DONE, ERR, or what was raised."""
        try:
            state, end = self.nixl.transfer(handle, notif), time.monotonic() + limit
            while state == "PROC":
                assert time.monotonic() < end, f"in progress after {limit} s"
                state = self.nixl.check_xfer_state(handle)
            return state
        except AssertionError:
            raise
        except Exception as error:
            return type(error).__name__

    def wait_notifs(self, count: int, limit: float = 10) -> dict[str, list[bytes]]:
        """All notifications from now on, until there are so many."""
        got: dict[str, list[bytes]] = {}
        end = time.monotonic() + limit
        while sum(map(len, got.values())) < count:
            assert time.monotonic() < end, f"{got!r} after {limit} s"
            for name, some in self.nixl.get_new_notifs().items():
                got.setdefault(name, []).extend(some)
        return got


class Partner:
    """A process with one agent. Attributes that are called are commands of `serve`."""

    def __init__(self, name: str, size: int = 1 << 20, fill: int = 0, prefix: tuple[str, ...] = (), **params: str) -> None:
        arguments = [*prefix, sys.executable, str(Path(__file__)), name, str(size), str(fill), json.dumps(params)]
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.name = name
        hello = self.answer(30)
        self.address, self.metadata = hello["address"], base64.b64decode(hello["metadata"])

    def answer(self, limit: float):
        ready, _, _ = select.select([self.process.stdout], [], [], limit)
        assert ready, f"{self.name} does not answer in {limit} s"
        line = self.process.stdout.readline()
        assert line, f"{self.name} has ended"
        return json.loads(line)

    def __getattr__(self, command: str):
        def call(*arguments, limit: float = 30):
            self.process.stdin.write(json.dumps([command, *arguments]).encode() + b"\n")
            self.process.stdin.flush()
            return self.answer(limit)

        return call

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """Stops it, and returns when it stands still."""
        self.signal(signal.SIGSTOP)
        state = ""
        while state not in ("T", "t"):
            state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def serve(name: str, size: int, fill: int, params: dict[str, str]) -> None:
    agent = Agent(name, params=params)
    memory = agent.memory(size, fill)

    def hello():
        return {"address": memory.address, "metadata": base64.b64encode(agent.nixl.get_agent_metadata()).decode()}

    def know(metadata):
        return agent.know(base64.b64decode(metadata))

    def counts(first, count, *bytes_):
        data = memory.bytes(first, count)
        return [data.count(bytes([one])) for one in bytes_]

    def notifs(count):
        got = agent.wait_notifs(count)
        return {who: [base64.b64encode(one).decode() for one in some] for who, some in got.items()}

    def notify(peer, text):
        agent.nixl.send_notif(peer, base64.b64decode(text))
        return True

    def write(peer, at, length, notif):
        handle = agent.transfer("WRITE", [(memory.address, length)], [(at, length)], peer, base64.b64decode(notif))
        state = agent.finish(handle)
        agent.nixl.release_xfer_handle(handle)
        return state

    def filled(byte):
        memory.fill(byte)
        return True

    def seen_with(count, first, length):
        """The bytes there are at the moment that so many notifications are there."""
        agent.wait_notifs(count)
        return base64.b64encode(memory.bytes(first, length)).decode()

    def deregister():
        agent.nixl.deregister_memory(agent.registered.pop())
        return True

    commands = {one.__name__: one for one in (hello, know, counts, notifs, notify, write, filled, seen_with, deregister)}
    print(json.dumps(hello()), file=PIPE, flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        if command == "leave":
            # As a program that ends: its agent goes, and with it what was to be told.
            print("true", file=PIPE, flush=True)
            break
        print(json.dumps(commands[command](*arguments)), file=PIPE, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
