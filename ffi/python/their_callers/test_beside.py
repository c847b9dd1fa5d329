"""In one environment with Mooncake's own wheel: its store stays its own, and both engines run side by side."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent / "../examples"
NAMES = """
from mooncake.store import MooncakeDistributedStore
import mooncake, mooncake.engine, mooncake.store
print(mooncake.engine.TransferEngine.__module__, mooncake.store.__file__.endswith("mooncake/store.so"), MooncakeDistributedStore() is not None)
"""


def python(*arguments, asked, timeout=120):
    environment = {**os.environ, "POLYRAIL_AS_MOONCAKE": "1" if asked else "", "GLOG_minloglevel": "3"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)


def test_their_store_stays_theirs():
    assert python("-c", NAMES, asked=True).stdout == "polyrail.mooncake._engine True True\n"
    assert python("-c", NAMES, asked=False).stdout == "mooncake.engine True True\n"


def test_our_methods_are_theirs():
    """The surface that our tests have written down is what their wheel says of itself."""
    text = """
import re, sys
sys.path.insert(0, sys.argv[1])
from mooncake.engine import TransferEngine
assert TransferEngine.__module__ == "mooncake.engine"
from test_mooncake import SURFACE
theirs = {name for name in dir(TransferEngine) if not name.startswith("_")} - {"TransferOpcode"}
assert theirs == set(SURFACE), theirs ^ set(SURFACE)
for name, ours in SURFACE.items():
    said = getattr(TransferEngine, name).__doc__.splitlines()[0]
    words = re.findall(r"(\\w+): [^,()]*?(?: = ([^,()]+))?(?=[,)])", said[said.index("(") + 1 :].replace("list[int]", "list"))[1:]
    their = ", ".join(word + (f"={value}" if value else "") for word, value in words)
    count = len([one for one in ours.removeprefix("/").split(", ") if one])
    if ours.startswith("/"):
        assert len(words) == count and all(re.fullmatch(r"arg\\d", word) for word, _ in words), said
    else:
        assert their == ours, (said, their, ours)
print("the same", len(SURFACE))
"""
    ended = python("-c", text, str(Path(__file__).parent / "../tests"), asked=False)
    assert ended.stdout.startswith("the same"), ended


def test_side_by_side():
    ended = python(str(EXAMPLES / "beside_mooncake.py"), asked=False, timeout=240)
    assert ended.returncode == 0, ended
    print(ended.stdout)
