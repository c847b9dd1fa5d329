"""What each of two rails carries, while one is cut without a word and comes back.

    python rails_cut.py [CHART.svg]

One process writes 1 MiB blocks to another for six seconds, always four of them on their way. After two seconds the faster rail carries
nothing any more: no error, no carrier lost, only silence. After four seconds it is well again. No write fails. See `two_rails.py` for what
it needs.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import sys
import time
from pathlib import Path

import two_rails

import polyrail

MBITS = [800, 400]
BLOCK, SLOTS = 1 << 20, 4
SECONDS, CUT, BACK, EVERY = 6.0, 2.0, 4.0, 0.1


def receive(pipe: multiprocessing.connection.Connection) -> None:
    engine = polyrail.Engine(two_rails.CONFIG, name="receiver", listen=f"{two_rails.ADDRESSES[0]}:0")
    engine.allocate(SLOTS * BLOCK, "memory")
    pipe.send(engine.listening)
    pipe.poll(None)


def main() -> None:
    two_rails.go_inside()
    two_rails.lay(MBITS)
    pipe, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=receive, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    rates: list[list[tuple[float, float]]] = [[], []]
    blocks = 0
    with polyrail.Engine(two_rails.CONFIG, name="sender") as engine:
        local = engine.allocate(SLOTS * BLOCK)
        remote = engine.open(f"{pipe.recv()}/memory")
        under_way = [engine.write(local, remote, BLOCK, local_offset=slot * BLOCK, remote_offset=slot * BLOCK) for slot in range(SLOTS)]
        start = last = time.monotonic()
        before = two_rails.rail_bytes(engine.stats())
        changes = [(CUT, lambda: two_rails.cut(0)), (BACK, two_rails.mend)]
        slot = 0
        while last - start < SECONDS:
            # None fails, whatever the rails do.
            under_way[slot].wait(10)
            under_way[slot] = engine.write(local, remote, BLOCK, local_offset=slot * BLOCK, remote_offset=slot * BLOCK)
            slot, blocks = (slot + 1) % SLOTS, blocks + 1
            now = time.monotonic()
            if changes and now - start >= changes[0][0]:
                changes.pop(0)[1]()
            if now - last >= EVERY:
                carried = two_rails.rail_bytes(engine.stats())
                for rail in range(2):
                    rates[rail].append((now - start, (carried[rail] - before[rail]) * 8e-6 / (now - last)))
                last, before = now, carried
        for batch in under_way:
            batch.wait(10)
    for rail, line in enumerate(rates):
        parts = [(0.5, CUT), (CUT + 1, BACK), (BACK + 1, SECONDS)]
        means = [mean(line, *part) for part in parts]
        print(f"rail of {MBITS[rail]} Mbit/s: {means[0]:.0f} Mbit/s, while the first is cut {means[1]:.0f}, then {means[2]:.0f}")
    print(f"{blocks} blocks of 1 MiB were written, and none failed")
    well, cut, back = (mean(rates[0], *part) for part in parts)
    assert well > 400 and cut < 40 and back > 400, (well, cut, back)
    assert mean(rates[1], CUT + 1, BACK) > 200
    if len(sys.argv) > 1:
        lines = {f"rail of {mbit} Mbit/s": line for mbit, line in zip(MBITS, rates, strict=True)}
        marks = {"the faster one is cut": CUT, "and is well again": BACK}
        two_rails.chart(Path(sys.argv[1]), "What two rails carry while one is cut", "seconds", "Mbit/s", lines, marks)


def mean(line: list[tuple[float, float]], begin: float, end: float) -> float:
    """Of what was measured between two moments."""
    found = [rate for when, rate in line if begin <= when < end]
    return sum(found) / len(found)


if __name__ == "__main__":
    main()
