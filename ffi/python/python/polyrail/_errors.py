"""Why something did not happen, or did not end well."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyrail._native import Batch, Report


class Error(Exception):
    """What all errors of polyrail are.

    `batch` and `report` say more where a batch did not end well: the batch, and the report of the first request that ended so.
    """

    batch: Batch | None
    report: Report | None

    def __init__(self, message: str = "", *, batch: Batch | None = None, report: Report | None = None) -> None:
        super().__init__(message)
        self.batch = batch
        self.report = report


class Failed(Error):
    """It failed, and nothing of it can move any more."""


class PeerLost(Error):
    """The peer's process has gone, with proof; or the segment was lost with it: open it anew."""


class Indeterminate(Error):
    """It ended without proof that nothing of it can move any more.

    `report.local == "Held"`: memory here may still be read or written; `report.remote == "Unknown"`: the peer's may still be.
    `batch.wait_released()` waits for the proof.
    """


class DeadlineExceeded(Error):
    """Its deadline passed, and nothing of it can move any more."""


class Cancelled(Error):
    """The program cancelled it, and nothing of it can move any more."""


class Full(Error):
    """There is no room now. Try again when something has ended."""


class Closed(Error):
    """The engine, or the segment, was closed."""


class InUse(Error):
    """Batches that use the segment have not ended, or hold it. Wait for them, or cancel them, and try again."""


class Forked(Error):
    """It belongs to the process that this one was forked from. Make an engine in this process."""


class TimedOut(Error, TimeoutError):
    """A wait was over before what it waited for. That goes on, and can be waited for again."""


class Invalid(Error, ValueError):
    """What was asked for cannot be: the text says what, and what would be right."""


class Unreachable(Error, ConnectionError):
    """The peer cannot be reached, or did not let us in."""


class Unavailable(Error, OSError):
    """The system refused, or has no more."""
