"""Two rails of unequal speed within one machine, and charts: what the examples beside this file share.

The rails are two addresses in a network namespace of its own, which Linux carries at so many Mbit/s each. That needs root, or a system that lets
users make namespaces; and `ip`, `tc` and `unshare`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ADDRESSES = ["10.77.0.1", "10.77.1.1"]
_INSIDE = "TWO_RAILS_INSIDE"
# Shared memory would do without rails.
CONFIG: dict[str, Any] = {"rails": ADDRESSES, "insecure": True, "transports": {"shm": {"enable": False}}}


def _tool(command: str) -> None:
    subprocess.run(command.split(), check=True)


def go_inside() -> None:
    """Begins this program anew in a namespace with nothing in it, unless it is in one."""
    if os.environ.get(_INSIDE):
        return
    missing = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
    if missing:
        raise SystemExit(f"{', '.join(missing)} not found: the package iproute2, or util-linux, has it")
    namespace = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    os.environ[_INSIDE] = "1"
    os.execvp(namespace[0], [*namespace, sys.executable, *sys.argv])


def lay(mbits: list[int]) -> None:
    """Makes the rails, within the namespace."""
    _tool("ip link set lo up")
    _tool("tc qdisc add dev lo root handle 1: htb")
    # Where packets of a rail that is cut go: none gets through in the time of an example.
    _tool("tc class add dev lo parent 1: classid 1:9 htb rate 8kbit burst 1b quantum 65536")
    for rail, (address, mbit) in enumerate(zip(ADDRESSES, mbits, strict=True)):
        _tool(f"ip address add {address}/32 dev lo")
        _tool(f"tc class add dev lo parent 1: classid 1:{rail + 1} htb rate {mbit}mbit burst 256kb cburst 256kb quantum 65536")
        _tool(f"tc filter add dev lo parent 1: prio 2 protocol ip u32 match ip dst {address}/32 flowid 1:{rail + 1}")


def cut(rail: int) -> None:
    """From now on, nothing gets over a rail, and nobody is told."""
    _tool(f"tc filter add dev lo parent 1: prio 1 protocol ip u32 match ip dst {ADDRESSES[rail]}/32 flowid 1:9")


def mend() -> None:
    """All rails are as they were laid."""
    _tool("tc filter del dev lo parent 1: prio 1")


def rail_bytes(stats: Any) -> list[int]:
    """What has gone over each of the two."""
    found = [0, 0]
    for one in stats["rails"]:
        for rail, address in enumerate(ADDRESSES):
            if one["rail"].endswith(">" + address):
                found[rail] += one["bytes"]
    return found


def _ticks(end: float) -> list[float]:
    """Round numbers from 0 to here, at most six."""
    step = next(unit * 10.0**power for power in range(-3, 9) for unit in (1, 2, 5) if 5 * unit * 10.0**power >= end)
    return [round(index * step, 6) for index in range(int(end / step + 1e-9) + 1)]


COLOURS = ["#2a6f97", "#c1121f", "#588157", "#bc6c25"]


def chart(
    path: Path,
    title: str,
    across: str,
    up: str,
    lines: dict[str, list[tuple[float, float]]],
    marks: dict[str, float] | None = None,
) -> None:
    """Writes lines over time as SVG. `marks`: moments, by what happened then."""
    spots = [spot for line in lines.values() for spot in line]
    last, top = max(x for x, _ in spots), max(y for _, y in spots) * 1.05
    x = lambda value: 70 + 610 * value / last  # noqa: E731
    y = lambda value: 320 - 250 * value / top  # noqa: E731
    parts = [
        '<rect width="720" height="380" fill="white"/>',
        f'<text x="70" y="22" font-size="15">{title}</text>',
        '<path d="M70 70V320H680" fill="none" stroke="black"/>',
        f'<text x="375" y="366" text-anchor="middle">{across}</text>',
        f'<text x="18" y="195" text-anchor="middle" transform="rotate(-90 18 195)">{up}</text>',
    ]
    for value in _ticks(top):
        parts.append(f'<text x="62" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
        parts.append(f'<path d="M70 {y(value):.1f}H680" stroke="#dddddd"/>')
    for moment in _ticks(last):
        parts.append(f'<text x="{x(moment):.1f}" y="340" text-anchor="middle">{moment:g}</text>')
    for index, (name, line) in enumerate(lines.items()):
        points = " ".join(f"{x(when):.1f},{y(value):.1f}" for when, value in line)
        colour = COLOURS[index % len(COLOURS)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{80 + 150 * index}" y="44" fill="{colour}">{name}</text>')
    for index, (name, when) in enumerate((marks or {}).items()):
        parts.append(f'<path d="M{x(when):.1f} 62V320" stroke="#777777" stroke-dasharray="4 3"/>')
        parts.append(f'<text x="{x(when) + 4:.1f}" y="{62 + 14 * (index % 2)}" fill="#555555">{name}</text>')
    inner = "\n".join(parts)
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 380" font-family="sans-serif" font-size="12">\n{inner}\n</svg>\n'
    path.write_text(svg)
