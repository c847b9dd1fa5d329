"""What functions take and give, for type checkers."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypedDict


class SupportsDLPack(Protocol):
    """A tensor of any library."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


class SupportsCudaArray(Protocol):
    """An array on a GPU."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class SupportsArray(Protocol):
    """An array of numbers as numpy has them. It has the buffer protocol too, which Python 3.11 has no name for."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


class DeviceStats(TypedDict):
    """Traffic of one local device."""

    device: str
    bytes: int
    share: float
    inflight_bytes: int
    bytes_per_sec: int


class RailStats(TypedDict):
    """A rail: a local and a remote address, joined."""

    rail: str
    state: Literal["healthy", "paused", "probing"]
    is_spare: bool
    bytes: int


FailoverStats = TypedDict("FailoverStats", {"from": str, "to": str, "count": int})
"""How often requests went on with another transport."""


class TransportStats(TypedDict):
    """A transport, and why the engine runs without it if it does."""

    transport: str
    missing: str | None


class Stats(TypedDict):
    """What `Engine.stats` gives."""

    devices: list[DeviceStats]
    rails: list[RailStats]
    failovers: list[FailoverStats]
    transports: list[TransportStats]
