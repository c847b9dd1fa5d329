"""What a program that checks its types may write: read by mypy, never run."""

from __future__ import annotations

from typing import Literal

import numpy
from typing_extensions import assert_type

import polyrail


async def moves(pages: numpy.typing.NDArray[numpy.int64]) -> None:
    with polyrail.Engine({"name": "typed"}, lets_in_later=True, listen="127.0.0.1:0", workers=1) as engine:
        engine.let_in()
        local = engine.register(bytearray(4096), name="mem", access="read")
        assert_type(local, polyrail.Memory)
        remote = engine.open("127.0.0.1:7000/mem")
        batch = engine.write(local, remote, 4096, local_offset=pages, remote_offset=0, priority="high", notify=b"done")
        assert_type(await batch, polyrail.Summary)
        assert_type(batch.status, polyrail.Status)
        assert_type([report.cause for report in batch.reports], list[str | None])
        async for notification in engine.notifications():
            assert_type(notification.data, bytes)
        assert_type(engine.open("127.0.0.1:7000/mem", within=1.0, standing=True), polyrail.Remote)
        assert_type([peer["state"] for peer in engine.peers()], list[Literal["present", "leaving", "lost"]])
        async for event in engine.peer_events():
            assert_type(event, polyrail.PeerEvent)
        assert_type(engine.stats()["rails"][0]["bytes"], int)
        assert_type(engine.stats()["workers"][0]["full_for"], float | None)
        memoryview(engine.allocate(4096, "for-red", domain="red"))
        here, there = polyrail.Blocks(local, pages, stride=4096), polyrail.Blocks(remote, rows=3, stride=4096, base=64)
        request = polyrail.PagedRequest("write", here, there, 4096)
        assert_type(engine.submit_paged([request], arrival=7), polyrail.Batch)
        assert_type(engine.prepare_paged((request,)), polyrail.Prepared)
        assert_type(await engine.arrived(7), int)
        assert_type(engine.wait_arrivals(7, 2, timeout=1.0), int)
        try:
            engine.prepare("read", local, remote).post(deadline=1.0).wait(2)
        except polyrail.Indeterminate as error:
            assert error.report is not None and error.batch is not None
            assert_type(error.report.local == "Held", bool)
