"""What the peers' scripts share: cells, the timing loop of src/measure.rs, and a target process."""
import ctypes
import mmap
import json
import os
import subprocess
import sys
import time

GAP_BYTES = 4 << 10
BUFFER_BYTES = 72 << 20
WARM_UP = 0.06
SAMPLES_MIN = 3


class Buffer:
    """Private anonymous memory, every page touched."""

    def __init__(self, fill):
        self.bytes = BUFFER_BYTES
        self.map = mmap.mmap(-1, self.bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        ctypes.memset(self.base, fill, self.bytes)


def offsets(base, block, batch):
    return [base + i * (block + GAP_BYTES) for i in range(batch)]


def say(answer):
    sys.stdout.write("@@ " + json.dumps(answer) + "\n")
    sys.stdout.flush()


class Target:
    """The script again with --target, in a process of its own; its first line says how it is reached."""

    def __init__(self, script):
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(script), "--target"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if line.startswith("@@ "):
                self.hello = json.loads(line[3:])
                return
        raise RuntimeError("the target ended before it was ready")


def serve(hello):
    """The target's part: there until the initiator is gone."""
    say(hello)
    sys.stdin.read()
    os._exit(0)


def cpu_of(pid):
    """Processor seconds of a process: its clock, as clock_getcpuclockid(3) makes it."""
    return time.clock_gettime((~pid << 3) | 2)


def busy_seconds():
    ticks = [int(word) for word in open("/proc/stat").readline().split()[1:8]]
    return (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6]) / 100.0


def measure(once, block, batch, seconds, target_pid):
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_UP:
        once()
    own, far, busy = time.process_time(), cpu_of(target_pid), busy_seconds()
    samples = []
    start = last = time.perf_counter_ns()
    while True:
        once()
        now = time.perf_counter_ns()
        samples.append(now - last)
        last = now
        if now - start >= seconds * 1e9 and len(samples) >= SAMPLES_MIN:
            break
    spent = (last - start) / 1e9
    own, far = time.process_time() - own, cpu_of(target_pid) - far
    others = busy_seconds() - busy - own - far
    samples.sort()

    def percentile(part):
        return samples[min(len(samples) - 1, int(len(samples) * part))] / 1e3
    gbytes = block * batch * len(samples) / 1e9
    return {
        "seconds": spent, "batches": len(samples), "gbytes_per_sec": gbytes / spent,
        "p50_us": percentile(0.5), "p99_us": percentile(0.99),
        "cpu_seconds_per_gbyte": (own + far) / gbytes,
        "others": max(0.0, others / (spent * os.cpu_count())),
    }


def answer_cells(prepare, target):
    """Answers `write|read BYTES COUNT MILLISECONDS`; prepare(op, block, batch) gives what moves a batch."""
    say({"ready": True})
    for line in sys.stdin:
        try:
            op, block, batch, millis = line.split()
            block, batch = int(block), int(batch)
            once, done = prepare(op, block, batch)
            answer = measure(once, block, batch, int(millis) / 1e3, target.process.pid)
            done()
        except Exception as error:
            answer = {"error": repr(error)}
        say(answer)
    os._exit(0)
