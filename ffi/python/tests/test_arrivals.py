"""Batches of peers, counted where they arrive."""

import threading
import time

import pytest
from conftest import LONG

import polyrail

SIZE = 1 << 16


@pytest.fixture
def here():
    """An engine that peers write to."""
    with polyrail.Engine(name="here", listen="127.0.0.1:0") as engine:
        engine.allocate(SIZE, "mem")
        yield engine


def test_batches_are_counted_by_their_tags(engine, target):
    local, remote = engine.register(bytes([5]) * SIZE), engine.open(f"{target.address}/mem")
    for _ in range(3):
        engine.write(local, remote, SIZE, arrival=7)
    engine.write(local, remote, SIZE, arrival=(1 << 64) - 1, notify=b"behind it").wait(LONG)
    assert target.ask("arrivals", 7, 3) == "3" and target.ask("arrivals", (1 << 64) - 1, 1) == "1"
    assert target.ask("notification") == "initiator behind it"
    engine.read(engine.register(bytearray(SIZE)), remote, SIZE, arrival=7).wait(LONG)
    assert target.ask("arrivals", 7, 4) == "4"


def test_what_has_arrived_is_waited_for_and_forgotten(here, target):
    for count in (1, 2):
        assert target.ask("write", f"{here.listening}/mem", 7) == "written"
        assert here.wait_arrivals(7, count, LONG) == here.arrivals(7) == count
    assert here.wait_arrivals(7) == 2 and here.arrivals(8) == 0
    with pytest.raises(polyrail.TimedOut, match="2 of 3 batches have arrived with tag 7 after 10ms"):
        here.wait_arrivals(7, 3, timeout=0.01)
    assert (here.forget_arrivals(7), here.forget_arrivals(7), here.arrivals(7)) == (2, 0, 0)


def test_a_wait_ends_with_the_engine(here):
    ends = []

    def wait():
        with pytest.raises(polyrail.Closed) as closed:
            here.wait_arrivals(1, timeout=LONG)
        ends.append(closed)

    waiting = threading.Thread(target=wait)
    waiting.start()
    here.close()
    waiting.join(LONG)
    assert len(ends) == 1


def test_others_run_while_one_waits(here, target):
    seen = []
    waiting = threading.Thread(target=lambda: seen.append(here.wait_arrivals(1, 1, LONG)))
    waiting.start()
    start = time.monotonic()
    assert target.ask("write", f"{here.listening}/mem", 1) == "written"
    waiting.join(LONG)
    assert seen == [1] and time.monotonic() - start < LONG


@pytest.mark.parametrize("name", ["tag", "count"])
@pytest.mark.parametrize("number", [-1, 1 << 64])
def test_nonsense_is_refused_in_words(here, name, number):
    with pytest.raises(ValueError, match=f"{name} is {number}: a whole number from 0"):
        here.wait_arrivals(**{"tag": 1, "timeout": 0.0, name: number})
    local = here.register(bytearray(64))
    with pytest.raises(ValueError, match=f"arrival is {number}"):
        here.write(local, local, 64, arrival=number)


def test_a_notification_may_have_a_mebibyte(here, target):
    text = "x" * polyrail.NOTIFICATION_BYTES_MAX
    inbox = here.notifications()
    with polyrail.Engine(name="teller") as teller:
        remote = teller.open(f"{here.listening}/mem")
        delivery = teller.notify(remote, text.encode())
        assert inbox.get(LONG).data == text.encode() and delivery.wait(LONG) == "Delivered"
        with pytest.raises(polyrail.Invalid, match="1048577"):
            teller.notify(remote, text.encode() + b"x")
        batch = teller.write(teller.allocate(64), remote, 64, notify=text.encode()[:-1])
        assert len(inbox.get(LONG).data) == (1 << 20) - 1 and batch.delivery.wait(LONG) == "Delivered"
