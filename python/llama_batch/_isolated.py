"""The process that an isolated backend computes in: `python -m llama_batch._isolated`, started by the Rust side.

Its standard input and output are sockets: works come in by the one, and their outcomes go back; the other tells which
pass is to be aborted. What it logs goes to its standard error, which the engine reads. It ends with the engine.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def command() -> tuple[str, list[str], list[tuple[str, str]]]:
    """How the process is started.

    Returns:
        The program, its arguments, and what is to be set in its environment.

    Raises:
        RuntimeError: this interpreter is part of another program, and does not know how it could be started again.

    Example:
        >>> command()[1]
        ['-P', '-m', 'llama_batch._isolated']
    """
    if not sys.executable:
        raise RuntimeError("this interpreter does not know the program that would start another one (sys.executable)")
    path = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    # Its last words are to be the reason of its end, and not where that was.
    terse = [
        (name, value) for name, value in (("GGML_NO_BACKTRACE", "1"), ("RUST_BACKTRACE", "0")) if name not in os.environ
    ]
    return sys.executable, ["-P", "-m", "llama_batch._isolated"], [("PYTHONPATH", path), *terse]


def _main() -> None:
    import signal

    # What the parent's other libraries opened without care is none of this process's.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    # It ends when the engine says so, or is gone: what a terminal or a supervisor tells everybody is for the engine.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    work, alarm = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # whatever prints must not reach the sockets

    from llama_batch import _core

    code = 0
    try:
        _core.serve_isolated(work, alarm)
    except RuntimeError as error:  # its text is for the log, and for the error of who waits
        sys.stderr.write(f"{error}\n")
        code = 1
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _main()
