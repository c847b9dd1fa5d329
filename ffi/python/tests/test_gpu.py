"""Memory of GPUs, over a library in C that stands in for CUDA's driver: see `tests/gpu`. PyTorch where it can be imported."""

import os
import subprocess
from pathlib import Path

import pytest
from conftest import run

STAND_IN = Path(__file__).parent / "../../../tests/gpu/tests/cuda.c"

BEGIN = """
import ctypes
import numpy
import polyrail

target = polyrail.Engine(name="target", listen="127.0.0.1:0")
target.allocate(4096, "mem")
engine = polyrail.Engine(name="initiator")
remote = engine.open(f"{target.listening}/mem")
source = numpy.random.default_rng(1).integers(0, 256, 4096, dtype=numpy.uint8)
copy = numpy.zeros(4096, numpy.uint8)
local, back = engine.register(source), engine.register(copy)
on_gpu = engine.allocate(4096, device="cuda:1")
interface = on_gpu.__cuda_array_interface__

def goes_around(memory):
    # To the GPU, from there to the peer's memory, and back.
    copy[:] = 0
    engine.write(local, memory, 4096).wait(30)
    engine.write(memory, remote, 4096).wait(30)
    engine.read(back, remote, 4096).wait(30)
    assert (copy == source).all()
"""

OF_THE_ENGINE = """
assert on_gpu.device == "cuda:1" and interface["data"] == (on_gpu.address, False) and interface["shape"] == (4096,)
goes_around(on_gpu)
on_gpu.order_after(0)
try:
    memoryview(on_gpu)
except BufferError:
    pass
else:
    raise AssertionError("a GPU's memory has no buffer here")
"""

BY_INTERFACE = """
class Array:
    __cuda_array_interface__ = dict(interface, shape=(32, 32), typestr="<f4", strides=(128, 4))
class Gaps:
    __cuda_array_interface__ = dict(interface, shape=(16, 32), typestr="<f4", strides=(256, 4))
on_gpu.close()
memory = engine.register(Array())
assert (memory.device, memory.nbytes, memory.address) == ("cuda:1", 4096, interface["data"][0])
goes_around(memory)
try:
    engine.register(Gaps())
except BufferError as error:
    assert "one behind the other" in str(error)
else:
    raise AssertionError("it has gaps")
"""

BY_DLPACK = """
class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("dimensions", ctypes.c_int32), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("sizes", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    ]
capsule_new = ctypes.pythonapi.PyCapsule_New
capsule_new.restype, capsule_new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
deleted = []
deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleted.append)
sizes = (ctypes.c_int64 * 1)(2048)
tensor = Tensor(on_gpu.address, (2, 1), 1, 2, 16, 1, ctypes.addressof(sizes), None, 0, None, ctypes.cast(deleter, ctypes.c_void_p))
class OnGpu:
    def __dlpack__(self):
        return capsule_new(ctypes.addressof(tensor), b"dltensor", None)
on_gpu.close()
memory = engine.register(OnGpu())
assert (memory.device, memory.nbytes) == ("cuda:1", 4096)
goes_around(memory)
assert deleted == []
memory.close()
assert deleted == [ctypes.addressof(tensor)]
tensor.device[0] = 99
try:
    engine.register(OnGpu())
except BufferError as error:
    assert "device type 99" in str(error)
assert len(deleted) == 2
"""

BY_ADDRESS = """
from polyrail.mooncake import TransferEngine
there, here = TransferEngine(), TransferEngine()
for side in (there, here):
    assert side.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
theirs = engine.allocate(4096, device="cuda:0")
session = f"127.0.0.1:{there.get_rpc_port()}"
own = f"127.0.0.1:{here.get_rpc_port()}"
assert there.register_memory(theirs.address, 4096) == 0
ours = [source.ctypes.data, copy.ctypes.data, on_gpu.address]
assert here.batch_register_memory(ours, [4096] * 3) == 0
# To the peer's GPU, from there to ours, and back.
assert here.transfer_sync_write(session, ours[0], theirs.address, 4096) == 0
assert here.transfer_sync_read(session, ours[2], theirs.address, 4096) == 0
assert here.transfer_sync_write(own, ours[2], ours[1], 4096) == 0
assert (copy == source).all()
assert here.write_bytes_to_buffer(on_gpu.address, b"x", 1) == -1
assert here.batch_unregister_memory(ours) == 0
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda")
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-std=c11", "-O1", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(STAND_IN), "-lpthread"]
    subprocess.run(command, check=True)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


@pytest.mark.parametrize("text", [OF_THE_ENGINE, BY_INTERFACE, BY_DLPACK, BY_ADDRESS], ids=["allocated", "interface", "dlpack", "mooncake"])
def test_bytes_go_through_a_gpu(driver, text):
    ended = run(BEGIN + text, env=driver)
    assert ended.returncode == 0, ended


def test_tensors_of_pytorch(engine, target):
    torch = pytest.importorskip("torch", reason="PyTorch cannot be imported here")
    source, copy = torch.arange(1024, dtype=torch.float32), torch.zeros(1024)
    remote = engine.open(f"{target.address}/mem")
    engine.write(engine.register(source), remote, 4096).wait(30)
    engine.read(engine.register(copy), remote, 4096).wait(30)
    assert torch.equal(copy, source)
    memory = engine.allocate(4096)
    engine.read(memory, remote, 4096).wait(30)
    assert torch.equal(torch.frombuffer(memory, dtype=torch.float32), source)
