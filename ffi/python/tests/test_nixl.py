"""The back end for NIXL, as the wheel carries it. What it does is tested in ffi/nixl/tests."""

import os
import subprocess
import sys
from pathlib import Path

import polyrail.nixl
import pytest


def run(*arguments, **environment):
    environment = {**os.environ, **environment}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120)


def test_the_folder_of_plugins_has_the_wheels_own_and_ours(tmp_path):
    folder = Path(polyrail.nixl.plugin_dir(tmp_path))
    names = {one.name for one in folder.iterdir()}
    assert {"libplugin_POLYRAIL.so", "libplugin_UCX.so", "libplugin_POSIX.so"} <= names
    assert all(one.exists() for one in folder.iterdir())
    # Again: the same, also where a link leads elsewhere by now.
    (folder / "libplugin_POLYRAIL.so").unlink()
    (folder / "libplugin_POLYRAIL.so").symlink_to("/nowhere")
    assert polyrail.nixl.plugin_dir(tmp_path) == str(folder)
    assert (folder / "libplugin_POLYRAIL.so").exists()


def test_the_installation_is_checked():
    ran = run("-m", "polyrail.nixl")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "64 KiB from one agent to another: they are there" in ran.stdout
    folder = run("-m", "polyrail.nixl", "--plugin-dir").stdout.strip()
    assert (Path(folder) / "libplugin_POLYRAIL.so").exists()


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"POLYRAIL_NIXL_PLUGIN": "/nowhere/plugin.so"}, "/nowhere/plugin.so is not there"),
        ({"NIXL_PLUGIN_DIR": "/nowhere"}, "NIXL_PLUGIN_DIR is /nowhere, where libplugin_POLYRAIL.so is not"),
        ({"POLYRAIL_LISTEN": "0.0.0.0:0"}, "insecure"),
    ],
)
def test_what_is_wrong_is_said(environment, words):
    ran = run("-m", "polyrail.nixl", **environment)
    assert ran.returncode == 1 and words in ran.stdout, ran.stdout + ran.stderr


def test_without_nixl_it_says_so(tmp_path):
    # Nothing of the environment but this package.
    (tmp_path / "polyrail").symlink_to(Path(polyrail.__file__).parent)
    ran = run("-S", "-m", "polyrail.nixl", PYTHONPATH=str(tmp_path))
    assert ran.returncode == 1 and "neither nixl-cu13 nor nixl-cu12 is installed" in ran.stdout, ran.stdout + ran.stderr


BOTH = """
import os, polyrail, polyrail.nixl
os.environ["NIXL_PLUGIN_DIR"] = polyrail.nixl.plugin_dir()
from nixl_cu12._api import nixl_agent, nixl_agent_config

target = polyrail.Engine(name="target", listen="127.0.0.1:0")
theirs = bytearray(1 << 20)
target.register(theirs, name="mem")
engine = polyrail.Engine(name="initiator")
ours = bytearray(b"e" * (1 << 20))
local = engine.register(ours)
remote = engine.open(f"{target.listening}/mem")

import ctypes
agents = [nixl_agent(name, nixl_agent_config(backends=["POLYRAIL"])) for name in ("one", "two")]
memory = [ctypes.create_string_buffer(byte * (1 << 20), 1 << 20) for byte in (b"1", b"2")]
places = [(ctypes.addressof(one), 1 << 20, 0) for one in memory]
for agent, place in zip(agents, places):
    agent.register_memory([(*place, "")], "DRAM")
one, two = agents
one.add_remote_agent(two.get_agent_metadata())
handle = one.initialize_xfer("WRITE", *[one.get_xfer_descs([place], "DRAM") for place in places], "two")
for byte in range(1, 40):
    ctypes.memset(places[0][0], byte, 1 << 20)
    ours[:] = bytes([byte + 100]) * (1 << 20)
    batch = engine.write(local, remote)
    state = one.transfer(handle)
    batch.wait(timeout=10)
    while state == "PROC":
        state = one.check_xfer_state(handle)
    assert state == "DONE" and memory[1].raw == bytes([byte]) * (1 << 20)
    assert theirs == ours
del agents, one, two, agent
engine.write(local, remote).wait(timeout=10)
"""


def test_the_engine_of_the_package_and_that_of_the_back_end_do_not_disturb_each_other():
    ran = run("-c", BOTH)
    assert ran.returncode == 0, ran.stdout + ran.stderr
