"""What the pages say, done: every block of Python, in the order in which it is read."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import run

HERE = Path(__file__).parent
PAGE = HERE / "../../../docs/python.md"


def blocks(path: Path) -> list[str]:
    found = re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)
    assert found, path
    return found


def test_the_readme_is_right():
    for block in blocks(HERE / "../README.md"):
        ended = run(block)
        assert ended.returncode == 0, ended


def test_the_guide_is_right():
    target_py, *rest = blocks(PAGE)
    listen = 'listen="10.1.0.1:7000", insecure=True'
    assert target_py.startswith("# target.py") and listen in target_py
    target_py = target_py.replace(listen, 'listen="127.0.0.1:0"')
    target = subprocess.Popen([sys.executable, "-c", target_py], stdout=subprocess.PIPE, text=True)
    try:
        word, address = target.stdout.readline().split()
        assert word == "listening"
        assert rest[0].startswith("# initiator.py") and "10.1.0.1:7000" in rest[0]
        text = "\n".join(rest).replace("10.1.0.1:7000", address)
        ended = run(text)
        assert ended.returncode == 0, ended
        assert ended.stdout.startswith("Summary(status=Completed, requests=1,") and "it is in use" in ended.stdout
        assert target.stdout.readline() == "prefill says b'layer 0 is there'\n"
    finally:
        target.kill()
        target.wait()
        target.stdout.close()


@pytest.mark.parametrize("word", ["Failed", "Cancelled", "PeerLost", "Indeterminate", "Full", "TimedOut", "InUse", "Forked", "Closed"])
def test_the_guide_has_every_exception(word):
    assert f"`{word}`" in PAGE.read_text()
