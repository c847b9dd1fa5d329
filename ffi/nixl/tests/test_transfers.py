"""What moves, in all the ways that NIXL has, between processes and within one."""

import base64
import os
import random
import threading

import pytest

from partner import MODULE, api, Agent, Memory

KIB, MIB = 1 << 10, 1 << 20


def pattern(length, seed=1):
    return random.Random(seed).randbytes(length)


@pytest.fixture
def two(agent, partner):
    """An agent with a mebibyte, and a partner with another that it knows."""
    here, there = agent(), partner()
    assert here.know(there.metadata) == there.name
    return here, here.memory(MIB), there


@pytest.mark.parametrize("transports", ["all", "tcp"])
def test_bytes_go_to_another_process_and_come_back(agent, partner, transports):
    params = {} if transports == "all" else {"transports/shm/enable": "false"}
    here, there = agent(params=params), partner(None, 4 * MIB, **params)
    memory = here.memory(4 * MIB)
    here.know(there.metadata)
    data = pattern(3 * MIB + 17)
    memory.put(data)
    handle = here.transfer("WRITE", [(memory.address, len(data))], [(there.address + 5, len(data))], there.name)
    assert here.finish(handle) == "DONE"
    memory.fill(0)
    back = here.transfer("READ", [(memory.address + 3, len(data))], [(there.address + 5, len(data))], there.name)
    assert here.finish(back) == "DONE"
    assert memory.bytes(3, len(data)) == data


def test_both_directions_at_once(two):
    here, memory, there = two
    there.know(base64.b64encode(here.nixl.get_agent_metadata()).decode())
    there.filled(7)
    assert there.write(here.name, memory.address, MIB, "") == "DONE"
    assert memory.bytes() == bytes([7]) * MIB


def test_an_agent_moves_bytes_within_itself(agent):
    one = agent()
    source, target = one.memory(MIB, 1), one.memory(MIB, 2)
    for op in ("WRITE", "READ"):
        source.fill(3 if op == "WRITE" else 4)
        near, far = (source, target) if op == "WRITE" else (target, source)
        handle = one.transfer(op, [(near.address, MIB)], [(far.address, MIB)], one.name, b"myself")
        assert one.finish(handle) == "DONE"
        assert target.bytes() == source.bytes()
        assert one.wait_notifs(1) == {one.name: [b"myself"]}


def test_a_file_is_written_and_read(agent, tmp_path):
    one = agent()
    memory, size = one.memory(MIB, 9), 64 * KIB
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.truncate(file, MIB)
    registered = one.nixl.register_memory([(0, MIB, file, "")], "FILE")
    near = one.nixl.get_xfer_descs([(memory.address + at, size, 0) for at in range(0, MIB, 2 * size)], "DRAM")
    far = one.nixl.get_xfer_descs([(at, size, file) for at in range(0, MIB, 2 * size)], "FILE")
    assert one.finish(one.nixl.initialize_xfer("WRITE", near, far, one.name)) == "DONE"
    assert (tmp_path / "file").read_bytes() == (bytes([9]) * size + bytes(size)) * 8
    memory.fill(0)
    assert one.finish(one.nixl.initialize_xfer("READ", near, far, one.name)) == "DONE"
    assert memory.bytes() == (bytes([9]) * size + bytes(size)) * 8
    one.nixl.deregister_memory(registered)
    os.close(file)


def scattered(count, length, room, order):
    """Places in memory of so many bytes: in order, turned round, every other one, without any rule, all the same distance
    apart or all at one place."""
    slots = room // length
    places = {
        "rows": range(count),
        "backwards": range(count - 1, -1, -1),
        "every third": range(0, 3 * count, 3),
        "random": random.Random(5).sample(range(slots), count),
    }[order]
    return [place * length for place in places]


@pytest.mark.parametrize("order", ["rows", "backwards", "every third", "random"])
@pytest.mark.parametrize("other", ["rows", "backwards", "every third", "random"])
def test_descriptors_go_where_they_say_however_they_lie(two, order, other):
    here, memory, there = two
    length, count = 96, 3000
    near, far = scattered(count, length, MIB, order), scattered(count, length, MIB, other)
    there.filled(0)
    memory.put(pattern(MIB))
    expected = bytearray(MIB)
    for at, to in zip(near, far):
        expected[to : to + length] = memory.bytes(at, length)
    handle = here.transfer(
        "WRITE", [(memory.address + at, length) for at in near], [(there.address + to, length) for to in far], there.name
    )
    assert here.finish(handle) == "DONE"
    read = here.transfer("READ", [(memory.address, MIB)], [(there.address, MIB)], there.name)
    assert here.finish(read) == "DONE"
    assert memory.bytes() == expected


def test_lengths_may_differ_and_memories_too(agent, partner):
    here, there = agent(), partner(None, MIB)
    memories = [here.memory(256 * KIB, number) for number in range(1, 5)]
    here.know(there.metadata)
    near, far, expected, at = [], [], bytearray(MIB), 0
    choice = random.Random(3)
    for step in range(2000):
        memory, length = choice.choice(memories), choice.choice((1, 7, 64, 500))
        first = choice.randrange(memory.size - length)
        near.append((memory.address + first, length))
        far.append((there.address + at, length))
        expected[at : at + length] = memory.bytes(first, length)
        at += length
    assert here.finish(here.transfer("WRITE", near, far, there.name)) == "DONE"
    back = here.memory(MIB)
    read = here.transfer("READ", [(back.address, MIB)], [(there.address, MIB)], there.name)
    assert here.finish(read) == "DONE"
    assert back.bytes() == expected


def test_a_million_descriptors_in_one_handle(agent, partner):
    numpy = pytest.importorskip("numpy")
    count, length = 1_000_000, 64
    here, there = agent(), partner(None, count * length)
    memory = here.memory(count * length)
    data = pattern(count * length)
    memory.put(data)
    here.know(there.metadata)
    order = numpy.random.default_rng(1).permutation(count).astype(numpy.uint64)
    rows = [
        numpy.stack([base + places * length, numpy.full(count, length), numpy.zeros(count)], 1).astype(numpy.uint64)
        for base, places in (
            (numpy.uint64(memory.address), order),
            (numpy.uint64(there.address), numpy.arange(count, dtype=numpy.uint64)),
        )
    ]
    lists = [here.nixl.get_xfer_descs(one, "DRAM") for one in rows]
    handle = here.nixl.initialize_xfer("WRITE", *lists, there.name, b"all")
    assert here.finish(handle, limit=60) == "DONE"
    got = there.seen_with(1, 0, count * length)
    blocks = numpy.frombuffer(data, numpy.uint8).reshape(count, length)
    assert base64.b64decode(got) == blocks[order].tobytes()


def test_a_prepared_handle_is_posted_again_and_again(two):
    here, memory, there = two
    handle = here.transfer("WRITE", [(memory.address, MIB)], [(there.address, MIB)], there.name)
    for byte in range(1, 50):
        memory.fill(byte)
        assert here.finish(handle) == "DONE"
        assert there.counts(0, MIB, byte) == [MIB]
    here.nixl.release_xfer_handle(handle)


def test_lists_that_are_prepared_once_make_many_transfers(two):
    here, memory, there = two
    block, count = 4 * KIB, 256
    near = here.nixl.prep_xfer_dlist(
        "NIXL_INIT_AGENT", [(memory.address + at * block, block, 0) for at in range(count)], "DRAM"
    )
    far = here.nixl.prep_xfer_dlist(
        there.name, [(there.address + at * block, block, 0) for at in range(count)], "DRAM"
    )
    for first in range(0, count, 32):
        memory.fill(first % 251 + 1, first * block, 32 * block)
        indices = list(range(first, first + 32))
        handle = here.nixl.make_prepped_xfer("WRITE", near, indices, far, indices[::-1], b"")
        assert here.finish(handle) == "DONE"
        assert there.counts(first * block, 32 * block, first % 251 + 1) == [32 * block]
        here.nixl.release_xfer_handle(handle)


def test_ranges_that_are_not_registered_are_refused(two):
    here, memory, there = two
    for near, far in (((memory.address + MIB, 8), (there.address, 8)), ((memory.address, 8), (there.address + MIB - 4, 8))):
        with pytest.raises(Exception) as refused:
            here.transfer("WRITE", [near], [far], there.name)
        assert "NOT_FOUND" in str(refused.value) or "NotFound" in type(refused.value).__name__


def test_memory_is_registered_again_after_it_was_given_back(two):
    here, memory, there = two
    for byte in range(1, 20):
        other = Memory(64 * KIB, byte)
        registered = here.nixl.register_memory([(other.address, other.size, 0, "")], "DRAM")
        handle = here.transfer("WRITE", [(other.address, other.size)], [(there.address, other.size)], there.name)
        assert here.finish(handle) == "DONE"
        here.nixl.release_xfer_handle(handle)
        here.nixl.deregister_memory(registered)
        assert there.counts(0, other.size, byte) == [other.size]


def test_metadata_is_at_most_200_bytes_a_segment(agent):
    one = agent()
    bare = len(one.nixl.get_agent_metadata())
    for _ in range(16):
        one.memory(4 * KIB)
    assert len(one.nixl.get_agent_metadata()) - bare <= 16 * 200
    assert bare < 400


def test_partial_metadata_is_enough_for_what_it_names(agent, partner):
    here, one, other = agent(), Agent("in parts"), Agent("whole")
    first, second = one.memory(64 * KIB), one.memory(64 * KIB)
    descriptors = one.nixl.get_reg_descs([(first.address, first.size, 0, "")], "DRAM")
    here.know(one.nixl.get_partial_agent_metadata(descriptors, True, ["POLYRAIL"]))
    source = here.memory(64 * KIB, 6)
    pair = [(source.address, source.size)]
    assert here.finish(here.transfer("WRITE", pair, [(first.address, first.size)], "in parts")) == "DONE"
    assert first.bytes() == source.bytes()
    with pytest.raises(Exception):
        here.transfer("WRITE", pair, [(second.address, second.size)], "in parts")
    more = one.nixl.get_reg_descs([(second.address, second.size, 0, "")], "DRAM")
    here.know(one.nixl.get_partial_agent_metadata(more, False, ["POLYRAIL"]))
    assert here.finish(here.transfer("WRITE", pair, [(second.address, second.size)], "in parts")) == "DONE"
    assert second.bytes() == source.bytes()
    del other


def test_what_a_transfer_costs_is_estimated_from_what_was_learned(two):
    here, memory, there = two
    handle = here.transfer("WRITE", [(memory.address, MIB)], [(there.address, MIB)], there.name)
    assert here.finish(handle) == "DONE"
    estimate = getattr(here.nixl.agent, "estimateXferCost", None)
    if estimate is None:
        pytest.skip("this wheel's bindings do not have it")
    duration, margin, method = estimate(handle._handle if hasattr(handle, "_handle") else handle)
    assert 0 < duration < 1_000_000 and 0 < margin <= duration


def test_another_back_end_in_the_same_agent_does_not_disturb(two, tmp_path):
    here, memory, there = two
    here.nixl.create_backend("POSIX", {})
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.truncate(file, MIB)
    other = Memory(MIB, 5)
    places = [(other.address, MIB, 0)]
    here.nixl.register_memory([(*places[0], "")], "DRAM", backends=["POLYRAIL", "POSIX"])
    here.nixl.register_memory([(0, MIB, file, "")], "FILE", backends=["POSIX"])
    near = here.nixl.get_xfer_descs(places, "DRAM")
    disk = here.nixl.initialize_xfer(
        "WRITE", near, here.nixl.get_xfer_descs([(0, MIB, file)], "FILE"), here.name, b"", ["POSIX"]
    )
    network = here.transfer("WRITE", [(other.address, MIB)], [(there.address, MIB)], there.name)
    assert here.nixl.query_xfer_backend(disk) == "POSIX" and here.nixl.query_xfer_backend(network) == "POLYRAIL"
    assert here.finish(network) == "DONE" and here.finish(disk) == "DONE"
    assert there.counts(0, MIB, 5) == [MIB] and (tmp_path / "file").read_bytes() == bytes([5]) * MIB
    os.close(file)


def test_ten_agents_with_eight_threads_each(agent, partner):
    if not hasattr(api, "nixl_thread_sync_t"):
        pytest.skip("this wheel's agents are of one thread")
    there = partner(None, 10 * MIB)
    agents = [agent(sync_mode=api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT) for _ in range(10)]
    memories = [one.memory(MIB, number + 1) for number, one in enumerate(agents)]
    for one in agents:
        one.know(there.metadata)
    wrong = []

    def work(number, part):
        one, memory, size = agents[number], memories[number], MIB // 8
        near = [(memory.address + part * size, size)]
        far = [(there.address + number * MIB + part * size, size)]
        for _ in range(20):
            handle = one.transfer("WRITE", near, far, there.name)
            state = one.finish(handle, limit=30)
            one.nixl.release_xfer_handle(handle)
            if state != "DONE":
                wrong.append((number, part, state))

    threads = [threading.Thread(target=work, args=(number, part)) for number in range(10) for part in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
    assert not wrong
    for number in range(10):
        assert there.counts(number * MIB, MIB, number + 1) == [MIB]
