"""Targets in processes of their own, and memory to move."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import numpy
import pytest

import polyrail

HERE = Path(__file__).parent
# A wait that takes longer has gone wrong.
LONG = 30


class Target:
    """A process with an engine that offers `mem`; see `target.py`."""

    def __init__(self, *, size: int = 1 << 20, memory: str = "registered", port: int = 0) -> None:
        command = [sys.executable, str(HERE / "target.py"), str(size), memory, str(port)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the target has ended"
        return line.rstrip("\n")

    def ask(self, *words: object) -> str:
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)
        return self.line()

    def crc(self, offset: int, length: int) -> int:
        """Of its memory, as the target itself sees it."""
        return int(self.ask("crc", offset, length))

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def targets():
    """Makes targets, and ends them."""
    made: list[Target] = []

    def make(**terms):
        made.append(Target(**terms))
        return made[-1]

    yield make
    for target in made:
        target.close()


@pytest.fixture
def target(targets):
    return targets()


@pytest.fixture
def engine():
    with polyrail.Engine(name="initiator") as engine:
        yield engine


def pattern(size: int, seed: int = 1) -> numpy.ndarray:
    """Bytes that are not those of any other seed."""
    return numpy.random.default_rng(seed).integers(0, 256, size, dtype=numpy.uint8)


def crc(memory) -> int:
    return zlib.crc32(memory)


class Tensor:
    """One that speaks DLPack only, as PyTorch's on the host do."""

    def __init__(self, values: numpy.ndarray, versioned: bool = True) -> None:
        self.values, self.versioned = values, versioned

    def __dlpack__(self, **asked):
        if not self.versioned and "max_version" in asked:
            raise TypeError("max_version is not known here")
        return self.values.__dlpack__(**asked)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


def run(text: str, *, timeout: float = 60, **more) -> subprocess.CompletedProcess[str]:
    """Runs a program in an interpreter of its own."""
    command = [sys.executable, "-c", text]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **more)
