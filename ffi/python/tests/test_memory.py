"""Whose memory may be registered, and how long it is kept."""

import array
import ctypes
import gc
import sys
import weakref

import numpy
import pytest
from conftest import LONG, Tensor, pattern

import polyrail


def test_a_registered_buffer_is_kept_and_cannot_be_resized(engine):
    buffer = bytearray(4096)
    memory = engine.register(buffer)
    with pytest.raises(BufferError):
        buffer.extend(b"more")
    memory.close()
    memory.close()
    buffer.extend(b"more")
    assert memory.closed and "closed" in repr(memory)


def test_it_is_kept_until_its_segment_or_its_engine_is_closed(engine):
    # Arrays in an object that can be watched.
    class Watched(numpy.ndarray):
        pass

    def watched():
        owner = numpy.zeros(4096, numpy.uint8).view(Watched)
        return weakref.ref(owner), owner

    gone, owner = watched()
    with engine.register(owner) as memory:
        del owner
        gc.collect()
        assert gone() is not None and memory.nbytes == 4096
    assert gone() is None
    gone, owner = watched()
    engine.register(owner)
    del owner
    gc.collect()
    assert gone() is not None
    engine.close()
    assert gone() is None and engine.closed


@pytest.mark.parametrize(
    "buffer",
    [bytearray(64), array.array("d", range(8)), numpy.zeros((2, 8), numpy.float32), memoryview(bytearray(64)), (ctypes.c_char * 64)()],
    ids=lambda buffer: type(buffer).__name__,
)
def test_all_kinds_of_buffers_can_be_registered(engine, target, buffer):
    memory = engine.register(buffer)
    assert (memory.nbytes, memory.device) == (64, "cpu")
    remote = engine.open(f"{target.address}/mem")
    source = pattern(64)
    engine.write(engine.register(source), remote, 64).wait(LONG)
    engine.read(memory, remote, 64).wait(LONG)
    assert bytes(memoryview(buffer).cast("B")) == source.tobytes()


@pytest.mark.parametrize("versioned", [False, True])
def test_tensors_can_be_registered_by_dlpack(engine, target, versioned):
    source = pattern(4000).view(numpy.float32)
    memory = engine.register(Tensor(source, versioned))
    assert (memory.nbytes, memory.address) == (4000, source.ctypes.data)
    references = sys.getrefcount(source)
    remote, copy = engine.open(f"{target.address}/mem"), bytearray(4000)
    engine.write(memory, remote, 4000).wait(LONG)
    engine.read(engine.register(copy), remote, 4000).wait(LONG)
    assert copy == source.tobytes()
    memory.close()
    assert sys.getrefcount(source) == references - 1, "its owner was told"
    grid = numpy.zeros((8, 8))
    with pytest.raises(BufferError, match="one behind the other"):
        engine.register(Tensor(grid[:, :4], versioned))
    assert engine.register(Tensor(grid[:4], versioned)).nbytes == 256


def test_a_tensor_that_says_it_is_read_only_is(engine):
    source = numpy.zeros(64, numpy.uint8)
    source.flags.writeable = False
    with pytest.raises(BufferError, match="read-only"):
        engine.register(Tensor(source, True), name="x", access="read-write")


def test_an_address_can_be_registered(engine, target):
    memory = (ctypes.c_ubyte * 64)(*range(64))
    local, remote = engine.register((ctypes.addressof(memory), 64)), engine.open(f"{target.address}/mem")
    engine.write(local, remote, 64).wait(LONG)
    ctypes.memset(memory, 0, 64)
    engine.read(local, remote, 64).wait(LONG)
    assert bytes(memory) == bytes(range(64)) and local.address == ctypes.addressof(memory)


def test_what_is_read_only_is_read_only(engine, target):
    local, remote = engine.register(b"constant"), engine.open(f"{target.address}/mem")
    engine.write(local, remote, 8).wait(LONG)
    with pytest.raises(BufferError, match="nothing can be read into it"):
        engine.read(local, remote, 8)
    with pytest.raises(BufferError, match="peers cannot be let write"):
        engine.register(b"constant", name="x", access="read-write")
    engine.register(b"constant", name="by itself it can be read only")


@pytest.mark.parametrize(
    ("memory", "error", "words"),
    [
        (5, TypeError, "is no memory"),
        ((1, 2, 3), TypeError, "two whole numbers"),
        ((0, 4096), ValueError, "address 0"),
        (numpy.zeros((8, 8))[:, ::2], BufferError, "one behind the other"),
        (bytearray(), polyrail.Invalid, "0 bytes"),
    ],
)
def test_what_is_no_memory_is_refused(engine, memory, error, words):
    with pytest.raises(error, match=words):
        engine.register(memory)


def test_memory_that_the_engine_allocates_can_be_looked_at_for_ever(engine, target):
    memory = engine.allocate(4096)
    view, values = memoryview(memory), numpy.asarray(memory)
    values[:] = pattern(4096)
    assert view.nbytes == 4096 and not view.readonly and memory.address == values.ctypes.data
    remote = engine.open(f"{target.address}/mem")
    engine.write(memory, remote, 4096).wait(LONG)
    memory.close()
    engine.close()
    del memory
    gc.collect()
    assert bytes(view) == pattern(4096).tobytes()
    values[0] = 1
    registered = polyrail.Engine(name="x").register(bytearray(1))
    with pytest.raises(BufferError, match="look at what was registered"):
        memoryview(registered)
    with pytest.raises(AttributeError, match="not on a GPU"):
        _ = registered.__cuda_array_interface__


def test_memory_in_use_is_not_taken_back(targets):
    # Over TCP, to a target that does not move: what is under way stays under way.
    with polyrail.Engine(name="initiator", transports={"shm": {"enable": False}}) as engine:
        target = targets(size=64 << 20)
        buffer = bytearray(64 << 20)
        memory, remote = engine.register(buffer), engine.open(f"{target.address}/mem")
        target.stop()
        batch = engine.write(memory, remote)
        with pytest.raises(polyrail.InUse):
            memory.close()
        with pytest.raises(polyrail.InUse):
            remote.close()
        assert not memory.closed and not remote.closed
        with pytest.raises(BufferError):
            buffer.extend(b"more")
        target.go_on()
        batch.wait(LONG)
        memory.close()
        buffer.extend(b"more")


def test_a_gpu_is_asked_for_where_there_is_none(engine):
    class OnGpu:
        __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (1 << 40, False), "version": 3}

    try:
        engine.allocate(4096, device="cuda:0").close()
    except polyrail.Unavailable as error:
        assert "CUDA" in str(error)
        with pytest.raises(polyrail.Unavailable, match="memory of a GPU cannot be registered: .*CUDA"):
            engine.register(OnGpu())


def test_segments_of_peers_are_closed_as_often_as_they_were_opened(engine, target):
    memory, first = engine.register(bytearray(64)), engine.open(f"{target.address}/mem")
    with engine.open(f"{target.address}/mem") as second:
        engine.write(memory, second, 64).wait(LONG)
    assert second.closed and not first.closed
    second.close()
    engine.write(memory, first, 64).wait(LONG)
    first.close()
    assert repr(first).endswith(", closed>")
    with pytest.raises(polyrail.Closed):
        engine.write(memory, first, 64)
    with pytest.raises(polyrail.Closed):
        engine.notify(first, b"x")
    rows = [polyrail.Blocks(segment, rows=1, stride=64) for segment in (memory, first)]
    with pytest.raises(polyrail.Closed):
        engine.submit_paged([polyrail.PagedRequest("write", *rows, 64)])


def test_what_is_closed_says_so(engine, target):
    memory, remote = engine.register(bytearray(64)), engine.open(f"{target.address}/mem")
    memory.close()
    with pytest.raises(polyrail.Closed):
        engine.write(memory, remote, 64)
    engine.close()
    for use in [lambda: engine.allocate(64), lambda: engine.open(f"{target.address}/mem"), lambda: engine.notify(remote, b"x")]:
        with pytest.raises(polyrail.Error):
            use()
    with pytest.raises(polyrail.Closed):
        engine.write(engine.register(bytearray(64)), remote, 64)


def test_memory_of_a_trust_domain_is_for_its_peers_only(engine):
    red, blue = {"peers": ["127.0.0.0/8"]}, {"peers": ["192.0.2.0/24"]}
    security = {"domains": {"red": red, "blue": blue}}
    with polyrail.Engine(name="owner", listen="127.0.0.1:0", security=security) as owner:
        ours = bytearray(64)
        owner.register(ours, "registered", domain="red")
        allocated = owner.allocate(64, "allocated", domain="red")
        owner.allocate(64, "blue's", domain="blue")
        owner.register(bytearray(64), "everybody's")
        source = engine.register(pattern(64))
        for name in ("registered", "allocated"):
            engine.write(source, engine.open(f"{owner.listening}/{name}"), 64).wait(LONG)
        assert bytes(ours) == bytes(memoryview(allocated)) == pattern(64).tobytes()
        for name in ("blue's", "everybody's"):
            with pytest.raises(polyrail.Invalid, match="no segment named"):
                engine.open(f"{owner.listening}/{name}")
        for make in (lambda **of: owner.allocate(64, "x", **of), lambda **of: owner.register(bytearray(64), "x", **of)):
            with pytest.raises(polyrail.Invalid, match="green.*blue.*red"):
                make(domain="green")
        with pytest.raises(ValueError, match="memory of GPUs is for the common domain only"):
            owner.allocate(64, "x", device="cuda:0", domain="red")
