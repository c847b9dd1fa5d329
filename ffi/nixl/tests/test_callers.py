"""Programs that move bytes through NIXL, run from their own wheels with POLYRAIL named as their options allow, between processes;
and what they see when the other one is killed. `NIXL_CALLERS` names the folder that the wheels are unpacked in
(`ffi/nixl/callers` does all of it); without it these are left out."""

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ports import free_port

pytestmark = pytest.mark.skipif("NIXL_CALLERS" not in os.environ, reason="NIXL_CALLERS is not set")
# The engine's bound, with a busy host's delay.
BOUND = 4


class Caller:
    def __init__(self, who, role):
        environment = {**os.environ, "SGLANG_DISAGGREGATION_NIXL_BACKEND": "POLYRAIL"}
        command = [sys.executable, str(Path(__file__).parent / "callers.py"), who, role]
        self.process = subprocess.Popen(command, stdin=-1, stdout=-1, env=environment)

    def hear(self, limit=30):
        assert select.select([self.process.stdout], [], [], limit)[0], f"no word in {limit} s"
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait()}"
        return json.loads(line)

    def say(self, what):
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def both():
    made = []

    def make(who, *roles):
        made.extend(Caller(who, role) for role in roles)
        return made

    yield make
    for one in made:
        one.kill()


def after_death(dying, other):
    """What the other one says within the bound, once this one is dead."""
    dying.kill()
    other.say("go on")
    start = time.monotonic()
    said = other.hear()
    assert time.monotonic() - start < BOUND
    return said


def test_lmcache_reads_from_a_peers_cache(both):
    source, target = both("lmcache", "source", "target")
    port = free_port()
    source.say(port)
    assert source.hear() == "ready"
    target.say(free_port())
    assert target.hear() == "ready"
    target.say(f"127.0.0.1:{port}")
    assert target.hear() == {"good": True, "blocks": list(range(63, -1, -1))}
    assert after_death(source, target) in ({"good": False}, {"raised": "nixlRemoteDisconnectError"})


def test_vllms_offloading_tier_writes_to_a_peer(both):
    target, source = both("vllm_tier", "target", "source")
    hello = target.hear()
    source.hear()
    source.say(hello)
    assert source.hear() == "done"
    target.say(list(range(150, 250)))
    assert target.hear() == list(range(100))
    assert "DISCONNECT" in after_death(target, source)


def test_vllms_connector_reads_blocks_and_tells_that_it_has_them(both):
    source, target = both("vllm_connector", "source", "target")
    hello = source.hear()
    target.hear()
    target.say(hello)
    assert target.hear() == {"done": ["request"], "failed": [], "blocks": list(range(63, -1, -1))}
    assert source.hear() == ["request"]
    said = after_death(source, target)
    assert said["failed"] == ["request"] or "Disconnect" in str(said["done"]), said


def test_sglangs_connection_writes_pages_and_tells_the_room(both):
    target, source = both("sglang", "target", "source")
    hello = target.hear()
    source.hear()
    source.say(hello)
    assert source.hear() == {"settled": True, "failed": False}
    assert target.hear() == {"told": "room_0_kv", "blocks": list(range(100))}
    target.say("aux")
    assert target.hear() == 7
    said = after_death(target, source)
    assert said.get("failed") or "Disconnect" in said.get("raised", "") or said.get("raised") == "_NixlPostError", said
