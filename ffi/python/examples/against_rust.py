"""Times of transfers from Python beside those of `polyrail bench`, by turns, to one target.

    python against_rust.py [ROUNDS]

Each round measures each cell once in each language, for a second after a second of warm-up. Printed are medians over the rounds of the
median time of a batch, from its submission to its observed end, and their ratio.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

import numpy

import polyrail

PROGRAM = [sys.executable, "-m", "polyrail"]
MEMORY = 512 << 20
SECONDS = 1.0
# Bytes of a block, blocks of a batch.
CELLS = [(4096, 1), (65_536, 1_000), (4096, 16_384), (4096, 100_000)]


def by_rust(address: str, block: int, blocks: int) -> float:
    """Microseconds for each batch."""
    buffer = ["--buffer", str(MEMORY)]
    cell = ["--block", str(block), "--batch", str(blocks), "--seconds", str(SECONDS), "--json"]
    ran = subprocess.run([*PROGRAM, "bench", "--target", address, "--op", "write", *buffer, *cell], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ran.stdout)["p50_us"]


class ByPython:
    """Goes over memory as the program does: forwards there and backwards here, one batch behind the other."""

    def __init__(self, address: str) -> None:
        self.engine = polyrail.Engine(name="python")
        self.local = self.engine.allocate(MEMORY)
        self.remote = self.engine.open(f"{address}/mem")

    def measure(self, block: int, blocks: int) -> float:
        size = block * blocks
        places = MEMORY // size
        # All numbers of a batch are made anew for each one, and that counts.
        steps = numpy.arange(blocks, dtype=numpy.int64) * block if blocks > 1 else 0
        times: list[int] = []
        index, start, warm = 0, time.perf_counter(), True
        while True:
            now = time.perf_counter()
            if warm and now - start >= 1.0:
                times, start, warm = [], now, False
            elif now - start >= SECONDS and not warm:
                break
            place = index % places
            index += 1
            begin = time.perf_counter_ns()
            batch = self.engine.write(
                self.local,
                self.remote,
                block,
                local_offset=steps + (places - 1 - place) * size,
                remote_offset=steps + place * size,
            )
            batch.wait()
            times.append(time.perf_counter_ns() - begin)
        return statistics.median(times) / 1000


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    serve = [*PROGRAM, "serve", "--memory", str(MEMORY)]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as target:
        try:
            assert target.stdout is not None
            address = target.stdout.readline().split()[1]
            python = ByPython(address)
            found: dict[tuple[int, int], list[tuple[float, float]]] = {cell: [] for cell in CELLS}
            for _ in range(rounds):
                for cell in CELLS:
                    rust = by_rust(address, *cell)
                    found[cell].append((python.measure(*cell), rust))
        finally:
            target.terminate()
    print(f"| blocks | Python, µs | Rust, µs | ratio | difference, µs |\n|---|---|---|---|---|")
    for (block, blocks), pairs in found.items():
        mine, rust = (statistics.median(times) for times in zip(*pairs, strict=True))
        print(f"| {blocks} × {block} | {mine:.1f} | {rust:.1f} | {mine / rust:.3f} | {mine - rust:.1f} |")


if __name__ == "__main__":
    main()
