"""A KV cache that goes from prefill to decode, layer by layer, over pages that lie anywhere.

    python kv_cache.py [CHART.svg]

The decode side owns the cache: for each layer a pool of pages. It gives each sequence pages of its own, tells a prefill process which, and
counts layers as they arrive: a layer's notification comes when all of its pages are there. One prefill process in the middle is killed
halfway. Which layers of its sequence are whole is known, and no page of any other sequence is touched: all of that is checked.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
import zlib
from pathlib import Path

import numpy

import polyrail

LAYERS, POOL, PAGES, PAGE = 32, 1024, 256, 16 << 10
# One prefill process after the other, each with a sequence of its own. This one is killed when so many layers have come.
SEQUENCES, VICTIM, LAYERS_OF_VICTIM = 3, 1, 16


def keys_and_values(sequence: int, layer: int) -> numpy.ndarray:
    """What prefill computes: pages of bytes that no other sequence and layer has."""
    return numpy.random.default_rng((sequence, layer)).integers(0, 256, (PAGES, PAGE), dtype=numpy.uint8)


def prefill(address: str, sequence: int, pages: numpy.ndarray) -> None:
    """Pushes each layer once it is computed, while the next one is."""
    engine = polyrail.Engine(name=f"prefill-{sequence}")
    cache = engine.open(address)
    staging = numpy.zeros((2, PAGES, PAGE), numpy.uint8)
    local = engine.register(staging)
    here, there = numpy.arange(PAGES) * PAGE, pages * PAGE
    under_way: list[polyrail.Batch] = []
    for layer in range(LAYERS):
        half = layer % 2
        if len(under_way) == 2:
            # Its half is written anew: not before it is known that nobody reads it any more.
            under_way.pop(0).wait(10)
        staging[half] = keys_and_values(sequence, layer)
        offsets = {"local_offset": here + half * PAGES * PAGE, "remote_offset": there + layer * POOL * PAGE}
        under_way.append(engine.write(local, cache, PAGE, notify=str(layer).encode(), **offsets))
    for batch in under_way:
        batch.wait(10)


def decode(engine: polyrail.Engine, sequence: int, pages: numpy.ndarray) -> list[tuple[int, float]]:
    """Starts a prefill process, and gives the layers that have come, each with when, in seconds."""
    arrivals: list[tuple[int, float]] = []
    inbox = engine.notifications()
    start = time.monotonic()
    process = multiprocessing.get_context("spawn").Process(target=prefill, args=(f"{engine.listening}/cache", sequence, pages))
    process.start()
    while len(arrivals) < LAYERS:
        try:
            layer = inbox.get(timeout=0.05)
        except polyrail.TimedOut:
            if process.is_alive():
                continue
            break
        arrivals.append((int(layer.data), time.monotonic() - start))
        if sequence == VICTIM and len(arrivals) == LAYERS_OF_VICTIM:
            assert process.pid is not None
            process.kill()
    process.join()
    expected = -signal.SIGKILL if sequence == VICTIM else 0
    assert process.exitcode == expected, process.exitcode
    return arrivals


def chart(found: list[list[tuple[int, float]]]) -> str:
    """Layers that have come, over time, a line for each sequence."""
    colours = ["#2a6f97", "#c1121f", "#588157"]
    last = max(when for arrivals in found for _, when in arrivals)
    first = min(when for arrivals in found for _, when in arrivals) * 0.95
    lines = []
    for sequence, arrivals in enumerate(found):
        spots = [(60 + 500 * (when - first) / (last - first), 280 - 7.5 * count) for count, (_, when) in enumerate(arrivals, 1)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        colour, (x, y) = colours[sequence], spots[-1]
        word = "killed" if sequence == VICTIM else "whole"
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        lines.append(f'<text x="{70 + 170 * sequence}" y="20" fill="{colour}">sequence {sequence}: {len(arrivals)} layers, {word}</text>')
    ticks = [f'<text x="52" y="{284 - 7.5 * count}" text-anchor="end">{count}</text>' for count in range(0, LAYERS + 1, 8)]
    axis = f'<text x="310" y="312" text-anchor="middle">{first * 1000:.0f} to {last * 1000:.0f} ms after the prefill process was started</text>'
    frame = '<path d="M60 40V280H560" fill="none" stroke="black"/>'
    inner = "\n".join([frame, *ticks, axis, *lines])
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 320" font-family="sans-serif" font-size="12">\n{inner}\n</svg>\n'


def main() -> None:
    with polyrail.Engine(name="decode", listen="127.0.0.1:0") as engine:
        memory = engine.allocate(LAYERS * POOL * PAGE, "cache")
        cache = numpy.asarray(memory).reshape(LAYERS, POOL, PAGE)
        pages = numpy.random.default_rng(0).permutation(POOL)[: SEQUENCES * PAGES].reshape(SEQUENCES, PAGES)
        found = [decode(engine, sequence, pages[sequence]) for sequence in range(SEQUENCES)]
        for sequence, arrivals in enumerate(found):
            # Each comes once, as a whole. One that has not come may be there in parts.
            assert len({layer for layer, _ in arrivals}) == len(arrivals)
            for layer, _ in arrivals:
                assert zlib.crc32(cache[layer, pages[sequence]]) == zlib.crc32(keys_and_values(sequence, layer)), (sequence, layer)
            print(f"sequence {sequence}: {len(arrivals)} of {LAYERS} layers are there and right")
        free = numpy.setdiff1d(numpy.arange(POOL), pages)
        assert not cache[:, free].any()
        assert [len(arrivals) for arrivals in found if len(arrivals) < LAYERS] == [len(found[VICTIM])]
        assert len(found[VICTIM]) >= LAYERS_OF_VICTIM
        print("no page of anybody else was touched")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(chart(found))


if __name__ == "__main__":
    main()
