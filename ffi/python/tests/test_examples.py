"""The examples, run as they are."""

import os
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent / "../examples"


def test_a_kv_cache_goes_from_prefill_to_decode(tmp_path):
    chart = tmp_path / "chart.svg"
    command = [sys.executable, str(EXAMPLES / "kv_cache.py"), str(chart)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended
    assert ended.stdout.count("layers are there and right") == 3
    assert ended.stdout.endswith("no page of anybody else was touched\n")
    root = xml.etree.ElementTree.parse(chart).getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 3


def run_on_two_rails(name, chart):
    """It makes rails of its own, which not every system lets it."""
    allowed = subprocess.run(["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb"], capture_output=True)
    if allowed.returncode != 0 and not os.environ.get("CI"):
        pytest.skip(f"no rails can be made here: {allowed.stderr.decode()}")
    command = [sys.executable, str(EXAMPLES / name), str(chart)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended
    return ended.stdout, len(xml.etree.ElementTree.parse(chart).getroot().findall("{http://www.w3.org/2000/svg}polyline"))


def test_weights_reach_four_receivers_of_which_one_is_restarted(tmp_path):
    said, lines = run_on_two_rails("weights.py", tmp_path / "chart.svg")
    assert said.count("all 24 tensors are there and right") == 4 and said.count("after it was lost") == 1
    assert lines == 4


def test_a_rail_that_is_cut_is_left_and_used_again(tmp_path):
    said, lines = run_on_two_rails("rails_cut.py", tmp_path / "chart.svg")
    assert said.endswith("none failed\n") and lines == 2
