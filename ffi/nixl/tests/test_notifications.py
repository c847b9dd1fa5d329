"""What agents tell each other: whole, in order, and after the bytes that it is about."""

import base64
import time

import pytest

KIB, MIB = 1 << 10, 1 << 20


def text(data):
    return base64.b64encode(data).decode()


@pytest.fixture
def two(agent, partner):
    here, there = agent(), partner(None, 4 * MIB)
    here.know(there.metadata)
    there.know(text(here.nixl.get_agent_metadata()))
    return here, there


@pytest.mark.parametrize("length", [0, 1, 1000, 1024, 1025, 5000, MIB - 8192, MIB, 3 * MIB + 1])
def test_any_length_comes_whole_by_itself_and_with_a_transfer(two, length):
    here, there = two
    told = bytes(number % 251 for number in range(length))
    here.nixl.send_notif(there.name, told)
    assert there.notifs(1) == {here.name: [text(told)]}
    memory = here.memory(4 * KIB)
    handle = here.transfer("WRITE", [(memory.address, 4096)], [(there.address, 4096)], there.name, told or b"-")
    assert here.finish(handle) == "DONE"
    assert there.notifs(1) == {here.name: [text(told or b"-")]}


def test_they_come_in_order_and_once(two):
    here, there = two
    said = [f"{number}".encode() * (1 + number % 300) for number in range(700)]
    for one in said:
        here.nixl.send_notif(there.name, one)
    assert there.notifs(len(said)) == {here.name: [text(one) for one in said]}


def test_one_that_comes_with_a_transfer_comes_after_its_bytes(two):
    here, there = two
    memory = here.memory(4 * MIB)
    handle = here.transfer("WRITE", [(memory.address, 4 * MIB)], [(there.address, 4 * MIB)], there.name)
    for byte in range(1, 30):
        memory.fill(byte)
        state = here.nixl.transfer(handle, b"now")
        # Nobody polls here meanwhile: the engine tells it by itself.
        seen = base64.b64decode(there.seen_with(1, 0, 4 * MIB))
        assert seen == bytes([byte]) * (4 * MIB)
        while state == "PROC":
            state = here.nixl.check_xfer_state(handle)
        assert state == "DONE"


def test_each_post_can_tell_something_else_or_nothing(two):
    here, there = two
    memory = here.memory(4 * KIB)
    handle = here.transfer("WRITE", [(memory.address, 4096)], [(there.address, 4096)], there.name, b"first")
    assert here.finish(handle, b"first") == "DONE"
    assert here.finish(handle, b"second") == "DONE"
    assert there.notifs(2) == {here.name: [text(b"first"), text(b"second")]}


def test_agents_names_may_have_any_characters(agent, partner):
    name = "prefill worker é " + "x" * 600
    here, there = agent(name), partner("decode worker/0 ü")
    here.know(there.metadata)
    there.know(text(here.nixl.get_agent_metadata()))
    there.notify(name, text(b"hello"))
    assert here.wait_notifs(1) == {there.name: [b"hello"]}


def test_what_was_told_last_arrives_although_the_teller_leaves(agent, partner):
    here, there = agent(), partner()
    memory = here.memory(1 << 20)
    there.know(text(here.nixl.get_agent_metadata()))
    assert there.write(here.name, memory.address, 1 << 20, text(b"last words")) == "DONE"
    there.leave()
    assert here.wait_notifs(1) == {there.name: [b"last words"]}
    there.process.wait(10)


def test_no_progress_thread_is_needed(agent, partner):
    here, there = agent(threads=False), partner()
    here.know(there.metadata)
    memory = here.memory(64 * KIB, 5)
    handle = here.transfer("WRITE", [(memory.address, 64 * KIB)], [(there.address, 64 * KIB)], there.name, b"there")
    here.nixl.transfer(handle)
    assert base64.b64decode(there.seen_with(1, 0, 64 * KIB)) == bytes([5]) * (64 * KIB)
