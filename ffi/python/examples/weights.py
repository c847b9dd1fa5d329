"""New weights for four receivers, from one trainer, over two rails of which one is four times as fast as the other.

    python weights.py [CHART.svg]

Each receiver owns memory for the weights, and counts tensors as they arrive. The trainer pushes each tensor to all of them. One receiver is
killed in the middle and started again: the trainer is told so by what it pushes, opens the memory of its successor, and pushes
everything there again, while the others go on. At the end each receiver says which weights it has. See `two_rails.py` for what it needs.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy
import two_rails

import polyrail

RECEIVERS, TENSORS, TENSOR = 4, 24, 4 << 20
MBITS = [1600, 400]
VICTIM, TENSORS_OF_VICTIM = 2, 8
ARRIVED = 1


def receive(pipe: multiprocessing.connection.Connection, listen: str) -> None:
    """A receiver, in a process of its own: says where it listens, how many tensors have arrived, and what it has."""
    engine = polyrail.Engine(two_rails.CONFIG, name="receiver", listen=listen)
    memory = engine.allocate(TENSORS * TENSOR, "weights")
    pipe.send(engine.listening)
    for count in range(1, TENSORS + 1):
        engine.wait_arrivals(ARRIVED, count)
        pipe.send(count)
    pipe.send(zlib.crc32(memory))
    # Until the trainer has ended.
    pipe.poll(None)


class Receiver:
    """The process, and what it has said."""

    def __init__(self, listen: str = f"{two_rails.ADDRESSES[0]}:0") -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=receive, args=(theirs, listen), daemon=True)
        self.process.start()
        theirs.close()
        self.address: str = self.pipe.recv()


class Push:
    """The trainer's side of one receiver, in a thread of its own: it opens, pushes, and begins anew when the receiver is another one."""

    def __init__(self, engine: polyrail.Engine, local: polyrail.Memory, receiver: Receiver, start: float) -> None:
        self.engine, self.local, self.receiver, self.start = engine, local, receiver, start
        self.arrived: list[tuple[float, float]] = [(0.0, 0.0)]
        self.crc = 0
        self.lost: list[float] = []
        self.successor: Receiver | None = None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while True:
            watch = threading.Thread(target=self.watch, args=(self.receiver,))
            watch.start()
            try:
                self.push(self.engine.open(f"{self.receiver.address}/weights"))
                watch.join()
                return
            except polyrail.PeerLost:
                # With proof: nothing that was pushed is on its way any more.
                watch.join()
                self.lost.append(time.monotonic() - self.start)
                self.arrived.append((self.lost[-1], 0.0))
                self.receiver = Receiver(self.receiver.address)

    def push(self, remote: polyrail.Remote) -> None:
        """Two tensors on their way at a time, each a batch that counts where it arrives."""
        under_way: list[polyrail.Batch] = []
        for tensor in range(TENSORS):
            if len(under_way) == 2:
                under_way.pop(0).wait()
            place = tensor * TENSOR
            under_way.append(self.engine.write(self.local, remote, TENSOR, local_offset=place, remote_offset=place, arrival=ARRIVED))
        for batch in under_way:
            batch.wait()

    def watch(self, receiver: Receiver) -> None:
        """What the receiver says of itself."""
        try:
            for count in range(1, TENSORS + 1):
                assert receiver.pipe.recv() == count
                self.arrived.append((time.monotonic() - self.start, count))
                if receiver.address == victim_address and count == TENSORS_OF_VICTIM and not self.lost:
                    receiver.process.kill()
            self.crc = receiver.pipe.recv()
        except (EOFError, ConnectionResetError):
            # It was killed.
            pass


victim_address = ""


def main() -> None:
    global victim_address
    two_rails.go_inside()
    two_rails.lay(MBITS)
    receivers = [Receiver() for _ in range(RECEIVERS)]
    victim_address = receivers[VICTIM].address
    with polyrail.Engine(two_rails.CONFIG, name="trainer") as engine:
        local = engine.allocate(TENSORS * TENSOR)
        weights = numpy.asarray(local)
        weights[:] = numpy.random.default_rng(1).integers(0, 256, weights.size, dtype=numpy.uint8)
        start = time.monotonic()
        pushes = [Push(engine, local, receiver, start) for receiver in receivers]
        for push in pushes:
            push.thread.join()
        seconds = time.monotonic() - start
        rails = two_rails.rail_bytes(engine.stats())
        for index, push in enumerate(pushes):
            assert push.crc == zlib.crc32(local), index
            assert len(push.lost) == (1 if index == VICTIM else 0), index
            word = f", after it was lost at {push.lost[0]:.2f} s" if push.lost else ""
            print(f"receiver {index}: all {TENSORS} tensors are there and right at {push.arrived[-1][0]:.2f} s{word}")
    total = sum(rails)
    # The engine learns what rails carry; nobody tells it.
    assert rails[0] > 2 * rails[1] > 0, rails
    shares = " and ".join(f"{100 * part / total:.0f} %" for part in rails)
    print(f"rails of {MBITS[0]} and {MBITS[1]} Mbit/s carried {shares} of {total / 1e6:.0f} MB in {seconds:.2f} s")
    if len(sys.argv) > 1:
        lines = {f"receiver {index}": push.arrived for index, push in enumerate(pushes)}
        moments = {"receiver 2 is killed": pushes[VICTIM].lost[0]}
        two_rails.chart(Path(sys.argv[1]), "Weights from one trainer to four receivers", "seconds", "tensors that have arrived", lines, moments)


if __name__ == "__main__":
    main()
