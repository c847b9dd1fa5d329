"""A target: offers `mem`, and does what it is told on its standard input."""

import sys
import zlib

import numpy

import polyrail

size, memory, port = int(sys.argv[1]), sys.argv[2], sys.argv[3]
engine = polyrail.Engine(name="target", listen=f"127.0.0.1:{port}")
if memory == "allocated":
    bytes_of_it = memoryview(engine.allocate(size, "mem"))
else:
    bytes_of_it = memoryview(numpy.zeros(size, numpy.uint8))
    engine.register(bytes_of_it, name="mem", access="read" if memory == "read" else "read-write")
notifications = engine.notifications()
print(engine.listening, flush=True)

for line in sys.stdin:
    match line.split():
        case ["crc", offset, length]:
            print(zlib.crc32(bytes_of_it[int(offset) :][: int(length)]), flush=True)
        case ["fill", value]:
            bytes_of_it[:] = bytes([int(value)]) * size
            print("filled", flush=True)
        case ["notification"]:
            notification = notifications.get(timeout=30)
            print(notification.sender, notification.data.decode(), flush=True)
        case ["arrivals", tag, count]:
            print(engine.wait_arrivals(int(tag), int(count), timeout=30), flush=True)
        case ["write", address, tag]:
            remote = engine.open(address)
            engine.write(engine.allocate(remote.nbytes), remote, arrival=int(tag)).wait(30)
            print("written", flush=True)
        case ["tell", address, text]:
            print(engine.notify(engine.open(address), text.encode()).wait(30), flush=True)
        case ["close"]:
            engine.close()
            print("closed", flush=True)
