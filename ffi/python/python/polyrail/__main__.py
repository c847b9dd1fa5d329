"""The program `polyrail`: `python -m polyrail --help`."""

from __future__ import annotations

import signal
import sys

from polyrail import _native


def main() -> None:
    # The program ends by signals as it always does.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    arguments = ["polyrail", *sys.argv[1:]]
    sys.exit(_native.run_program(arguments, [sys.executable, "-m", "polyrail"]))


if __name__ == "__main__":
    main()
