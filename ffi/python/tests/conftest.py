"""Targets in processes of their own, and memory to move."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import signal
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy
import pytest

import polyrail

HERE = Path(__file__).parent
# A shell starts what is in the background without it.
signal.signal(signal.SIGINT, signal.default_int_handler)
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


class Step(ctypes.Structure):
    """One of a filter of system calls."""

    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint32)]


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.POINTER(Step))]


def forbid_writes() -> None:
    """Forbids this thread, and those that it starts, `process_vm_writev`, as a container may."""
    number = {"x86_64": 311, "aarch64": 271}[platform.machine()]
    load, equal, answer, refused, allowed = 0x20, 0x15, 0x06, 0x0005_0001, 0x7FFF_0000
    rows = [(load, 0, 0, 0), (equal, 0, 1, number), (answer, 0, 0, refused), (answer, 0, 0, allowed)]
    steps = (Step * len(rows))(*rows)
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, seccomp, mode_filter = 38, 22, 2
    for words in ((no_new_privileges, 1, 0, 0, 0), (seccomp, mode_filter, ctypes.byref(Filter(len(rows), steps)), 0, 0)):
        assert libc.prctl(*words) == 0, os.strerror(ctypes.get_errno())


def pulled(test):
    """Runs a test where this side may not write to memory of other processes: targets pull what is written to them."""

    @functools.wraps(test)
    def on_a_thread_of_its_own(*args, **kwargs):
        raised: list[BaseException] = []

        def body() -> None:
            try:
                forbid_writes()
                test(*args, **kwargs)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]

    return on_a_thread_of_its_own


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
