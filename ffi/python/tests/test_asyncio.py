"""Waiting in an event loop."""

import asyncio
import os

import numpy
import pytest
from conftest import LONG, crc, pattern

import polyrail

SIZE = 1 << 20


def loops():
    yield asyncio.new_event_loop
    try:
        import uvloop
    except ImportError:
        print("uvloop cannot be imported: tried with asyncio's own loop only")
    else:
        yield uvloop.new_event_loop


@pytest.fixture(params=loops(), ids=lambda make: make.__module__.partition(".")[0])
def run(request):
    def run(coroutine):
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(asyncio.wait_for(coroutine, 2 * LONG))

    return run


def test_ten_thousand_batches_are_awaited_at_once(engine, target, run):
    block, count = 100, 10_000
    source = pattern(SIZE)
    local, remote = engine.register(source), engine.open(f"{target.address}/mem")

    async def write(index: int):
        return await engine.write(local, remote, block, local_offset=index * block, remote_offset=index * block)

    async def all_of_them():
        return await asyncio.gather(*map(write, range(count)))

    assert [summary.delivered_bytes for summary in run(all_of_them())] == [block] * count
    assert target.crc(0, block * count) == crc(source[: block * count])


def test_a_batch_of_several_parts_is_awaited_until_all_have_ended(engine, target, run):
    source = pattern(SIZE)
    local, remote = engine.register(source), engine.open(f"{target.address}/mem")
    places = numpy.arange(SIZE // 16) * 16

    async def write():
        batch = engine.write(local, remote, 16, local_offset=places, remote_offset=places)
        first, second = await asyncio.gather(asyncio.ensure_future(batch), batch)
        return first, second, await batch

    for summary in run(write()):
        assert (summary.ended, summary.delivered_bytes) == (SIZE // 16, SIZE)
    assert target.crc(0, SIZE) == crc(source)


def test_a_loop_goes_on_while_a_batch_is_awaited(targets, run):
    with polyrail.Engine(transports={"shm": {"enable": False}}) as engine:
        target = targets(size=64 << 20)
        local, remote = engine.register(bytearray(64 << 20)), engine.open(f"{target.address}/mem")
        target.stop()

        async def wait():
            batch = engine.write(local, remote)
            waiting = asyncio.ensure_future(batch)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(waiting), 0.05)
            # A task that is cancelled leaves its batch as it is.
            other = asyncio.ensure_future(batch)
            await asyncio.sleep(0)
            other.cancel()
            with pytest.raises(asyncio.CancelledError):
                await other
            assert not batch.done
            target.go_on()
            return await waiting

        assert run(wait()).delivered_bytes == 64 << 20


def test_what_ends_badly_raises_where_it_is_awaited(targets, run):
    with polyrail.Engine() as engine:
        target = targets(size=64 << 20)
        local, remote = engine.register(bytearray(64 << 20)), engine.open(f"{target.address}/mem")
        target.stop()

        async def wait():
            batch = engine.write(local, remote)
            target.kill()
            await batch

        with pytest.raises(polyrail.PeerLost):
            run(wait())


def test_notifications_are_iterated_over_until_the_engine_ends(target, run):
    with polyrail.Engine(name="listener", listen="127.0.0.1:0") as engine:
        engine.allocate(4096, "mem")

        async def take(found: list[bytes]):
            async for notification in engine.notifications():
                found.append(notification.data)

        async def all_of_them():
            found: list[bytes] = []
            takers = [asyncio.create_task(take(found)) for _ in range(3)]
            for number in range(10):
                said = await asyncio.to_thread(target.ask, "tell", f"{engine.listening}/mem", number)
                assert said == "Delivered"
            while len(found) < 10:
                await asyncio.sleep(0.001)
            await asyncio.to_thread(engine.close)
            await asyncio.gather(*takers)
            return found

        assert sorted(run(all_of_them())) == [str(number).encode() for number in range(10)]


def test_loops_that_come_and_go_leave_nothing(engine, target, run):
    local, remote = engine.register(bytearray(SIZE)), engine.open(f"{target.address}/mem")

    async def write():
        return await engine.write(local, remote)

    run(write())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        run(write())
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_arrivals_are_awaited(target, run):
    with polyrail.Engine(name="here", listen="127.0.0.1:0") as engine:
        engine.allocate(4096, "mem")

        async def wait():
            tasks = [asyncio.ensure_future(engine.arrived(7, count)) for count in (1, 2, 3)]
            cancelled = asyncio.ensure_future(engine.arrived(8))
            await asyncio.sleep(0)
            cancelled.cancel()
            for count, task in enumerate(tasks, 1):
                await asyncio.to_thread(target.ask, "write", f"{engine.listening}/mem", 7)
                assert await task >= count
            assert await engine.arrived(7, 3) == 3
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            # Forgotten while somebody waits: it goes on waiting.
            later = asyncio.ensure_future(engine.arrived(7, 4))
            await asyncio.sleep(0)
            engine.forget_arrivals(7)
            for _ in range(3):
                await asyncio.to_thread(target.ask, "write", f"{engine.listening}/mem", 7)
            assert await asyncio.to_thread(engine.wait_arrivals, 7, 3, LONG) == 3 and not later.done()
            await asyncio.to_thread(target.ask, "write", f"{engine.listening}/mem", 7)
            return await later

        assert run(wait()) == 4


def test_who_awaits_arrivals_hears_of_the_end(run):
    engine = polyrail.Engine(name="here", listen="127.0.0.1:0")

    async def wait():
        waiting = asyncio.ensure_future(engine.arrived(1))
        await asyncio.sleep(0)
        await asyncio.to_thread(engine.close)
        with pytest.raises(polyrail.Closed):
            await waiting
        with pytest.raises(polyrail.Closed):
            await engine.arrived(2)

    before = len(os.listdir("/proc/self/fd"))
    run(wait())
    assert len(os.listdir("/proc/self/fd")) <= before, "no descriptor stays"
