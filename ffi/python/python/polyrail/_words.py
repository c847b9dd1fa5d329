"""Names of how things stand."""

from enum import StrEnum


class Status(StrEnum):
    """How a batch or a request stands. The words are the same in Rust, C and JSON."""

    PENDING = "Pending"
    """Not ended."""
    COMPLETED = "Completed"
    """Every byte is where it should be."""
    FAILED = "Failed"
    """It failed, and nothing of it can move any more."""
    CANCELLED = "Cancelled"
    """Cancelled by the program, and nothing of it can move any more."""
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    """Its deadline passed, and nothing of it can move any more."""
    PEER_LOST = "PeerLost"
    """The peer's process has gone, with proof."""
    INDETERMINATE = "Indeterminate"
    """It ended without proof that nothing of it can move any more: see `Report.local` and `Report.remote`."""
    SHUT_DOWN = "ShutDown"
    """The engine was closed first, and nothing of it can move any more."""


class DeliveryStatus(StrEnum):
    """What became of a notification."""

    PENDING = "Pending"
    """Its batch has not ended, or the peer has not confirmed it."""
    DELIVERED = "Delivered"
    """The peer has it for its program, or the program has taken it."""
    WITHHELD = "Withheld"
    """It was not sent, because its batch did not complete."""
    UNDELIVERED = "Undelivered"
    """It never reached the peer and will not."""
    UNKNOWN = "Unknown"
    """It was sent, and the peer has it once or not at all."""
