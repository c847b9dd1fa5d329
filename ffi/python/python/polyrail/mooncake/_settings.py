"""What callers of Mooncake set, in arguments and in the environment, as keys of polyrail."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger("polyrail.mooncake")

PROTOCOLS = ("tcp", "rdma")

SILENCE_MS = 5000
"""A peer is given up when nothing has been heard of it for so long, also where a transfer may take longer. Callers of Mooncake are
used to peers that stand still for some seconds."""

# Variables of Mooncake's whose number a key of ours takes.
_NUMBERS = {
    "MC_GID_INDEX": "gid_row",
    "MC_IB_TC": "traffic_class",
    "MC_IB_SL": "service_level",
    "MC_RETRY_CNT": "retry_count",
}
_HEEDED = {
    *_NUMBERS,
    "MC_FORCE_TCP",
    "MC_TRANSFER_TIMEOUT",
    "MC_LEGACY_RPC_PORT_BINDING",
    "MC_MIN_RPC_PORT",
    "MC_MAX_RPC_PORT",
}
# What is the store's, or LMCache's own.
_NOT_OURS = ("MC_STORE_", "MC_MS_", "MC_RPC_", "MC_REDIS_", "MC_TE_PROTOCOL", "MC_TE_DEVICE")
_said: set[str] = set()


def timeout() -> float:
    """Seconds that a transfer may take, besides one for each GB. As Mooncake's: at least 5."""
    try:
        return float(max(5, int(os.environ.get("MC_TRANSFER_TIMEOUT", "30"))))
    except ValueError:
        return 5.0


def warn_of_others() -> None:
    """Names the variables of Mooncake's that are set and mean nothing here, each once."""
    others = {name for name in os.environ if name.startswith("MC_") and not name.startswith(_NOT_OURS)}
    new = sorted(others - _HEEDED - _said)
    if new:
        _said.update(new)
        log.warning("%s: Mooncake's, and without effect on polyrail; see docs/migrating-from-mooncake.md", ", ".join(new))


def split_host(text: str) -> tuple[str, int]:
    """The host and the port of `HOST`, `HOST:PORT`, `ADDRESS` or `[ADDRESS]:PORT`; 0: there is none."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, int(rest[1:]) if rest[1:].isdigit() else 0
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return host, int(port) if port.isdigit() else 0
    return text, 0


def bracketed(host: str) -> str:
    """As it stands before a port."""
    return f"[{host}]" if ":" in host else host


def _addresses_of_host(host: str) -> Iterator[str]:
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            if family in (socket.AF_INET, socket.AF_INET6):
                yield str(address[0])
    except OSError:
        return


def _is_ours(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def listen_addresses(hostname: str) -> Iterator[str]:
    """`ADDRESS:PORT`s to listen on, until one is free: the address that peers are told if it is one of this host's, else all."""
    host, port = split_host(hostname)
    address = next(filter(_is_ours, _addresses_of_host(host)), None)
    if address is None:
        address = "::" if ":" in host else "0.0.0.0"
        log.warning("%r is no address of this host: listening on all", host)
    address = bracketed(address)
    if port and os.environ.get("MC_LEGACY_RPC_PORT_BINDING"):
        yield f"{address}:{port}"
        return
    low, high = (os.environ.get(name, "") for name in ("MC_MIN_RPC_PORT", "MC_MAX_RPC_PORT"))
    if low.isdigit() and high.isdigit():
        span = int(high) - int(low) + 1
        # Processes that start together begin at different ones.
        for index in range(span):
            yield f"{address}:{int(low) + (index + os.getpid()) % span}"
        return
    yield f"{address}:0"


def keys(protocol: str, devices: str) -> dict[str, Any]:
    """Keys of an engine for a protocol and a list of devices such as `mlx5_0,mlx5_1`."""
    found: dict[str, Any] = {"insecure": True, "health": {"peer_silence_ms": SILENCE_MS}}
    if protocol == "tcp" or os.environ.get("MC_FORCE_TCP", "0") not in ("", "0"):
        found["transports"] = {"verbs": {"enable": False}}
        return found
    verbs = {}
    for variable, key in _NUMBERS.items():
        text = os.environ.get(variable, "")
        if text.isdigit():
            verbs[key] = int(text)
    if verbs:
        found["verbs"] = verbs
    named = [device.strip() for device in devices.split(",") if device.strip()]
    rails = []
    for device in named:
        addresses = [address for name in _interfaces(device) if (address := address_of(name))]
        if not addresses:
            log.warning("device %r has no interface with an address here: it is no rail", device)
        rails += addresses
    if rails:
        found["rails"] = list(dict.fromkeys(rails))
        found["rail_map"] = "nearest"
    return found


def _interfaces(device: str) -> list[str]:
    """The network interfaces of an RDMA device, or the interface of this name."""
    if "/" in device:
        return []
    folder = Path("/sys/class/infiniband", device, "device/net")
    if folder.is_dir():
        return sorted(entry.name for entry in folder.iterdir())
    return [device] if Path("/sys/class/net", device).exists() else []


def address_of(interface: str) -> str | None:
    """An interface's IPv4 address, or its global IPv6 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            # SIOCGIFADDR
            answer = fcntl.ioctl(any_socket, 0x8915, struct.pack("256s", interface.encode()[:15]))
            return socket.inet_ntoa(answer[20:24])
        except OSError:
            pass
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        digits, _, _, scope, _, name = line.split()
        if name == interface and scope == "00":
            return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
    return None


def topology(devices: str | None) -> Mapping[str, list[list[str]]]:
    """RDMA devices by NUMA node, as Mooncake has them: those of the node, then all others."""
    wanted = {device.strip() for device in (devices or "").split(",") if device.strip()}
    nodes: dict[int, list[str]] = {}
    try:
        found = sorted(Path("/sys/class/infiniband").iterdir())
    except OSError:
        return {}
    for path in found:
        if wanted and path.name not in wanted:
            continue
        try:
            node = int((path / "device/numa_node").read_text())
        except (OSError, ValueError):
            node = 0
        nodes.setdefault(max(node, 0), []).append(path.name)
    every = [name for names in nodes.values() for name in names]
    return {f"cpu:{node}": [names, [name for name in every if name not in names]] for node, names in nodes.items()}
