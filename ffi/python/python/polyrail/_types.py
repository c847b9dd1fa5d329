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


class Peer(TypedDict):
    """A peer whose segments an engine has opened."""

    name: str
    """What it calls itself: its own word."""
    address: str
    """`"HOST:PORT"` where it was first reached."""
    incarnation: int
    """Tells processes at one address apart."""
    state: Literal["present", "leaving", "lost"]
    """`"leaving"`: it is about to end, and nothing more begins with it."""


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
    is_withdrawn: bool
    """An end of it is offered no more: a reload has taken it out there."""
    bytes: int
    inflight_bytes: int
    bytes_per_sec: int
    """As it has been learned."""


class LatencyStats(TypedDict):
    """How long requests of a size took that completed."""

    up_to_bytes: int | None
    """And more than those of the row before; `None`: any number."""
    sum_seconds: float
    counts: list[int]
    """How many took up to 1 µs, up to 2 µs, and so on, doubling; the last one is of all above."""


class RequestStats(TypedDict):
    """Requests that have ended over one transport in one direction."""

    transport: str
    """The one that they went over last; `none`: they never began."""
    op: Literal["read", "write", "any"]
    """`any` of those that never began."""
    outcomes: dict[str, int]
    """How many, by status."""
    bytes: int
    latencies: list[LatencyStats]


class LimitStats(TypedDict):
    """How much is used of what there can only be so much of."""

    what: Literal["peers", "rails", "pairs", "segments", "descriptors"]
    used: int
    most: int


FailoverStats = TypedDict("FailoverStats", {"from": str, "to": str, "count": int})
"""How often requests went on with another transport."""


class TransportStats(TypedDict):
    """A transport, and why the engine runs without it if it does."""

    transport: str
    missing: str | None


class WorkerStats(TypedDict):
    """A worker's room for requests, and its work. Times are in seconds, and `None` if there is nothing to tell."""

    worker: int | None
    """`None`: the thread that carries what is staged."""
    held: int
    """Requests that it holds, from submission to report."""
    limit: int
    """The most that it takes."""
    held_high: int
    """The most that it has held when somebody submitted."""
    waiting: int
    """Submissions that wait for room."""
    full_for: float | None
    """How long there has not been room for somebody."""
    looked: float | None
    """How long ago it last looked for completions."""
    sleeps: bool
    """It sleeps until there is something to do."""
    completed: float | None
    """How long ago works of it last completed."""
    completions: int
    admission_waits: int
    """How often a submission has waited for room."""
    admission_waited: float
    """How long, all of them together."""
    admission_timeouts: int
    """How often in vain."""


class LaneStats(TypedDict):
    """One worker's lane on one rail. Times are in seconds, and `None` if there is nothing to tell."""

    worker: int
    rail: str
    state: Literal["opening", "open", "fencing", "closed"]
    held: int
    """Works that it holds."""
    limit: int
    """The most that it takes."""
    held_bytes: int
    held_high: int
    """The most works that it has held."""
    completed: float | None
    """How long ago works on it last completed."""
    releases: int
    """How often works have ended there, several at a time counting once."""
    released: int
    """How many works that was."""
    full_for: float | None
    """How long it has taken no more works."""


class UnsettledStats(TypedDict):
    """Requests that were reported as `Indeterminate`, and are so still."""

    requests: int
    held_bytes: int
    """Of those whose memory here may still be touched."""
    unknown_bytes: int
    """Of those that may still reach the peer's memory."""
    oldest: float | None
    """How long ago the first of them was reported, in seconds."""


class FenceStats(TypedDict):
    """Fences that peers were asked for: proof that works reach memory no more."""

    waiting: int
    oldest: float | None
    """How long the first of those has been waited for, in seconds."""
    unanswered: int
    """Those that were given up."""
    sum_seconds: float
    """How long those took that were answered, all together."""
    counts: list[int]
    """As those of `LatencyStats`; empty if there are none."""


class SessionStats(TypedDict):
    """A session that a peer has with this engine."""

    peer: str
    address: str
    seconds: float
    bytes: int
    """Moved since the two met, as the peer counts it: about half a second ago."""


class Stats(TypedDict):
    """What `Engine.stats` gives."""

    requests: list[RequestStats]
    unsettled: UnsettledStats
    fences: FenceStats
    sessions: list[SessionStats]
    devices: list[DeviceStats]
    rails: list[RailStats]
    failovers: list[FailoverStats]
    transports: list[TransportStats]
    workers: list[WorkerStats]
    lanes: list[LaneStats]
    """Those of a worker that does not answer within 50 ms are missing."""
    limits: list[LimitStats]
