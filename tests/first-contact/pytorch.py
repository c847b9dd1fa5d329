#!/usr/bin/env python3
"""PyTorch and polyrail in one process: tensors, streams and graphs of PyTorch's, on a machine with a GPU.

    python3 tests/first-contact/pytorch.py

Needs the packages `torch` and `polyrail`. Each line says what is good; the first thing that is wrong ends it, with status 1.
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True puts tensors together from pieces, which peers reach by way of the host.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time

import polyrail
import torch

MIB = 1 << 20
LARGE = 64 * MIB
WAIT = 30


def numbers(bytes_: int) -> torch.Tensor:
    tensor = torch.randint(0, 256, (bytes_,), dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    return tensor


def tensors() -> str:
    with polyrail.Engine(name="tensors") as engine:
        tensor = numbers(16 * MIB)
        local, copy = engine.register(tensor), engine.allocate(16 * MIB, device="cuda:0")
        assert local.device == "cuda:0", local.device
        engine.write(local, copy, 16 * MIB).wait(WAIT)
        assert torch.equal(torch.as_tensor(copy, device="cuda"), tensor)
        host = engine.allocate(16 * MIB)
        engine.read(host, copy, 16 * MIB).wait(WAIT)
        assert torch.equal(torch.frombuffer(host, dtype=torch.uint8), tensor.cpu())
    return "to memory of the engine's, and to the host"


def a_part_of_a_tensor() -> str:
    with polyrail.Engine(name="part") as engine:
        whole = torch.zeros(8 * MIB, dtype=torch.bfloat16, device="cuda:0")
        part = whole[1001 : 5 * MIB]
        sent = torch.randint(0, 100, (part.numel(),), dtype=torch.int16)
        torch.cuda.synchronize()
        engine.write(engine.register(sent), engine.register(part), part.nbytes).wait(WAIT)
        assert torch.equal(part.view(torch.int16).cpu(), sent)
        assert not whole[:1001].view(torch.int16).any() and not whole[5 * MIB :].view(torch.int16).any()
    return "nothing beside it was written"


def streams() -> str:
    with polyrail.Engine(name="streams") as engine:
        tensor, stream = torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda:0"), torch.cuda.Stream()
        memory, host = engine.register(tensor), engine.allocate(16 * MIB)
        torch.cuda.synchronize()
        for value in range(1, 60):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000)
                tensor.fill_(value)
            memory.order_after(stream.cuda_stream)
            engine.read(host, memory, 16 * MIB).wait(WAIT)
            assert (torch.frombuffer(host, dtype=torch.uint8) == value).all(), value
    return "59 tensors were read after the kernels that fill them"


def graphs() -> str:
    with polyrail.Engine(name="graphs") as engine:
        x = torch.ones(4 * MIB, device="cuda:0")
        y = torch.zeros_like(x)
        sent, got = numbers(32 * MIB), torch.zeros(32 * MIB, dtype=torch.uint8, device="cuda:0")
        near, far, host = engine.register(sent), engine.register(got), engine.allocate(32 * MIB)
        torch.cuda.synchronize()
        over, wrong, rounds = threading.Event(), [], 0

        def move() -> None:
            nonlocal rounds
            try:
                while not over.is_set():
                    engine.write(near, far, 32 * MIB).wait(WAIT)
                    engine.read(host, far, 32 * MIB).wait(WAIT)
                    engine.allocate(MIB, device="cuda:0").close()
                    rounds += 1
            except Exception as error:
                wrong.append(error)

        mover = threading.Thread(target=move)
        mover.start()
        try:
            for mode in ("global", "thread_local", "relaxed") * 5:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode=mode):
                    for _ in range(200):
                        y.copy_(x * 2 + 1)
                    time.sleep(0.01)
                y.zero_()
                graph.replay()
                torch.cuda.synchronize()
                assert (y == 3).all(), mode
        finally:
            over.set()
            mover.join()
        assert not wrong, wrong
        assert torch.equal(sent, got)
    return f"15 were captured beside {rounds} rounds of transfers and allocations"


def target() -> None:
    """Says where it is, and then, for each line, what its tensor comes to."""
    with polyrail.Engine(name="target", listen="127.0.0.1:0") as engine:
        tensor = torch.zeros(LARGE, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize()
        kept = [engine.register(tensor, "tensor"), engine.allocate(LARGE, "host"), engine.allocate(LARGE, "gpu", device="cuda:0")]
        print(engine.listening, flush=True)
        for _ in sys.stdin:
            print(int(tensor.to(torch.int64).sum()), flush=True)
        del kept


def another_process(name: str) -> str:
    other = subprocess.Popen([sys.executable, __file__, "target"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdin is not None and other.stdout is not None
        address = other.stdout.readline().strip()
        with polyrail.Engine(name="initiator") as engine:
            sent, got = numbers(LARGE), torch.zeros(LARGE, dtype=torch.uint8, device="cuda:0")
            torch.cuda.synchronize()
            near, back, far = engine.register(sent), engine.register(got), engine.open(f"{address}/{name}")
            engine.write(near, far, LARGE).wait(WAIT)
            if name == "tensor":
                other.stdin.write("\n")
                other.stdin.flush()
                assert int(other.stdout.readline()) == int(sent.to(torch.int64).sum())
            engine.read(back, far, LARGE).wait(WAIT)
            assert torch.equal(got, sent)
            times = []
            for _ in range(21):
                begun = time.perf_counter()
                engine.write(near, far, LARGE).wait(WAIT)
                times.append(time.perf_counter() - begun)
        return f"{LARGE / statistics.median(times) / 1e9:.1f} GB/s"
    finally:
        other.kill()
        other.wait()


def main() -> None:
    if sys.argv[1:] == ["target"]:
        return target()
    for check in (tensors, a_part_of_a_tensor, streams, graphs):
        print(f"{check.__name__.replace('_', ' ')}: {check()}", flush=True)
    for name in ("tensor", "gpu", "host"):
        print(f"to a {name} of another process: {another_process(name)}", flush=True)


if __name__ == "__main__":
    main()
