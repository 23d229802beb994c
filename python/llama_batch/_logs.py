"""What llama.cpp logs, handed on to `logging` as `llama_batch.llama_cpp`. Quiet unless somebody configures it."""

from __future__ import annotations

import os
import threading

from llama_batch import _core

PERIOD_S = 1.0

_started = threading.Lock()


def start_draining() -> None:
    """Hand on lines from now on, on one daemon thread of this process. llama.cpp's own threads never wait for it."""
    if _core.has_llama() and _started.acquire(blocking=False):
        import logging

        logging.getLogger("llama_batch.llama_cpp").addHandler(logging.NullHandler())
        threading.Thread(target=_drain_for_ever, name="llama-batch-logs", daemon=True).start()


def _in_forked_child() -> None:
    """The thread is not here."""
    global _started
    _started = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)


def drain() -> None:
    """Hand on the lines that wait."""
    import logging  # which takes a tenth of the time that this package may take to import

    logger = logging.getLogger("llama_batch.llama_cpp")
    lines, n_dropped = _core.drain_logs()
    for level, text in lines:
        logger.log(level, "%s", text)
    if n_dropped:
        logger.warning("%d lines of llama.cpp were lost", n_dropped)


def _drain_for_ever() -> None:
    pause = threading.Event()
    while not pause.wait(PERIOD_S):
        drain()
