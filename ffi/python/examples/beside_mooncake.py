"""Mooncake's engine and polyrail's drop-in for it, side by side: what each answers when things go wrong, and what is true then.

    pip install mooncake-transfer-engine-non-cuda ./ffi/python
    python ffi/python/examples/beside_mooncake.py

Both go over TCP on loopback, by the same calls of the same program. Each case has an initiator and a target in processes of their own.
It ends with 0 if what ours answered was true.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import mmap
import os
import platform
import signal
import subprocess
import sys
import time

MIB = 1 << 20
OLD, NEW = 0x11, 0x77
MODULES = {"Mooncake": "mooncake.engine", "polyrail": "polyrail.mooncake"}


class Side:
    """An engine, and memory that it has registered."""

    def __init__(self, name: str, size: int, file: int = -1) -> None:
        module = __import__(MODULES[name], fromlist=["TransferEngine"])
        self.engine = module.TransferEngine()
        assert self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        self.memory = mmap.mmap(file, size)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        # Touched before anything is measured.
        self.fill(0)
        assert self.engine.register_memory(self.base, size) == 0
        self.session = f"127.0.0.1:{self.engine.get_rpc_port()}"

    def fill(self, value: int) -> None:
        ctypes.memset(self.base, value, len(self.memory))

    def count(self, value: int) -> int:
        return count(self.memory, value)


def count(memory: mmap.mmap, value: int) -> int:
    """How many bytes have a value."""
    return sum(memory[start : start + MIB].count(value) for start in range(0, len(memory), MIB))


def serve(name: str, size: int, file: int) -> None:
    """The target: answers how many bytes of its memory have a value."""
    side = Side(name, size, file)
    print("@", side.session, side.base, flush=True)
    for line in sys.stdin:
        print("@", side.count(int(line)), flush=True)


class Target:
    """A target in a process of its own, whose memory can be looked at from here, also while it is stopped."""

    def __init__(self, name: str, size: int) -> None:
        file = os.memfd_create("target")
        os.truncate(file, size)
        self.memory = mmap.mmap(file, size)
        command = [sys.executable, __file__, "target", name, str(size), str(file)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[file])
        session, base = self.line()
        self.session, self.base = session, int(base)

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        while not (line := self.process.stdout.readline()).startswith("@"):
            assert line, "the target has ended"
        return line[1:].split()

    def count(self, value: int) -> int:
        assert self.process.stdin is not None
        print(value, file=self.process.stdin, flush=True)
        return int(self.line()[0])

    def settled(self, value: int) -> int:
        """The same once it has been so for a second."""
        before = -1
        while (now := self.count(value)) != before:
            before = now
            time.sleep(1)
        return now


def status_of_a_batch(name: str) -> dict[str, object]:
    """4 KiB and 512 MiB are one batch: what has come when its status is "done"?"""
    size = 513 * MIB
    here, target = Side(name, size), Target(name, size)
    here.fill(OLD)
    assert here.engine.transfer_sync_write(target.session, here.base, target.base, 4096) == 0
    lengths = [4096, 512 * MIB]
    places = [0, MIB]
    batch = here.engine.batch_transfer_async_write(
        target.session, [here.base + place for place in places], [target.base + place for place in places], lengths
    )
    while (status := here.engine.transfer_check_status(batch)) == 0:
        pass
    os.kill(target.process.pid, signal.SIGSTOP)
    missing = sum(lengths) - count(target.memory, OLD)
    target.process.kill()
    return {"answer": status, "missing": missing}


def reuse_after_time_out(name: str) -> dict[str, object]:
    """A target stands still for longer than the call waits. The caller gets its answer, and uses its memory for something else."""
    size = 256 * MIB
    here, target = Side(name, size), Target(name, size)
    assert here.engine.transfer_sync_write(target.session, here.base, target.base, 4096) == 0
    here.fill(OLD)
    os.kill(target.process.pid, signal.SIGSTOP)
    start = time.monotonic()
    answer = here.engine.transfer_sync_write(target.session, here.base, target.base, size)
    seconds = time.monotonic() - start
    held = bool(here.engine.held()) if hasattr(here.engine, "held") else False
    if not held:
        here.fill(NEW)
    os.kill(target.process.pid, signal.SIGCONT)
    wrong = target.settled(NEW)
    # And the next one.
    again = here.engine.transfer_sync_write(target.session, here.base, target.base, 4096)
    target.process.kill()
    return {"answer": answer, "seconds": seconds, "wrong": wrong, "held": held, "again": again}


def killed_target(name: str) -> dict[str, object]:
    """The target is killed in the midst of a transfer."""
    size = 512 * MIB
    here, target = Side(name, size), Target(name, size)
    assert here.engine.transfer_sync_write(target.session, here.base, target.base, 4096) == 0
    batch = here.engine.batch_transfer_async_write(target.session, [here.base] * 4, [target.base] * 4, [size] * 4)
    time.sleep(0.05)
    target.process.kill()
    start = time.monotonic()
    while (status := here.engine.transfer_check_status(batch)) == 0:
        time.sleep(0.0001)
    seconds = time.monotonic() - start
    start = time.monotonic()
    probe = here.engine.send_probe(target.session)
    return {"answer": status, "seconds": seconds, "probe": probe, "probe_seconds": time.monotonic() - start}


CASES = [status_of_a_batch, reuse_after_time_out, killed_target]


def run(case: str, name: str) -> dict[str, object]:
    environment = {**os.environ, "MC_TRANSFER_TIMEOUT": "5", "MC_FORCE_TCP": "1", "GLOG_minloglevel": "3"}
    environment["POLYRAIL_TRANSPORTS__SHM__ENABLE"] = "false"
    environment.pop("POLYRAIL_AS_MOONCAKE", None)
    command = [sys.executable, __file__, "case", case, name]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    lines = [line[1:] for line in ended.stdout.splitlines() if line.startswith("@{")]
    if not lines:
        print(ended.stderr, file=sys.stderr)
        return {"answer": f"the process ended with {ended.returncode}"}
    found: dict[str, object] = json.loads(lines[0])
    return found


def version(*names: str) -> str:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    raise SystemExit(f"{names[0]} is not installed")


def main() -> int:
    theirs = version("mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine")
    print(f"Mooncake {theirs}, polyrail {version('polyrail')}, Python {platform.python_version()}, Linux {platform.release()}")
    found = {(case.__name__, name): run(case.__name__, name) for case in CASES for name in MODULES}

    def row(text: str, case: str, key: str, unit: str = "") -> None:
        cells = [found[case, name].get(key, found[case, name]["answer"]) for name in MODULES]
        words = [f"{cell:.3f}{unit}" if isinstance(cell, float) else f"{cell:,}{unit}" if isinstance(cell, int) else cell for cell in cells]
        print(f"| {text} | {words[0]} | {words[1]} |")

    print("\n| | Mooncake | polyrail |\n|---|---|---|")
    row("status of a batch of 4 KiB and 512 MiB", "status_of_a_batch", "answer")
    row("bytes of it that have not come then", "status_of_a_batch", "missing")
    row("stopped target, time-out of 5 s: answer", "reuse_after_time_out", "answer")
    row("after", "reuse_after_time_out", "seconds", " s")
    row("bytes that the caller wrote afterwards and the target got", "reuse_after_time_out", "wrong")
    row("next transfer once the target goes on", "reuse_after_time_out", "again")
    row("killed target: status of what was on its way", "killed_target", "answer")
    row("after", "killed_target", "seconds", " s")
    row("`send_probe` to it", "killed_target", "probe")
    row("after", "killed_target", "probe_seconds", " s")
    ours = {case.__name__: found[case.__name__, "polyrail"] for case in CASES}
    is_true = (
        ours["status_of_a_batch"] == {"answer": 1, "missing": 0}
        and (ours["reuse_after_time_out"].get("wrong"), ours["reuse_after_time_out"].get("again")) == (0, 0)
        and ours["killed_target"]["answer"] == -1
        and ours["killed_target"].get("probe") != 0
    )
    return 0 if is_true else 1


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["target", name, size, file]:
            serve(name, int(size), int(file))
        case ["case", case, name]:
            print("@" + json.dumps({one.__name__: one for one in CASES}[case](name)), flush=True)
            # Theirs may not end by itself.
            os._exit(0)
        case _:
            sys.exit(main())
