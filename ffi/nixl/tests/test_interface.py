"""The places that interface.hpp gives to things are those of the wheel that is installed."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from partner import MODULE

PLUGIN = Path(os.environ["NIXL_PLUGIN_DIR"]) / "libplugin_POLYRAIL.so"
SITE = Path(importlib.util.find_spec(MODULE).origin).parent.parent
HEADER = Path(__file__).parent.parent / "interface.hpp"

#: What NIXL calls the virtual functions of interface.hpp.
NAMES = {
    "supports_remote": "supportsRemote",
    "supports_local": "supportsLocal",
    "supports_notifications": "supportsNotif",
    "memories": "getSupportedMems",
    "register_memory": "registerMem",
    "deregister_memory": "deregisterMem",
    "connect": "connect",
    "disconnect": "disconnect",
    "unload": "unloadMD",
    "prepare": "prepXfer",
    "post": "postXfer",
    "check": "checkXfer",
    "release": "releaseReqH",
    "view_of_remote": "prepMemView",
    "view_of_local": "prepMemView",
    "release_view": "releaseMemView",
    "public_data": "getPublicData",
    "connection_info": "getConnInfo",
    "load_connection_info": "loadRemoteConnInfo",
    "load_remote": "loadRemoteMD",
    "load_local": "loadLocalMD",
    "take_notifications": "getNotifs",
    "notify": "genNotif",
    "query": "queryMem",
    "estimate": "estimateXferCost",
}


def lines(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def virtual_functions(library, type_name):
    """What a table of virtual functions holds, by its relocations: mangled names in their order."""
    rows = [line.split() for line in lines("readelf", "-W", "--dyn-syms", str(library))]
    rows = [row for row in rows if len(row) > 7 and row[0][:-1].isdigit()]
    names = {int(row[1], 16): row[7].split("@")[0] for row in rows if row[6] != "UND" and row[3] == "FUNC"}
    (table,) = [row for row in rows if row[7].split("@")[0] == f"_ZTV{len(type_name)}{type_name}"]
    first, size = int(table[1], 16), int(table[2], 0)
    found = {}
    for line in lines("readelf", "-W", "-r", str(library)):
        row = line.split()
        if len(row) > 3 and re.fullmatch(r"[0-9a-f]{12,16}", row[0]) and first <= int(row[0], 16) < first + size:
            found[int(row[0], 16)] = names.get(int(row[3], 16)) if row[2].endswith("RELATIVE") else row[4].split("@")[0]
    # The first two words are the offset to the top and the type.
    return [found[at] for at in sorted(found)][1:]


def test_virtual_functions_are_in_the_order_of_the_wheels_own_back_end():
    text = HEADER.read_text()
    body = text[text.index("class Engine {") :]
    ours = re.findall(r"virtual \w+ (\w+)\(", body)
    assert set(ours) == set(NAMES)
    theirs = virtual_functions(SITE / f".{MODULE}.mesonpy.libs/plugins/libplugin_UCX.so", "nixlUcxEngine")
    # Two destructors come first.
    for place, name in enumerate(ours, 2):
        assert f"{len(NAMES[name])}{NAMES[name]}E" in theirs[place], (place, name, theirs[place])


def test_it_links_nothing_of_nixl_and_shows_only_what_nixl_looks_for():
    needed = [line.split("[")[1][:-1] for line in lines("readelf", "-d", str(PLUGIN)) if "NEEDED" in line]
    assert not [one for one in needed if not re.match(r"lib(stdc\+\+|gcc_s|c|m|dl|pthread)\.so|ld-linux", one)]
    shown = [line.split()[-1] for line in lines("nm", "-D", "--defined-only", str(PLUGIN))]
    assert sorted(shown) == ["nixl_plugin_fini", "nixl_plugin_init"]


def run(program, **environment):
    environment = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)


LOADED = f"""
import importlib
api = importlib.import_module("{MODULE}._api")
agent = api.nixl_agent("one", api.nixl_agent_config(backends=["POLYRAIL"]))
raise SystemExit("POLYRAIL" not in agent.backends)
"""


def copy_of(tmp_path, version):
    """The wheel as if it were of another version: links to its files, and other words about it."""
    for entry in SITE.iterdir():
        if entry.name.startswith((MODULE, f".{MODULE}")) and "dist-info" not in entry.name:
            # libnixl.so is looked up by where it really lies, so it is copied.
            subprocess.run(["cp", "-r", str(entry), str(tmp_path / entry.name)], check=True)
    if version is not None:
        (tmp_path / f"{MODULE}-{version}.dist-info").mkdir()
    return str(tmp_path)


@pytest.mark.parametrize("version", ["0.10.1", "9.9.9"])
def test_it_refuses_to_load_beside_a_version_that_was_not_tried(tmp_path, version):
    path = os.pathsep.join([copy_of(tmp_path, version), os.environ.get("PYTHONPATH", "")])
    ran = run(LOADED, PYTHONPATH=path)
    assert ran.returncode != 0
    assert f"POLYRAIL: not loaded: it has not been tried with NIXL {version}, only with 1." in ran.stderr, ran.stderr


def test_the_version_of_a_build_of_ones_own_can_be_said(tmp_path):
    path = os.pathsep.join([copy_of(tmp_path, None), os.environ.get("PYTHONPATH", "")])
    ran = run(LOADED, PYTHONPATH=path)
    assert ran.returncode != 0 and "say so in POLYRAIL_NIXL_VERSION" in ran.stderr
    assert run(LOADED, PYTHONPATH=path, POLYRAIL_NIXL_VERSION="0.9.0").returncode != 0
    (own,) = [one.name for one in SITE.glob(f"{MODULE}-*.dist-info")]
    good = run(LOADED, PYTHONPATH=path, POLYRAIL_NIXL_VERSION=own.split("-")[1].removesuffix(".dist"))
    assert good.returncode == 0, good.stderr
