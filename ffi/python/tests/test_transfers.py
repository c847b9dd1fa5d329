"""Bytes that go to another process and come back."""

import numpy
import pytest
from conftest import LONG, crc, pattern

import polyrail

SIZE = 1 << 20


@pytest.mark.parametrize("memory", ["registered", "allocated"])
def test_what_is_written_is_there_and_can_be_read(engine, targets, memory):
    target = targets(memory=memory)
    remote = engine.open(f"{target.address}/mem")
    assert (remote.nbytes, len(remote), remote.name) == (SIZE, SIZE, f"{target.address}/mem")
    source, copy = pattern(SIZE), numpy.zeros(SIZE, numpy.uint8)
    batch = engine.write(engine.register(source), remote)
    summary = batch.wait(LONG)
    assert (summary.status, summary.requests, summary.ended, summary.failed) == ("Completed", 1, 1, 0)
    assert summary.delivered_bytes == SIZE
    assert batch.done and batch.status is polyrail.Status.COMPLETED and batch.wait_released(LONG).ended == 1
    assert target.crc(0, SIZE) == crc(source)
    engine.read(engine.register(copy), remote).wait(LONG)
    assert (copy == source).all()


def test_a_range_goes_where_it_is_to_go_and_nowhere_else(engine, target):
    source = pattern(8192)
    local, remote = engine.register(source), engine.open_segment(f"{target.address}/mem")
    engine.write(local, remote, 1000, local_offset=100, remote_offset=5000).wait(LONG)
    around = numpy.zeros(SIZE, numpy.uint8)
    around[5000:6000] = source[100:1100]
    assert target.crc(0, SIZE) == crc(around)


@pytest.mark.parametrize("kind", ["int32", "uint32", "int64", "uint64"])
def test_ranges_are_given_by_arrays(engine, target, kind):
    source = pattern(SIZE)
    local, remote = engine.register(source), engine.open(f"{target.address}/mem")
    places = numpy.random.default_rng(2).permutation(256)
    batch = engine.write(
        local, remote, 4096, local_offset=(places * 4096).astype(kind), remote_offset=(numpy.arange(256) * 4096).astype(kind)
    )
    assert batch.wait(LONG).requests == len(batch) == len(batch.reports) == 256
    assert target.crc(0, SIZE) == crc(source.reshape(256, 4096)[places].copy())
    lengths = numpy.array([1, 2, 3], kind)
    engine.read(local, remote, lengths, local_offset=lengths, remote_offset=7).wait(LONG)


def test_a_million_blocks_from_arrays(engine, targets):
    blocks, block = 1_000_000, 64
    target = targets(size=blocks * block, memory="allocated")
    source = pattern(blocks * block)
    local, remote = engine.register(source), engine.open(f"{target.address}/mem")
    places = numpy.random.default_rng(3).permutation(blocks)
    batch = engine.write(local, remote, block, local_offset=places * block, remote_offset=numpy.arange(blocks) * block)
    summary = batch.wait(2 * LONG)
    assert (summary.requests, summary.delivered_bytes) == (blocks, blocks * block)
    assert target.crc(0, blocks * block) == crc(source.reshape(blocks, block)[places].copy())
    assert [batch.reports[i].index for i in (0, 16_383, 16_384, -1)] == [0, 16_383, 16_384, blocks - 1]
    assert batch.reports[-1].delivered_bytes == block and batch.reports.failed() == []
    with pytest.raises(IndexError, match="report 1000000 of 1000000"):
        batch.reports[blocks]


def test_a_prepared_transfer_is_posted_many_times(engine, target):
    source = numpy.zeros(40_000, numpy.uint8)
    local, remote = engine.register(source), engine.open(f"{target.address}/mem")
    places = numpy.arange(20_000) * 2
    prepared = engine.prepare("write", local, remote, 2, local_offset=places, remote_offset=places)
    places[:] = 1 << 40
    assert len(prepared) == 20_000 and "20000 requests" in repr(prepared)
    for round in range(3):
        source[:] = pattern(40_000, round)
        assert prepared.post(priority="high", deadline=LONG, room=1).wait(LONG).ended == 20_000
        assert target.crc(0, 40_000) == crc(source)
    batch = engine.prepare("read", local, remote, 100).post(notify=b"read")
    batch.wait(LONG)
    assert batch.delivery.wait(LONG) == "Delivered" and target.ask("notification") == "initiator read"


def test_notifications_come_behind_their_bytes_and_in_order(engine, target):
    source = pattern(SIZE)
    local, remote = engine.register(source), engine.open(f"{target.address}/mem")
    batch = engine.write(local, remote, notify=b"first")
    batch.wait(LONG)
    delivery = engine.notify(remote, b"second")
    assert target.ask("notification") == "initiator first"
    assert target.crc(0, SIZE) == crc(source)
    assert target.ask("notification") == "initiator second"
    assert delivery.wait(LONG) is delivery.status is polyrail.DeliveryStatus.DELIVERED
    assert batch.delivery.wait(LONG) == "Delivered" and "Delivered" in repr(batch.delivery)
    assert engine.write(local, remote).delivery is None


def test_what_peers_tell_is_taken_in_three_ways(target):
    with polyrail.Engine(name="listener", listen="127.0.0.1:0") as engine:
        engine.allocate(4096, "mem")
        inbox = engine.notifications()
        assert inbox.poll() is None and inbox.fileno() >= 0 and "descriptor" in repr(inbox)
        with pytest.raises(polyrail.TimedOut, match="no notification within 10ms"):
            inbox.get(timeout=0.01)
        for word in ["one", "two", "three"]:
            assert target.ask("tell", f"{engine.listening}/mem", word) == "Delivered"
        one = inbox.poll()
        assert (one.data, one.sender) == (b"one", "target") and one.incarnation > 0 and "3 bytes" in repr(one)
        assert inbox.get(LONG).data == b"two"
        assert next(iter(inbox)).data == b"three"
    assert list(inbox) == []
    with pytest.raises(polyrail.Closed):
        inbox.get()


def test_files_are_read_written_and_offered(engine, tmp_path):
    path = tmp_path / "file"
    source, copy = pattern(100_000), numpy.zeros(100_000, numpy.uint8)
    path.write_bytes(source.tobytes())
    memory = engine.register(copy)
    with engine.file(path, read_only=True, cached=True) as file:
        engine.read(memory, file).wait(LONG)
        assert (copy == source).all() and str(path) in repr(file) and not file.closed
    assert file.closed
    with engine.file(str(path), offset=50_000, length=100_000) as file:
        engine.write(memory, file).wait(LONG)
        file.sync()
    assert path.read_bytes() == source[:50_000].tobytes() + source.tobytes()
    with polyrail.Engine(name="files", listen="127.0.0.1:0") as owner:
        owner.file(path).offer("file", access="read")
        remote = engine.open(f"{owner.listening}/file")
        copy[:] = 0
        engine.read(memory, remote, 100_000, remote_offset=50_000).wait(LONG)
        assert (copy == source).all()
    with pytest.raises(OSError, match="cannot open") as refused:
        engine.file(tmp_path / "none")
    assert isinstance(refused.value, polyrail.Unavailable)


def test_nonsense_is_refused_in_words(engine, target):
    local, remote = engine.register(bytearray(100), name="here"), engine.open(f"{target.address}/mem")
    other = polyrail.Engine(name="other")
    twice = numpy.arange(20_000) * 100
    # (what is asked, the error, words of it)
    cases = [
        (lambda: engine.write(local, remote), ValueError, 'length is needed: "here" has 100 bytes'),
        (lambda: engine.write(local, remote, 101), polyrail.Invalid, "101 bytes from offset 0 end past"),
        (lambda: engine.write(local, remote, 0), polyrail.Invalid, "a length of 0"),
        (lambda: engine.write(local, remote, -1), ValueError, "length is -1"),
        (lambda: engine.write(local, remote, 2.5), TypeError, "length is a <class 'float'>"),
        (lambda: engine.write(local, remote, local_offset=100), ValueError, 'past the end of "here"'),
        (lambda: engine.write(local, remote, numpy.zeros(3)), TypeError, "format \"d\""),
        (lambda: engine.write(local, remote, twice[::2]), ValueError, "one dimension without gaps"),
        (lambda: engine.write(local, remote, 1, local_offset=twice[:2], remote_offset=twice[:3]), ValueError, "remote_offset 3"),
        (lambda: engine.write(local, remote, twice[:0]), ValueError, "the arrays are empty"),
        (lambda: engine.write(local, remote, local_offset=twice), ValueError, "length is needed"),
        (lambda: engine.write(local, remote, 1, local_offset=twice), polyrail.Invalid, 'request 1: 1 bytes from offset 100 end past "here"'),
        (lambda: engine.write(local, remote, 1, priority="urgent"), ValueError, '"high", "normal", "low" expected'),
        (lambda: engine.write(local, remote, 1, deadline=-1.0), ValueError, "deadline is -1"),
        (lambda: engine.write(local, remote, 1, notify=b"x" * (polyrail.NOTIFICATION_BYTES_MAX + 1)), polyrail.Invalid, "1048576"),
        (lambda: other.write(local, remote, 1), ValueError, "belongs to another engine"),
        (lambda: engine.prepare("copy", local, remote, 1), ValueError, '"write", "read" expected'),
        (lambda: engine.open("nowhere"), polyrail.Invalid, "HOST:PORT/SEGMENT expected"),
        (lambda: engine.open(f"{target.address}/other"), polyrail.Invalid, 'no segment named "other"'),
        (lambda: engine.open("127.0.0.1:1/mem"), polyrail.Unreachable, "Connection refused"),
        (lambda: engine.register(bytearray(1), name="here"), polyrail.Invalid, "here"),
        (lambda: engine.allocate(0), polyrail.Invalid, "0 bytes"),
        (lambda: engine.allocate(1, device="tpu"), ValueError, '"cpu" or "cuda:N" expected'),
        (lambda: engine.register(bytearray(1), access="write"), ValueError, '"read-write" expected'),
        (lambda: engine.write(local, remote, 1).wait(-1), ValueError, "timeout is -1"),
    ]
    for ask, error, words in cases:
        with pytest.raises(error) as refused:
            ask()
        assert words in str(refused.value)
    other.close()


def test_what_a_peer_does_not_allow_is_refused(engine, targets):
    target = targets(memory="read")
    local, remote = engine.register(bytearray(SIZE)), engine.open(f"{target.address}/mem")
    engine.read(local, remote).wait(LONG)
    with pytest.raises(polyrail.Invalid, match="lets it be read only"):
        engine.write(local, remote)


def test_stats_say_what_went_where(engine, target):
    local, remote = engine.register(bytearray(SIZE)), engine.open(f"{target.address}/mem")
    engine.write(local, remote).wait(LONG)
    stats = engine.stats()
    assert sum(rail["bytes"] for rail in stats["rails"]) == SIZE
    assert sum(device["bytes"] for device in stats["devices"]) == SIZE
    assert {rail["state"] for rail in stats["rails"]} == {"healthy"} and not any(rail["is_spare"] for rail in stats["rails"])
    assert "tcp" in [transport["transport"] for transport in stats["transports"]]
    assert stats["failovers"] == []
    assert sum(row["bytes"] for row in stats["requests"]) == SIZE
    assert [row["outcomes"] for row in stats["requests"]] == [{"Completed": 1}]
    limits = {limit["what"]: limit for limit in stats["limits"]}
    assert 0 < limits["segments"]["used"] < limits["segments"]["most"]
    assert stats["unsettled"] == {"requests": 0, "held_bytes": 0, "unknown_bytes": 0, "oldest": None}
    assert stats["fences"]["waiting"] == 0 and stats["fences"]["oldest"] is None and stats["sessions"] == []


def test_stats_say_who_holds_what(targets):
    with polyrail.Engine(name="initiator", workers=1, transports={"shm": {"enable": False}}, health={"peer_silence_ms": 60_000}) as engine:
        size = 64 << 20
        target = targets(size=size)
        local, remote = engine.register(bytearray(size)), engine.open(f"{target.address}/mem")
        engine.write(local, remote).wait(LONG)
        target.stop()
        batch = engine.write(local, remote)
        [worker, *_] = engine.stats()["workers"]
        assert (worker["worker"], worker["held"], worker["waiting"], worker["admission_waits"]) == (0, 1, 0, 0)
        assert worker["limit"] >= 16_384 and worker["held_high"] >= 1 and worker["full_for"] is None and worker["completions"] > 0
        target.go_on()
        batch.wait(LONG)
        stats = engine.stats()
        assert stats["workers"][0]["held"] == 0 and stats["workers"][0]["completed"] >= 0.0
        rails = {rail["rail"] for rail in stats["rails"]}
        assert stats["lanes"] and {lane["rail"] for lane in stats["lanes"]} <= rails
        lane = max(stats["lanes"], key=lambda lane: lane["released"])
        assert (lane["worker"], lane["state"], lane["held"], lane["held_bytes"], lane["full_for"]) == (0, "open", 0, 0, None)
        assert lane["released"] >= lane["releases"] > 0 and lane["limit"] >= lane["held_high"] > 0 and lane["completed"] >= 0.0
