"""What is said of peers that die, stop and come back, and what is kept meanwhile."""

import gc
import logging
import os
import random
import re
import signal
import threading
import time
from pathlib import Path

import numpy
import pytest
from conftest import LONG, crc, pattern, pulled

import polyrail

LARGE = 64 << 20
OVER_TCP = {"transports": {"shm": {"enable": False}}}


def stopped(targets, engine):
    """A target that was stopped, with lanes to it that are open, and memory to move there."""
    target = targets(size=LARGE)
    local, remote = engine.register(bytearray(LARGE)), engine.open(f"{target.address}/mem")
    engine.write(local, remote).wait(LONG)
    target.stop()
    return target, local, remote


def test_a_peer_that_is_killed_is_lost_with_proof(targets):
    # Over shared memory the write could have ended before the kill.
    with polyrail.Engine(**OVER_TCP) as engine:
        target, local, remote = stopped(targets, engine)
        batch = engine.write(local, remote)
        target.kill()
        with pytest.raises(polyrail.PeerLost, match="PeerLost; peer gone") as lost:
            batch.wait(LONG)
        report = lost.value.report
        assert lost.value.batch is batch and batch.status == "PeerLost" and report.index == 0
        assert (report.status, report.local) == ("PeerLost", "Released")
        assert (report.remote, report.cause) == ("Settled", "PeerGone")
        assert batch.wait_released(LONG).failed == 1 and "PeerLost" in repr(batch)
        assert engine.held() == []
        # The segment went with it: also what a successor at its address has is another one.
        with pytest.raises(polyrail.PeerLost):
            engine.write(local, remote).wait(LONG)


def test_a_peer_that_comes_back_is_opened_anew(engine, targets):
    first = targets()
    port = first.address.rpartition(":")[2]
    source = pattern(1 << 20)
    local, remote = engine.register(source), engine.open(f"{first.address}/mem")
    engine.write(local, remote).wait(LONG)
    first.kill()
    second = targets(port=int(port))
    with pytest.raises(polyrail.PeerLost):
        engine.write(local, remote).wait(LONG)
    engine.write(local, engine.open(f"{second.address}/mem")).wait(LONG)
    assert second.crc(0, 1 << 20) == crc(source)


def test_a_segment_that_stands_follows_a_peer_that_comes_back(engine, targets):
    first = targets()
    port = first.address.rpartition(":")[2]
    source = pattern(1 << 20)
    local, remote = engine.register(source), engine.open(f"{first.address}/mem", standing=True)
    transfer = engine.prepare("write", local, remote)
    transfer.post().wait(LONG)
    events = engine.peer_events()
    [peer] = engine.peers()
    assert (peer["address"], peer["state"]) == (first.address, "present")
    first.kill()
    lost = events.get(LONG)
    assert (lost.what, lost.address, lost.incarnation) == ("lost", first.address, peer["incarnation"])
    with pytest.raises(polyrail.PeerLost):
        transfer.post()
    second = targets(port=int(port))
    changed = events.get(LONG)
    assert changed.what == "changed" and changed.incarnation != lost.incarnation
    # The target listens before it has its segment, and is told of when it listens.
    engine.open(f"{second.address}/mem", within=LONG)
    while True:
        try:
            transfer.post().wait(LONG)
            break
        except polyrail.PeerLost:
            pass
    assert second.crc(0, 1 << 20) == crc(source)
    assert events.poll() is None


def test_who_opens_within_a_time_hears_of_the_last_try(engine):
    with pytest.raises(polyrail.Unreachable, match="not opened within 50ms, in . tries: .*refused"):
        engine.open("127.0.0.1:1/mem", within=0.05)


def test_who_comes_before_peers_are_let_in_waits_for_the_segment(engine):
    with polyrail.Engine(name="later", listen="127.0.0.1:0", lets_in_later=True) as later:
        address = f"{later.listening}/mem"
        # It is not told that there is no such segment: nobody answers it.
        with pytest.raises(polyrail.Unreachable, match="not opened within"):
            engine.open(address, within=0.05)
        later.allocate(4096, "mem")
        later.let_in()
        later.let_in()
        assert engine.open(address, within=LONG).nbytes == 4096
    with pytest.raises(polyrail.Closed):
        later.let_in()


def test_of_many_requests_each_has_its_report(targets):
    with polyrail.Engine(**OVER_TCP) as engine:
        target, local, remote = stopped(targets, engine)
        places = numpy.arange(64) << 20
        batch = engine.write(local, remote, 1 << 20, local_offset=places, remote_offset=places)
        with pytest.raises(polyrail.TimedOut, match="of 64 requests have") as waited:
            batch.wait(0.01)
        assert isinstance(waited.value, TimeoutError) and not batch.done
        target.kill()
        with pytest.raises(polyrail.PeerLost, match="of 64 requests failed"):
            batch.wait(LONG)
        failed = batch.reports.failed()
        assert len(failed) == batch.summary.failed > 0
        assert {report.status for report in failed} == {"PeerLost"}
        assert len(list(batch.reports)) == 64 and "PeerLost" in repr(failed[0]) and "failed=" in repr(batch.summary)
        assert "64 requests" in repr(batch.reports)


def test_a_deadline_ends_what_a_stopped_peer_holds_up(targets):
    with polyrail.Engine(**OVER_TCP) as engine:
        target, local, remote = stopped(targets, engine)
        start = time.monotonic()
        batch = engine.write(local, remote, deadline=0.2)
        with pytest.raises((polyrail.DeadlineExceeded, polyrail.Indeterminate)) as ended:
            batch.wait(LONG)
        assert time.monotonic() - start < 5
        report = ended.value.report
        is_open = (report.local, report.remote) != ("Released", "Settled")
        assert is_open == isinstance(ended.value, polyrail.Indeterminate)
        target.go_on()
        # Once the peer is heard, nothing is open any more.
        assert batch.wait_released(LONG).ended == 1
        report = batch.reports[0]
        assert (report.local, report.remote) == ("Released", "Settled")


def test_what_cannot_be_known_is_indeterminate(targets):
    with polyrail.Engine(**OVER_TCP) as engine:
        target, local, remote = stopped(targets, engine)
        batch = engine.write(local, remote)
        with pytest.raises(polyrail.Indeterminate, match="there Unknown") as ended:
            batch.wait(LONG)
        assert ended.value.report.remote == "Unknown"
        with pytest.raises(polyrail.TimedOut, match="not settled"):
            batch.wait_released(0.01)
        # That the peer's memory is unknown keeps nothing here: there is no need to list it.
        ended.value.batch = None
        del batch
        gc.collect()
        assert engine.held() == []


def test_batches_that_nobody_waits_for_go_on_and_are_not_piled_up(engine, target):
    source = pattern(1 << 20)
    local, remote = engine.register(source), engine.open(f"{target.address}/mem")
    for index in range(100_000):
        place = index * 4096 % len(source)
        engine.write(local, remote, 4096, local_offset=place, remote_offset=place)
    engine.write(local, remote).wait(LONG)
    until(lambda: engine.stats()["devices"][0]["inflight_bytes"] == 0)
    assert target.crc(0, 1 << 20) == crc(source) and engine.held() == []


def test_a_cancelled_batch_says_so(targets):
    with polyrail.Engine(**OVER_TCP) as engine:
        target, local, remote = stopped(targets, engine)
        places = numpy.arange(16) << 22
        batch = engine.write(local, remote, 1 << 22, local_offset=places, remote_offset=places)
        batch.cancel()
        # What has not been sent ends now; what has been waits for the target.
        until(lambda: batch.summary.failed > 0)
        target.go_on()
        with pytest.raises(polyrail.Cancelled, match="Cancelled"):
            batch.wait(LONG)
        assert batch.status is polyrail.Status.CANCELLED


@pulled
def test_memory_that_is_held_stays_when_its_batch_is_dropped(targets, caplog):
    """A target that is stopped in the midst of a pull may go on with it: what it pulls from is held until it has."""
    with polyrail.Engine(name="initiator", health={"fence_timeout_ms": 200}) as engine:
        target = targets(size=LARGE)
        buffer = bytearray(LARGE)
        memory, remote = engine.register(buffer), engine.open(f"{target.address}/mem")
        chance = random.Random(1)
        for _ in range(50):
            batch = engine.write(memory, remote)
            # Some moment of the pull, which takes some milliseconds.
            time.sleep(chance.uniform(0, 0.01))
            target.stop()
            try:
                batch.wait(LONG)
            except polyrail.Error:
                pass
            if batch.reports[0].local == "Held":
                break
            target.go_on()
            batch.wait_released(LONG)
        else:
            pytest.fail("the target was never stopped in a pull")
        assert batch.status == "Indeterminate"
        with caplog.at_level(logging.WARNING, "polyrail"):
            del batch
            gc.collect()
            until(lambda: "may still touch memory here" in caplog.text)
        assert [len(held) for held in engine.held()] == [1]
        with pytest.raises(polyrail.InUse):
            memory.close()
        with pytest.raises(BufferError):
            buffer.extend(b"more")
        held = engine.held()[0]
        target.go_on()
        held.wait_released(LONG)
        assert engine.held() == []
        memory.close()
        buffer.extend(b"more")


def until(is_so):
    """Waits for what another thread does, and nobody tells."""
    end = time.monotonic() + LONG
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_without_room_a_submission_waits_or_is_full(targets):
    with polyrail.Engine(workers=1, **OVER_TCP) as engine:
        target, local, remote = stopped(targets, engine)
        places = numpy.arange(16_384) * 4096
        engine.write(local, remote, 4096, local_offset=places, remote_offset=places)
        start = time.monotonic()
        with pytest.raises(polyrail.Full, match="worker 0 holds 16384 of 16384 requests"):
            engine.write(local, remote, 1, room=0)
        assert time.monotonic() - start < 0.5
        with pytest.raises(polyrail.Full):
            engine.write(local, remote, 1, room=0.2)
        assert time.monotonic() - start >= 0.2
        target.go_on()
        engine.write(local, remote, 1, room=LONG).wait(LONG)


def test_what_of_a_large_batch_has_not_begun_is_reported_like_all_else(targets):
    with polyrail.Engine(workers=1, **OVER_TCP) as engine:
        target, local, remote = stopped(targets, engine)
        places = numpy.arange(40_000) * 1024
        batch = engine.write(local, remote, 1024, local_offset=places, remote_offset=places, deadline=0.2)
        with pytest.raises((polyrail.DeadlineExceeded, polyrail.Indeterminate)):
            batch.wait(LONG)
        assert batch.summary.requests == len(batch.reports) == 40_000
        last = batch.reports[-1]
        assert (last.status, last.local, last.remote) == ("DeadlineExceeded", "Released", "Settled")
        target.kill()
        batch.wait_released(LONG)


@pytest.mark.parametrize("what", ["wait", "wait_released", "room", "notifications", "delivery", "arrivals", "open", "events"])
def test_control_c_is_heeded_within_a_tenth_of_a_second(targets, what):
    with polyrail.Engine(workers=1, health={"peer_silence_ms": 60_000, "progress_floor_ms": 60_000}, **OVER_TCP) as engine:
        target, local, remote = stopped(targets, engine)
        places = numpy.arange(16_384) * 4096
        batch = engine.write(local, remote, 4096, local_offset=places, remote_offset=places)
        waits = {
            "wait": batch.wait,
            "wait_released": batch.wait_released,
            "room": lambda: engine.write(local, remote, 1, room=LONG),
            "notifications": engine.notifications().get,
            "delivery": engine.notify(remote, b"x").wait,
            "arrivals": lambda: engine.wait_arrivals(1),
            "open": lambda: engine.open("127.0.0.1:1/mem", within=LONG),
            "events": engine.peer_events().get,
        }
        pressed = []

        def press():
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.2, press)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            waits[what]()
        late = time.monotonic() - pressed[0]
        timer.join()
        target.kill()
        assert late < 0.1


def test_other_threads_run_while_one_waits(targets):
    with polyrail.Engine(**OVER_TCP) as engine:
        target, local, remote = stopped(targets, engine)
        batch = engine.write(local, remote)
        waiting = threading.Thread(target=lambda: batch.wait_released(LONG))
        waiting.start()
        counted = 0
        while counted < 1_000_000:
            counted += 1
        assert waiting.is_alive()
        target.go_on()
        waiting.join(LONG)
        assert batch.done


def switches_of_others() -> int:
    """How often threads but this one have gone to sleep."""
    others = set(os.listdir("/proc/self/task")) - {str(threading.get_native_id())}
    texts = (Path(f"/proc/self/task/{thread}/status").read_text() for thread in others)
    return sum(int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)$", text, re.MULTILINE)[1]) for text in texts)


def test_who_waits_drives_the_batch_and_calls_nobody(targets):
    with polyrail.Engine(workers=1, **OVER_TCP) as engine:
        target, many = targets(), 2_000
        local, remote = engine.register(bytearray(4096)), engine.open(f"{target.address}/mem")
        for _ in range(100):
            engine.write(local, remote, 4096).wait(LONG)
        seen = []
        for _ in range(3):
            before = switches_of_others()
            for _ in range(many):
                engine.write(local, remote, 4096).wait(LONG)
            seen.append(switches_of_others() - before)
        # About once for each if the worker's thread is called; a busy machine may have it called now and then.
        assert min(seen) < many / 2


def together(count, body):
    """Runs it on so many threads that start at once; the first exception of theirs is raised."""
    start, errors = threading.Barrier(count), []

    def run(number):
        start.wait(LONG)
        try:
            body(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_eight_threads_move_bytes_through_one_engine(engine, targets):
    part = 1 << 16
    target = targets(size=8 * part)
    source = pattern(8 * part)
    local, remote = engine.register(source), engine.open(f"{target.address}/mem")

    def move(number):
        for offset in range(0, part, 1024):
            offset += number * part
            engine.write(local, remote, 1024, local_offset=offset, remote_offset=offset).wait(LONG)

    together(8, move)
    assert target.crc(0, 8 * part) == crc(source)


def test_eight_threads_share_segments_batches_and_what_is_prepared(engine, target):
    remote, blocks = engine.open(f"{target.address}/mem"), numpy.arange(0, 1 << 16, 64)
    for _ in range(20):
        memory, closed = engine.register(pattern(1 << 16)), []
        batch = engine.write(memory, remote, 64, local_offset=blocks, remote_offset=blocks)
        prepared = engine.prepare("write", memory, remote, 64)

        def use(_):
            assert batch.wait(LONG).delivered_bytes == 1 << 16
            assert {report.status for report in batch.reports} == {"Completed"}
            prepared.post().wait(LONG)
            assert engine.stats()["rails"] and repr(batch) and not engine.held()

        def close(number):
            try:
                memory.close()
                closed.append(number)
            except polyrail.Closed:
                pass

        together(8, use)
        together(8, close)
        assert memory.closed and closed


def test_the_operator_can_say_that_a_peer_is_lost(targets):
    with polyrail.Engine(**OVER_TCP) as engine:
        target, local, remote = stopped(targets, engine)
        batch = engine.write(local, remote)
        assert engine.declare_lost(target.address)
        with pytest.raises(polyrail.PeerLost):
            batch.wait(LONG)
        assert not engine.declare_lost("127.0.0.1:1")
