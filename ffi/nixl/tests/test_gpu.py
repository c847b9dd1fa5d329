"""Memory of GPUs, over a library in C in the place of CUDA's driver: what is `VRAM` to NIXL moves, between two agents and to memory
of the host. That of real ones is tested with the engine (docs/gpu.md)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

STUB = Path(__file__).parents[3] / "tests/gpu/tests/cuda.c"

PROGRAM = """
import ctypes
from partner import Agent, Memory

cuda, size = ctypes.CDLL("libcuda.so.1"), 1 << 20

class Gpu:
    def __init__(self, number, fill):
        context, address = ctypes.c_void_p(), ctypes.c_uint64()
        assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), number) == 0
        assert cuda.cuCtxPushCurrent_v2(context) == 0
        assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
        assert cuda.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
        self.address, self.number = address.value, number
        ctypes.memset(self.address, fill, size)

    def bytes(self):
        return ctypes.string_at(self.address, size)

one, two = Agent("one"), Agent("two")
assert "VRAM_SEG" in str(one.nixl.get_backend_mem_types("POLYRAIL"))
near, far, host = Gpu(0, 1), Gpu(1, 2), one.memory(size, 3)
one.nixl.register_memory([(near.address, size, 0, "")], "VRAM")
two.nixl.register_memory([(far.address, size, 1, "")], "VRAM")
one.know(two.nixl.get_agent_metadata())

def move(op, here, kind):
    local = one.nixl.get_xfer_descs([(here.address + at, 4096, 0) for at in range(0, size, 8192)], kind)
    remote = one.nixl.get_xfer_descs([(far.address + at, 4096, 1) for at in range(0, size, 8192)], "VRAM")
    assert one.finish(one.nixl.initialize_xfer(op, local, remote, "two")) == "DONE"

def mixed(first, second):
    return (bytes([first]) * 4096 + bytes([second]) * 4096) * (size // 8192)

move("WRITE", near, "VRAM")
assert far.bytes() == mixed(1, 2)
move("WRITE", host, "DRAM")
assert far.bytes() == mixed(3, 2)
move("READ", near, "VRAM")
assert near.bytes() == mixed(3, 1)
print("good")
"""


@pytest.mark.skipif(not STUB.exists(), reason="the stub is not there")
def test_memory_of_gpus_goes_to_that_of_others_and_of_the_host(tmp_path):
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(STUB), "-lpthread"]
    subprocess.run(command, check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    here = str(Path(__file__).parent)
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, cwd=here, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and "good" in ran.stdout, ran.stdout + ran.stderr


def test_memory_of_gpus_is_not_offered_where_there_is_no_driver(agent):
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is one here")
    assert "VRAM" not in str(agent().nixl.get_backend_mem_types("POLYRAIL"))
