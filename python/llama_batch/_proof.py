"""Chat templates are programs of whoever made the model: one that is new is tried in a process of its own first.

A template may loop for ever, fill the memory or overflow the stack, and then takes down the process that renders it.
The trial renders a few conversations within limits of time and memory. What passed is remembered, by its hash, beside
the cached models.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import subprocess
import sys
from pathlib import Path

SECONDS = 10
"""What a trial may take, of the processor and of the clock."""

BYTES = 1 << 30
"""What it may take of memory, beyond what the process starts with."""

MAX_SOURCE = 1 << 20
"""Characters of a template, at most."""

_known: dict[str, str | None] = {}
_logger = logging.getLogger(__name__)


def refusal(source: str) -> str | None:
    """Why a template must not be rendered in this process.

    Args:
        source: the template.

    Returns:
        The reason; None where it may be rendered, which says nothing of whether it makes sense.

    Example:
        >>> refusal("{% for i in range(10 ** 12) %}{% endfor %}")
        'in a trial it took more than 10 s'
    """
    if len(source) > MAX_SOURCE:
        return f"it has {len(source)} characters, of at most {MAX_SOURCE}"
    name = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
    if name not in _known:
        mark = _mark(name)
        if mark is not None and mark.exists():
            _known[name] = None
        else:
            _known[name] = _trial(source)
            if _known[name] is None and mark is not None:
                with contextlib.suppress(OSError):
                    mark.parent.mkdir(parents=True, exist_ok=True)
                    mark.touch()
    return _known[name]


def _mark(name: str) -> Path | None:
    """The file that says that a template passed, under this build."""
    from llama_batch import __version__
    from llama_batch.models.cache import root

    try:
        return root() / "templates" / f"{__version__}-{name}"
    except (OSError, RuntimeError):
        return None


def _trial(source: str) -> str | None:
    path = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "llama_batch._proof"],
            input=source.encode("utf-8", "surrogatepass"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            timeout=SECONDS + 5,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"in a trial it took more than {SECONDS} s"
    except (OSError, ValueError) as error:
        # An interpreter that is part of another program cannot be started.
        _logger.warning("a chat template could not be tried in a process of its own (%s); it is used untried", error)
        return None
    if done.returncode == 0:
        return None
    if done.returncode in {-24, -9}:  # SIGXCPU, and what follows where it is ignored
        return f"in a trial it took more than {SECONDS} s"
    if done.returncode == 3:
        return f"in a trial it took more than {BYTES >> 20} MiB of memory"
    return f"in a trial it ended its process ({done.returncode})"


def _limit() -> None:
    """Let this process have no more than a trial may take."""
    try:
        import resource
    except ImportError:  # a system without such limits; the clock is left
        return
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    from llama_batch import _core

    given = sys.stdin.buffer.read().decode("utf-8", "surrogatepass")
    _limit()
    try:
        _core.try_template(given)
    except MemoryError:
        os._exit(3)
    os._exit(0)
