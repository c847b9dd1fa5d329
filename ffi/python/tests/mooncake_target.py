"""A process with `TransferEngine` as callers of Mooncake use it: `mooncake_target.py HOST SIZE`. It says its session and the address of
its memory, and then does what lines of its input say."""

import ctypes
import mmap
import sys
import zlib

from polyrail.mooncake import TransferEngine, TransferNotify, TransferOpcode

host, size = sys.argv[1], int(sys.argv[2])
engine = TransferEngine()
assert engine.initialize(host, "P2PHANDSHAKE", "tcp", "") == 0
memory = mmap.mmap(-1, size)
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
assert engine.register_memory(base, size) == 0
bracketed = f"[{host}]" if ":" in host else host
print(f"{bracketed}:{engine.get_rpc_port()}", base, flush=True)
for line in sys.stdin:
    match line.split():
        case ["crc", offset, length]:
            print(zlib.crc32(memory[int(offset) : int(offset) + int(length)]), flush=True)
        case ["count", value]:
            print(memory[:].count(bytes([int(value)])), flush=True)
        case ["fill", value]:
            memory[:] = bytes([int(value)]) * size
            print("filled", flush=True)
        case ["register", offset, length]:
            print(engine.register_memory(base + int(offset), int(length)), flush=True)
        case ["unregister", offset]:
            print(engine.unregister_memory(base + int(offset)), flush=True)
        case ["notify", session, address]:
            notify = TransferNotify("from", "the target")
            print(engine.transfer_sync(session, base, int(address), 64, TransferOpcode.Write, notify), flush=True)
