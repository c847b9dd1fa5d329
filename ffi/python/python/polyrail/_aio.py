"""Waiting in an event loop: for descriptors, without threads."""

from __future__ import annotations

import asyncio
import os
import weakref
from typing import Protocol, TypeVar

from polyrail._errors import Closed, TimedOut
from polyrail._native import ArrivalWatch, Batch, CompletionQueue, Engine, Notification, Notifications, PeerEvent, PeerEvents, Summary

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class _Ends:
    """Batches that coroutines of one loop wait for. It does not keep the loop."""

    def __init__(self) -> None:
        self._queue = CompletionQueue()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._next = 0

    def add(self, loop: asyncio.AbstractEventLoop, batch: Batch) -> asyncio.Future[None]:
        future = loop.create_future()
        if not self._waiting:
            loop.add_reader(self._queue.fileno(), self._take)
        tag = self._next
        self._next += 1
        self._waiting[tag] = future
        self._queue.add(batch, tag)
        return future

    def _take(self) -> None:
        for tag in self._queue.take():
            future = self._waiting.pop(tag)
            if not future.done():
                future.set_result(None)
        if not self._waiting:
            asyncio.get_running_loop().remove_reader(self._queue.fileno())


_ends: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Ends] = weakref.WeakKeyDictionary()


async def ended(batch: Batch) -> Summary:
    """Waits until it has ended; what `await batch` does. A task that is cancelled meanwhile leaves the batch as it is."""
    if not batch.done:
        loop = asyncio.get_running_loop()
        ends = _ends.get(loop)
        if ends is None:
            ends = _ends[loop] = _Ends()
        await ends.add(loop, batch)
    return batch.wait(0)


class _Reader:
    """A descriptor of its own, so that several may look at the same thing in one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        self._loop = loop
        self._descriptor = os.dup(descriptor)
        self.future: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._descriptor, self.wake)
        _readers.add(self)

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def wake_from_anywhere(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.wake)

    def close(self) -> None:
        _readers.discard(self)
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)


_readers: set[_Reader] = set()


def engine_closed() -> None:
    """An engine has ended: who waits for notifications of it, or for events, looks once more."""
    for reader in tuple(_readers):
        reader.wake_from_anywhere()


class _Queue(Protocol[_T_co]):
    def poll(self) -> _T_co | None: ...
    def fileno(self) -> int: ...


async def _next(queue: _Queue[_T]) -> _T:
    while True:
        try:
            item = queue.poll()
        except Closed:
            raise StopAsyncIteration from None
        if item is not None:
            return item
        reader = _Reader(asyncio.get_running_loop(), queue.fileno())
        try:
            await reader.future
        finally:
            reader.close()


async def next_notification(notifications: Notifications) -> Notification:
    """What `async for` does."""
    return await _next(notifications)


async def next_event(events: PeerEvents) -> PeerEvent:
    """The same for what happens to peers."""
    return await _next(events)


async def arrived(engine: Engine, tag: int, count: int) -> int:
    """What `Engine.arrived` does."""
    while True:
        # Anew each time: a tag may be forgotten meanwhile.
        watch = ArrivalWatch(engine, tag, count)
        try:
            return engine.wait_arrivals(tag, count, 0)
        except TimedOut:
            pass
        reader = _Reader(asyncio.get_running_loop(), watch.fileno())
        try:
            await reader.future
        finally:
            reader.close()
