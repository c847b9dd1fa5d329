"""`import polyrail.as_mooncake` lets `import mooncake.engine` find `polyrail.mooncake`, in this process."""

from __future__ import annotations

import importlib
import logging
import sys

# Beside the package, where Python finds it at its start.
importlib.import_module("_polyrail_as_mooncake").install()

if (_theirs := sys.modules.get("mooncake.engine")) is not None and not hasattr(_theirs, "__polyrail__"):
    logging.getLogger("polyrail.mooncake").warning(
        "mooncake.engine was imported before polyrail.as_mooncake: what was taken from it stays Mooncake's"
    )
    del sys.modules["mooncake.engine"]
    importlib.import_module("mooncake.engine")
