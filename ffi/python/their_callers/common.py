"""Both ends of a caller, each a process that runs the caller's own code and is told what to do line by line."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

HERE = Path(__file__).parent


class Memory:
    """Memory as a KV cache or a weight is: an address and a length."""

    def __init__(self, size, content=0):
        self.bytes = mmap.mmap(-1, size)
        self.bytes[:] = os.urandom(size) if content is None else bytes([content]) * size
        self.size = size
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))

    def crc(self, offset=0, length=None):
        return zlib.crc32(self.bytes[offset : self.size if length is None else offset + length])


def serve(answers):
    """Answers lines `NAME ARGUMENTS-IN-JSON` by functions of these names."""
    print("@ready", flush=True)
    for line in sys.stdin:
        name, _, arguments = line.partition(" ")
        print("@" + json.dumps(answers[name](*json.loads(arguments))), flush=True)


class End:
    """A process of `FILE ROLE`."""

    def __init__(self, file, role, **environment):
        command = [sys.executable, str(HERE / file), role]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        assert self._line() == "ready"

    def _line(self):
        while True:
            line = self.process.stdout.readline()
            assert line, "the process has ended"
            # What the caller prints itself is not for us.
            if line.startswith("@"):
                return line[1:].rstrip("\n")

    def __getattr__(self, name):
        def ask(*arguments):
            self.process.stdin.write(f"{name} {json.dumps(arguments)}\n")
            self.process.stdin.flush()
            return json.loads(self._line())

        return ask

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
