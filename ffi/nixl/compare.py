#!/usr/bin/env python3
"""POLYRAIL beside UCX through the same interface of NIXL's: two processes on this host, memory of the host or of a GPU, by turns.

    NIXL_PLUGIN_DIR=$(python -m polyrail.nixl --plugin-dir) ffi/nixl/compare.py [--rounds 3] [--seconds 0.5] [--cells 4096x16,...]

`--transports` says over what: `tcp` (loopback), `host` (whatever there is between processes), `gpu` (from cuda:0 to cuda:0 of the
other process, which needs PyTorch) and `gpu-host` (from cuda:0 to the other process's memory of the host).

UCX runs with NIXL's progress thread and without; the better one counts, for each cell. Rows: what POLYRAIL moves and UCX does,
in GB/s (10^9), the median of the rounds; then processor seconds of both processes for each GB. `faults` in place of cells says
what a program is told when the peer is killed, stopped, or was killed and is there again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "tests"))

KIB, MIB = 1 << 10, 1 << 20
CELLS = [
    (4 * KIB, 1), (4 * KIB, 16), (64 * KIB, 1), (64 * KIB, 16), (64 * KIB, 128), (MIB, 1), (MIB, 16), (4 * MIB, 1),
    (4 * MIB, 16), (64 * MIB, 1), (64 * MIB, 16), (4 * KIB, 100_000),
]  # fmt: skip
# Blocks do not touch, so that nobody merges them, as pages of a cache.
GAP = 4 * KIB
UCX = {"tcp": {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}, "host": {"UCX_TLS": "sm,self,tcp"}, "gpu": {}, "gpu-host": {}}
SYSTEMS = {"polyrail": ("POLYRAIL", False), "ucx": ("UCX", False), "ucx+thread": ("UCX", True)}


def agent(name, system, transport):
    import partner

    params = {"transports/shm/enable": "false"} if system == "polyrail" and transport == "tcp" else {}
    return partner.Agent(name, threads=SYSTEMS[system][1] or (system != "polyrail" and name == "target"), params=params)


def kinds(transport):
    """Where memory is, here and at the target."""
    return {"gpu": ("VRAM", "VRAM"), "gpu-host": ("VRAM", "DRAM")}.get(transport, ("DRAM", "DRAM"))


def target(arg):
    one = agent("target", arg.system, arg.transport)
    memory = one.memory(arg.bytes, kind=kinds(arg.transport)[1])
    say({"address": memory.address, "metadata": one.nixl.get_agent_metadata().hex()})
    for _ in sys.stdin:
        say(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))


PIPE = os.fdopen(os.dup(1), "w")


def say(what):
    print(json.dumps(what), file=PIPE, flush=True)


class Target:
    def __init__(self, arg, bytes_):
        command = [sys.executable, __file__, "--target", "--system", arg.system, "--transport", arg.transport]
        self.process = subprocess.Popen([*command, "--bytes", str(bytes_)], stdin=-1, stdout=-1, text=True)
        hello = json.loads(self.process.stdout.readline())
        self.address, self.metadata = hello["address"], bytes.fromhex(hello["metadata"])

    def cpu(self):
        self.process.stdin.write("cpu\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.kill()
        self.process.wait()


def handle(one, op, memory, there, block, batch, transport):
    import numpy

    rows = []
    for base in (memory.address, there.address):
        places = base + numpy.arange(batch, dtype=numpy.uint64) * numpy.uint64(block + GAP)
        rows.append(numpy.stack([places, numpy.full(batch, block, numpy.uint64), numpy.zeros(batch, numpy.uint64)], 1))
    return one.nixl.initialize_xfer(op, *[one.nixl.get_xfer_descs(*of) for of in zip(rows, kinds(transport))], "target")


def run(arg):
    cells = [tuple(map(int, one.split("x"))) for one in arg.cells.split(",")] if arg.cells else CELLS
    bytes_ = max((block + GAP) * batch for block, batch in cells)
    there, one = Target(arg, bytes_), agent("initiator", arg.system, arg.transport)
    memory = one.memory(bytes_, 1, kinds(arg.transport)[0])
    one.know(there.metadata)
    for block, batch in cells:
        for op in ("WRITE", "READ"):
            # As a program that has a new list each time; what is prepared once is what the others have.
            prepared = handle(one, op, memory, there, block, batch, arg.transport)
            once(one, prepared)
            times, cpu = [], sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) + there.cpu()
            start = time.perf_counter()
            while time.perf_counter() - start < arg.seconds or len(times) < 3:
                before = time.perf_counter()
                once(one, prepared)
                times.append(time.perf_counter() - before)
            spent = sum(times)
            cpu = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) + there.cpu() - cpu
            gigabytes = block * batch * len(times) / 1e9
            one.nixl.release_xfer_handle(prepared)
            say({"cell": f"{block}x{batch}", "op": op, "rate": gigabytes / spent, "cpu": cpu / gigabytes,
                 "p50": statistics.median(times) * 1e6})  # fmt: skip
    there.end()


def once(one, prepared):
    state = one.finish(prepared, limit=60)
    if state != "DONE":
        sys.exit(f"a transfer ended as {state}")


def faults(arg):
    """What is told of a peer that dies or stands still in the midst of 64 MiB x 16, and after how long."""
    block, batch = 64 * MIB, 16
    for fault in ("killed", "stopped", "killed, and another one started"):
        there, one = Target(arg, (block + GAP) * batch), agent("initiator", arg.system, arg.transport)
        memory = one.memory((block + GAP) * batch, 1, kinds(arg.transport)[0])
        one.know(there.metadata)
        prepared = handle(one, "WRITE", memory, there, block, batch, arg.transport)
        once(one, prepared)
        state, start = one.nixl.transfer(prepared), time.monotonic()
        there.process.send_signal(signal.SIGSTOP if fault == "stopped" else signal.SIGKILL)
        while state == "PROC" and time.monotonic() - start < arg.limit:
            try:
                state = one.nixl.check_xfer_state(prepared)
            except Exception as error:
                state = type(error).__name__
        seconds = time.monotonic() - start
        there.end()
        again = ""
        if "started" in fault:
            try:
                one.nixl.remove_remote_agent("target")
            except Exception:
                pass
            there = Target(arg, (block + GAP) * batch)
            try:
                one.know(there.metadata)
                again = one.finish(handle(one, "WRITE", memory, there, block, batch, arg.transport), limit=arg.limit)
            except BaseException as error:
                again = type(error).__name__
            there.end()
        say({"fault": fault, "told": "still in progress" if state == "PROC" else state, "seconds": round(seconds, 2),
             "next": again})  # fmt: skip
    os._exit(0)


def one_run(system, transport, *more):
    environment = {**os.environ, "NIXL_BACKEND": SYSTEMS[system][0], "NIXL_LOG_LEVEL": "error"}
    environment.update(UCX[transport] if system != "polyrail" else {})
    command = [sys.executable, __file__, "--system", system, "--transport", transport, *more]
    ran = subprocess.run(command, env=environment, stdout=-1, text=True, timeout=600)
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    if ran.returncode != 0:
        print(f"{system} over {transport}: exit {ran.returncode} after {len(rows)} rows", file=sys.stderr)
    return rows


def all_runs(arg):
    seen: dict[tuple, list] = {}
    for turn in range(arg.rounds):
        for transport in arg.transports.split(","):
            systems = list(SYSTEMS)
            for system in systems[turn % 3 :] + systems[: turn % 3]:
                more = ["--seconds", str(arg.seconds), *(["--cells", arg.cells] if arg.cells else [])]
                for row in one_run(system, transport, *more):
                    seen.setdefault((transport, row["cell"], row["op"]), []).append({"system": system, **row})
    print("| over | block x batch | op | POLYRAIL GB/s | UCX GB/s | times | CPU s/GB | UCX's |\n|---|---|---|---|---|---|---|---|")
    behind = 0
    for (transport, cell, op), rows in seen.items():
        medians = {
            system: [statistics.median(row[key] for row in rows if row["system"] == system) for key in ("rate", "cpu")]
            for system in {row["system"] for row in rows}
        }
        ours = medians.pop("polyrail", [0, 0])
        theirs = max(medians.values(), default=[float("nan")] * 2)
        behind += not ours[0] > theirs[0]
        print(f"| {transport} | {cell} | {op.lower()} | {ours[0]:.3f} | {theirs[0]:.3f} | {ours[0] / theirs[0]:.2f} | "
              f"{ours[1]:.3f} | {theirs[1]:.3f} |", flush=True)  # fmt: skip
    print(f"behind in {behind} of {len(seen)}")


def all_faults(arg):
    print("| over | peer | system | told | after s | the next one |\n|---|---|---|---|---|---|")
    for transport in arg.transports.split(","):
        for system in SYSTEMS:
            for row in one_run(system, transport, "--faults", "--limit", str(arg.limit)):
                print(f"| {transport} | {row['fault']} | {system} | {row['told']} | {row['seconds']} | {row['next']} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["cells", "faults"], default="cells")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--cells")
    parser.add_argument("--transports", default="tcp,host")
    parser.add_argument("--limit", type=float, default=15)
    for hidden in ("--system", "--transport", "--bytes"):
        parser.add_argument(hidden, help=argparse.SUPPRESS, type=int if hidden == "--bytes" else str)
    for hidden in ("--target", "--faults"):
        parser.add_argument(hidden, help=argparse.SUPPRESS, action="store_true")
    arg = parser.parse_args()
    if arg.system is not None:
        os.dup2(2, 1)
        (target if arg.target else faults if arg.faults else run)(arg)
    else:
        (all_faults if arg.what == "faults" else all_runs)(arg)


if __name__ == "__main__":
    main()
