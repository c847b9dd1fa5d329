"""The back end POLYRAIL for NIXL's wheel.

    import os, polyrail.nixl
    os.environ["NIXL_PLUGIN_DIR"] = polyrail.nixl.plugin_dir()

    from nixl._api import nixl_agent, nixl_agent_config
    agent = nixl_agent("me", nixl_agent_config(backends=["POLYRAIL"]))

`python -m polyrail.nixl` checks the installation, and `python -m polyrail.nixl --plugin-dir` prints that folder, for the
environment of a program that is not to be changed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

__all__ = ["PLUGIN", "plugin_dir"]

#: The back end's library.
PLUGIN = Path(os.environ.get("POLYRAIL_NIXL_PLUGIN") or Path(__file__).parent / "libplugin_POLYRAIL.so")

_WHEELS = ("nixl-cu13", "nixl-cu12")


@dataclass(frozen=True)
class _Wheel:
    """A wheel of NIXL that is installed."""

    name: str
    version: str
    #: The folder that it is installed in.
    site: Path

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    @property
    def libraries(self) -> Path:
        return self.site / f".{self.module}.mesonpy.libs"


def _missing() -> str:
    return (
        f"{PLUGIN} is not there: this package was built without it; in the source, run "
        "`ffi/nixl/build ffi/python/python/polyrail`, and install the package again"
    )


def _wheels() -> list[_Wheel]:
    found = []
    for name in _WHEELS:
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        wheel = _Wheel(name, distribution.version, Path(str(distribution.locate_file(""))).resolve())
        if wheel.libraries.is_dir():
            found.append(wheel)
    return found


def _link(link: Path, target: Path) -> None:
    """Makes a symbolic link, in the place of one that leads elsewhere. Others may do the same at the same time."""
    if link.is_symlink() and link.readlink() == target:
        return
    made = Path(tempfile.mktemp(prefix=".new-", dir=link.parent))
    made.symlink_to(target)
    made.replace(link)


def plugin_dir(folder: str | os.PathLike[str] | None = None) -> str:
    """Makes a folder with the plug-ins of the wheel of NIXL that is installed, and ours: what `NIXL_PLUGIN_DIR` has to be
    before NIXL is imported, because NIXL then looks nowhere else. Returns its name.

    It is made of links in `folder`; None: in the user's folder for caches, or, where nothing can be written, in a temporary
    one. A wheel's plug-ins find their libraries by the places that these have beside each other, so there are links to them
    too. With both wheels installed the plug-ins are those of `nixl-cu13`, which the package `nixl` prefers where it can;
    `POLYRAIL_NIXL_WHEEL` says another one.

    Raises `FileNotFoundError` if no wheel of NIXL is there, or this package has no plug-in.
    """
    wheels = _wheels()
    wanted = os.environ.get("POLYRAIL_NIXL_WHEEL")
    wheel = next((one for one in wheels if wanted in (None, one.name)), None)
    if wheel is None:
        names = wanted or " or ".join(_WHEELS)
        raise FileNotFoundError(f"{names} is not installed beside {sys.executable}")
    if not PLUGIN.is_file():
        raise FileNotFoundError(_missing())
    if folder is None:
        folder = _cache() / f"{wheel.name}-{wheel.version}-{zlib.crc32(str(wheel.site).encode()):08x}"
    root = Path(folder).resolve()
    libraries = root / wheel.libraries.name
    plugins = libraries / "plugins"
    plugins.mkdir(parents=True, exist_ok=True)
    _link(root / f"{wheel.module}.libs", wheel.site / f"{wheel.module}.libs")
    for source, at in ((wheel.libraries, libraries), (wheel.libraries / "plugins", plugins)):
        for file in source.iterdir():
            if not file.is_dir():
                _link(at / file.name, file)
    _link(plugins / PLUGIN.name, PLUGIN.resolve())
    return str(plugins)


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(home) / "polyrail" / "nixl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="polyrail-nixl-"))


#: Moves bytes from one agent to another one of a process, as a program of NIXL's does.
_TRIAL = """
import ctypes, importlib, sys, time
api = importlib.import_module(sys.argv[1] + "._api")
agents = [api.nixl_agent(name, api.nixl_agent_config(backends=["POLYRAIL"])) for name in ("one", "two")]
if any("POLYRAIL" not in agent.backends for agent in agents):
    sys.exit("NIXL does not have the back end POLYRAIL")
memory = [ctypes.create_string_buffer(byte * 65536, 65536) for byte in (b"1", b"2")]
places = [(ctypes.addressof(one), 65536, 0) for one in memory]
for agent, place in zip(agents, places):
    agent.register_memory([(*place, "")], "DRAM")
one, two = agents
one.add_remote_agent(two.get_agent_metadata())
descriptors = [one.get_xfer_descs([place], "DRAM") for place in places]
handle = one.initialize_xfer("WRITE", *descriptors, "two", b"done")
state, end = one.transfer(handle), time.monotonic() + 5
while state == "PROC" and time.monotonic() < end:
    state = one.check_xfer_state(handle)
while not two.check_remote_xfer_done("one", b"done") and time.monotonic() < end:
    pass
if state != "DONE" or memory[1].raw != memory[0].raw:
    sys.exit(f"64 KiB from one agent to another: {state}, and the bytes are not there")
print("64 KiB from one agent to another: they are there")
"""


def _check() -> bool:
    """Says what is there and what is wrong."""
    if not PLUGIN.is_file():
        print(f"wrong: {_missing()}")
        return False
    print(f"plug-in: {PLUGIN}")
    wheels = _wheels()
    if not wheels:
        print(f"wrong: neither {' nor '.join(_WHEELS)} is installed beside {sys.executable}")
        return False
    good = True
    for wheel in wheels:
        folder = tempfile.TemporaryDirectory(prefix="polyrail-nixl-")
        with folder as name:
            environment = dict(os.environ, POLYRAIL_NIXL_WHEEL=wheel.name)
            found = [sys.executable, "-c", _DIRECTORY, __file__, name]
            plugins = subprocess.run(found, env=environment, capture_output=True, text=True, check=True).stdout.strip()
            environment["NIXL_PLUGIN_DIR"] = plugins
            trial = [sys.executable, "-c", _TRIAL, wheel.module]
            ran = subprocess.run(trial, env=environment, capture_output=True, text=True, timeout=120)
        words = [line for line in (ran.stdout + ran.stderr).splitlines() if line]
        ours = [line for line in words if line.startswith("POLYRAIL:")] or words[-1:]
        print(f"{wheel.name} {wheel.version}: {'good' if ran.returncode == 0 else 'wrong'}")
        for line in ours:
            print(f"    {line}")
        good = good and ran.returncode == 0
    set_to = os.environ.get("NIXL_PLUGIN_DIR")
    if set_to and not (Path(set_to) / PLUGIN.name).exists():
        print(f"wrong: NIXL_PLUGIN_DIR is {set_to}, where {PLUGIN.name} is not")
        good = False
    elif not set_to:
        print("NIXL_PLUGIN_DIR is not set here: NIXL finds the plug-in only where it is what --plugin-dir prints")
    return good


_DIRECTORY = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("polyrail_nixl", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["polyrail_nixl"] = module
spec.loader.exec_module(module)
print(module.plugin_dir(sys.argv[2]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m polyrail.nixl", description="The back end POLYRAIL for NIXL's wheel.")
    parser.add_argument("--plugin-dir", action="store_true", help="print what NIXL_PLUGIN_DIR has to be, and nothing else")
    if parser.parse_args().plugin_dir:
        try:
            print(plugin_dir())
        except FileNotFoundError as error:
            sys.exit(str(error))
        return
    sys.exit(0 if _check() else 1)


if __name__ == "__main__":
    main()
