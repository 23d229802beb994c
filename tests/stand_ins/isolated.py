"""The processes of isolated backends, as this process's children, on Linux."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 60.0


def children() -> list[int]:
    """The numbers of all children of this process that compute, dead ones that nobody heard out included.

    A dead one has no command line any more, so each child counts that is not known to be something else.
    """
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            words = (stat.parent / "cmdline").read_bytes()
        except (OSError, IndexError, ValueError):
            continue
        if parent == os.getpid() and (b"_isolated" in words or not words):
            found.append(int(stat.parent.name))
    return found


def n_files() -> int:
    """Open descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def wait_until(what: Callable[[], bool]) -> None:
    """Wait until something is so.

    Raises:
        AssertionError: it is not so after a minute.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, "it never happens"
        time.sleep(0.01)
