"""polyrail moves bytes between the memories of machines that are joined by many unequal links.

    import numpy, polyrail

    target = polyrail.Engine(name="target", listen="127.0.0.1:0")
    target.register(numpy.zeros(1 << 20, numpy.uint8), name="mem")

    engine = polyrail.Engine(name="initiator")
    local = engine.register(numpy.ones(1 << 20, numpy.uint8))
    remote = engine.open(f"{target.listening}/mem")
    engine.write(local, remote).wait(timeout=5)
"""

from polyrail import _log as _log
from polyrail._errors import (
    Cancelled,
    Closed,
    DeadlineExceeded,
    Error,
    Failed,
    Forked,
    Full,
    Indeterminate,
    InUse,
    Invalid,
    PeerLost,
    TimedOut,
    Unavailable,
    Unreachable,
)
from polyrail._native import (
    NOTIFICATION_BYTES_MAX,
    Batch,
    Blocks,
    Delivery,
    Engine,
    File,
    Memory,
    Notification,
    Notifications,
    PagedRequest,
    PeerEvent,
    PeerEvents,
    Prepared,
    Remote,
    Report,
    Reports,
    Segment,
    Summary,
    __version__,
)
from polyrail._words import DeliveryStatus, Status

__all__ = [
    "NOTIFICATION_BYTES_MAX",
    "Batch",
    "Blocks",
    "Cancelled",
    "Closed",
    "DeadlineExceeded",
    "Delivery",
    "DeliveryStatus",
    "Engine",
    "Error",
    "Failed",
    "File",
    "Forked",
    "Full",
    "InUse",
    "Indeterminate",
    "Invalid",
    "Memory",
    "Notification",
    "Notifications",
    "PagedRequest",
    "PeerEvent",
    "PeerEvents",
    "PeerLost",
    "Prepared",
    "Remote",
    "Report",
    "Reports",
    "Segment",
    "Status",
    "Summary",
    "TimedOut",
    "Unavailable",
    "Unreachable",
    "__version__",
]
