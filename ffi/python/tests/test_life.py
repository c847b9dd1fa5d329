"""How the interpreter begins, forks, logs and ends around engines."""

import logging
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import LONG, run

import polyrail

# Two engines of one process that have moved bytes.
BEGIN = """
import os, sys, threading, time
import polyrail
target = polyrail.Engine(name="target", listen="127.0.0.1:0")
mem = target.allocate(1 << 20, "mem")
engine = polyrail.Engine(name="initiator")
local = engine.register(bytearray(1 << 20))
remote = engine.open(f"{target.listening}/mem")
engine.write(local, remote).wait(30)
"""


def finishes(text: str, **more) -> str:
    """What a program says that ends well, and says nothing else."""
    ended = run(BEGIN + text, **more)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    return ended.stdout


ENDINGS = {
    "nothing is closed": "",
    "some of it has gone": "del engine, target",
    "a batch is under way": "kept = [engine.write(local, remote) for _ in range(100)]",
    "views are left": "view = memoryview(mem)",
    "a daemon waits for notifications": """
waiting = threading.Thread(target=lambda: list(target.notifications()), daemon=True)
waiting.start()
""",
    "a daemon submits": """
def submit():
    try:
        while True:
            engine.write(local, remote, 64).wait()
    except polyrail.Closed:
        pass
threading.Thread(target=submit, daemon=True).start()
time.sleep(0.01)
""",
    "a thread submits a little longer than the program": """
def submit():
    for _ in range(1000):
        engine.write(local, remote, 64).wait()
threading.Thread(target=submit).start()
""",
    "a cycle holds the engine": "cycle = [engine]; cycle.append(cycle)",
    "sys.exit in a function": "(lambda: sys.exit(0))()",
}


@pytest.mark.parametrize("text", ENDINGS.values(), ids=ENDINGS.keys())
def test_the_interpreter_ends_with_engines_alive(text):
    start = time.monotonic()
    assert finishes(text) == ""
    assert time.monotonic() - start < 10


def test_it_ends_while_a_daemon_waits_for_a_stopped_peer(target):
    text = f"""
import threading
import polyrail
engine = polyrail.Engine(name="initiator")
local, remote = engine.register(bytearray(1 << 20)), engine.open("{target.address}/mem")
print("opened", flush=True)
input()
batch = engine.write(local, remote)
waiting = threading.Thread(target=batch.wait_released, daemon=True)
waiting.start()
"""
    command = [sys.executable, "-c", text]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout.readline() == "opened\n"
        target.stop()
        print(file=process.stdin, flush=True)
        assert process.wait(LONG) == 0


def test_a_forked_child_is_told_so_and_may_have_its_own(target):
    text = f"""
import warnings
warnings.simplefilter("ignore")  # Python 3.12 and later would rather not fork beside threads.
batch, prepared = engine.write(local, remote), engine.prepare("write", local, remote)
rows = [polyrail.Blocks(segment, rows=1, stride=64) for segment in (local, remote)]
paged = polyrail.PagedRequest("write", *rows, 64)
inbox, delivery = target.notifications(), engine.notify(remote, b"x")
uses = {{
    "write": lambda: engine.write(local, remote),
    "read": lambda: engine.read(local, remote),
    "register": lambda: engine.register(bytearray(1)),
    "allocate": lambda: engine.allocate(1),
    "open": lambda: engine.open("{target.address}/mem"),
    "file": lambda: engine.file("/proc/self/exe", read_only=True),
    "notify": lambda: engine.notify(remote, b"x"),
    "stats": engine.stats,
    "held": engine.held,
    "declare_lost": lambda: engine.declare_lost("{target.address}"),
    "prepare": lambda: engine.prepare("write", local, remote),
    "submit_paged": lambda: engine.submit_paged([paged]),
    "prepare_paged": lambda: engine.prepare_paged([paged]),
    "arrivals": lambda: engine.arrivals(1),
    "wait_arrivals": lambda: engine.wait_arrivals(1),
    "forget_arrivals": lambda: engine.forget_arrivals(1),
    "arrived": lambda: engine.arrived(1).send(None),
    "post": prepared.post,
    "wait": batch.wait,
    "wait_released": batch.wait_released,
    "get": inbox.get,
    "poll": inbox.poll,
    "delivery": delivery.wait,
    "unregister": local.close,
}}
child = os.fork()
if child == 0:
    for name, use in uses.items():
        try:
            use()
        except polyrail.Forked as error:
            assert "forked from" in str(error)
        else:
            print(name, "did not say Forked")
    batch.cancel()
    engine.close()
    with polyrail.Engine(name="child") as own:
        own.write(own.register(bytearray(4096)), own.open("{target.address}/mem"), 4096).wait(30)
    print("the child is well", flush=True)
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
engine.write(local, remote).wait(30)
print("so is its parent")
"""
    assert finishes(text) == "the child is well\nso is its parent\n"


def test_processes_of_multiprocessing_may_be_forked_and_spawned():
    text = """
import multiprocessing
def child(address):
    with polyrail.Engine(name="child") as own:
        own.write(own.register(bytearray(4096)), own.open(address), 4096).wait(30)
children = [multiprocessing.get_context("fork").Process(target=child, args=(f"{target.listening}/mem",)) for _ in range(4)]
for process in children:
    process.start()
for process in children:
    process.join()
print([process.exitcode for process in children])
"""
    assert finishes(text) == "[0, 0, 0, 0]\n"


def test_a_subinterpreter_is_refused_in_words():
    text = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
if {first}:
    import polyrail
interpreter = interpreters.create()
said = interpreters.run_string(interpreter, "try:\\n import polyrail\\nexcept ImportError as e: print(e, flush=True)")
assert said is None, said
"""
    for first in (True, False):
        ended = run(text.format(first=first))
        assert ended.returncode == 0, ended
        assert "main interpreter" in ended.stdout or "subinterpreters" in ended.stdout, ended


def test_log_lines_come_to_logging_under_names(target, caplog):
    with caplog.at_level(logging.INFO, "polyrail"):
        engine = polyrail.Engine(name="initiator")
        local, remote = engine.register(bytearray(1 << 20)), engine.open(f"{target.address}/mem")
        engine.write(local, remote).wait(LONG)
        target.kill()
        with pytest.raises(polyrail.PeerLost):
            engine.write(local, remote).wait(LONG)
        end = time.monotonic() + LONG
        while not any(record.levelno == logging.WARNING for record in caplog.records) and time.monotonic() < end:
            time.sleep(0.001)
        engine.close()
    assert any(record.name.startswith("polyrail.control.") for record in caplog.records), caplog.text
    assert all(record.name.split(".")[0] == "polyrail" for record in caplog.records)
    caplog.clear()
    with caplog.at_level(logging.ERROR, "polyrail"), polyrail.Engine(name="quiet"):
        pass
    assert caplog.records == []


def test_a_handler_that_uses_the_engine_holds_up_nothing(target):
    text = f"""
import logging
class Handler(logging.Handler):
    def emit(self, record):
        if not engine.closed:
            engine.stats()
            engine.write(local, remote, 64).wait(30)
            lines.append(record)
lines = []
logging.getLogger("polyrail").setLevel(logging.DEBUG)
logging.getLogger("polyrail").addHandler(Handler())
logging.getLogger("polyrail").propagate = False
other = polyrail.Engine(name="other")
other.open("{target.address}/mem")
other.close()
while not lines:
    time.sleep(0.001)
logging.getLogger("polyrail").setLevel(logging.ERROR)
"""
    assert finishes(text) == ""


def test_a_handler_that_raises_takes_no_line_from_others(target):
    text = f"""
import logging
class Handler(logging.Handler):
    def emit(self, record):
        lines.append(record)
        raise RuntimeError("of the handler")
lines = []
logging.getLogger("polyrail").setLevel(logging.DEBUG)
logging.getLogger("polyrail").addHandler(Handler())
other = polyrail.Engine(name="other")
other.open("{target.address}/mem")
while len(lines) < 2:
    time.sleep(0.001)
"""
    ended = run(BEGIN + text)
    assert ended.returncode == 0 and ended.stderr.count("RuntimeError: of the handler") >= 2, ended


def test_the_wheel_brings_the_program(tmp_path):
    program = os.path.join(os.path.dirname(sys.executable), "polyrail")
    for command in ([program], [sys.executable, "-m", "polyrail"]):
        # (arguments, exit code, words)
        cases = [
            (["--version"], 0, f"polyrail {polyrail.__version__}"),
            (["topo"], 0, "transports"),
            (["--none"], 2, "--none"),
            (["check-config", str(tmp_path / "none.json")], 2, "none.json"),
            # It starts a target of its own, the same way.
            (["bench", "--seconds", "0.2", "--block", "4KiB", "--verify", "--json"], 0, '"failed_requests":0'),
        ]
        for arguments, code, words in cases:
            ended = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)
            assert ended.returncode == code and words in ended.stdout + ended.stderr, ended
    serving = subprocess.Popen([*command, "serve", "--memory", "1MiB"], stdout=subprocess.PIPE, text=True)
    word, address, _ = serving.stdout.readline().split()
    assert word == "listening"
    with polyrail.Engine() as engine:
        engine.write(engine.register(bytearray(1 << 20)), engine.open(f"{address}/mem")).wait(LONG)
    serving.send_signal(signal.SIGINT)
    assert serving.wait(LONG) == 0
    serving.stdout.close()


def test_nothing_grows_over_many_transfers(engine, target):
    local, remote = engine.register(bytearray(1 << 20)), engine.open(f"{target.address}/mem")
    scratch = bytearray(4096)

    def measure():
        with open("/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return resident, len(os.listdir("/proc/self/fd"))

    def move(count: int):
        for index in range(count):
            engine.write(local, remote, 64, local_offset=index % 1000, notify=b"n" if index % 100 == 0 else None).wait(LONG)
            if index % 100 == 0:
                with engine.register(scratch) as memory:
                    engine.read(memory, remote, 4096).wait(LONG)
                assert target.ask("notification") == "initiator n"

    move(20_000)
    resident, descriptors = measure()
    move(100_000)
    after, descriptors_after = measure()
    assert after - resident < 1 << 20, f"{after - resident} bytes more"
    # What the first probe of a rail opens comes whenever that is, and once. What leaks would do so a thousand times at least.
    assert descriptors_after - descriptors < 10
