"""The examples, run as they are."""

import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

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
