"""Brings the engine's log to `logging`, under the logger `polyrail`."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import traceback

from polyrail import _native

_thread: threading.Thread | None = None


def start() -> None:
    """Begins, if that has not begun, and looks which levels are asked for."""
    global _thread
    _native.log_to_queue(logging.getLogger("polyrail").getEffectiveLevel())
    if _thread is None:
        _thread = threading.Thread(target=_run, name="polyrail-log", daemon=True)
        _thread.start()


def _run() -> None:
    while (line := _native.next_record()) is not None:
        level, name, text = line
        try:
            logging.getLogger(name).log(level, "%s", text)
        except Exception:
            # A handler's own. The next line may be well.
            traceback.print_exc()


def _forked() -> None:
    global _thread
    _thread = None
    _native.forget_log()


def _end() -> None:
    _native.close_all()
    if _thread is not None:
        _native.end_log()
        # A handler may hang; the interpreter ends all the same.
        _thread.join(timeout=2)


os.register_at_fork(after_in_child=_forked)
atexit.register(_end)
