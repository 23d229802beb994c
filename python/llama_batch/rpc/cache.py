"""The cache of tensors of a worker: files that llama.cpp writes and reads, named by the hash of what is in them.

llama.cpp neither bounds it nor notices a file that was cut short, which it would take for weights. So the file that was
written last is checked against its name before a client can ask for it, and the least recently used go when the bound
is passed; both only while no client is connected.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from llama_batch import _core
from llama_batch._lock import try_lock
from llama_batch.errors import RpcError

_NAME = re.compile(r"[0-9a-f]{16}")
_IN_CLOSE_WRITE, _IN_CLOSE_NOWRITE = 0x8, 0x10
_IN_NONBLOCK, _IN_CLOEXEC = 0o4000, 0o2000000
_EVENT = struct.Struct("iIII")
_logger = logging.getLogger("llama_batch.rpc")


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """How a worker's cache of tensors fares.

    Attributes:
        path: its folder.
        n_files: tensors in it.
        size_bytes: what they take.
        max_bytes: what they may take while no client is connected; None is no bound.
        n_hits: tensors that clients did not have to send, since the worker was started; None where the system does not
            tell (it is not Linux).
        hit_bytes: their size; None as well.
        n_stored: tensors that clients sent and that were kept; None as well.
        n_evicted: files that went for the bound.
        n_broken: files that did not hold what their name said, and went.
    """

    path: Path
    n_files: int
    size_bytes: int
    max_bytes: int | None
    n_hits: int | None
    hit_bytes: int | None
    n_stored: int | None
    n_evicted: int
    n_broken: int


class TensorCache:
    """The folder, for one worker."""

    def __init__(self, path: str | os.PathLike[str], max_bytes: int | None, endpoint: str) -> None:
        """Name it.

        Args:
            path: The folder; made where it is missing.
            max_bytes: What it may hold while no client is connected; None is no bound.
            endpoint: Whose it is, for errors.
        """
        self.path = Path(path).expanduser().absolute()
        self.fd: int | None = None
        self._max_bytes, self._endpoint = max_bytes, endpoint
        self._lock: IO[bytes] | None = None
        self._checked: tuple[Path, int] | None = None
        self._n_hits = self._hit_bytes = self._n_stored = self._n_evicted = self._n_broken = 0

    def open(self) -> None:
        """Make the folder, and have it for oneself.

        Raises:
            RpcError: `"cache"`: it cannot be made or written, or another worker has it.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("ab")
        except OSError as error:
            raise self._refusal(f"{error.strerror}") from error
        if not try_lock(lock):
            lock.close()
            raise self._refusal("another worker has it; each needs one of its own")
        self._lock = lock
        self.fd = _watch(self.path)

    def close(self) -> None:
        """Let others have it."""
        if self.fd is not None:
            os.close(self.fd)
        if self._lock is not None:
            self._lock.close()
        self.fd = self._lock = None

    def _refusal(self, why: str) -> RpcError:
        text = f"RPC worker {self._endpoint}: the cache {self.path} cannot be used: {why}"
        return RpcError(text, reason="cache", endpoint=self._endpoint)

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """The tensors, the one written last at the end."""
        found = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.path):
                with contextlib.suppress(OSError):  # gone meanwhile
                    if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        found.append((Path(entry.path), entry.stat(follow_symlinks=False)))
        return sorted(found, key=lambda file: file[1].st_mtime_ns)

    def tidy(self) -> None:
        """Drop what was cut short, and what is over the bound. For when no client is connected."""
        self.note_uses()
        files = self._files()
        # Tensors are written one after the other: of those that are long enough only the last can be incomplete.
        while files and not self._is_whole(*files[-1]):
            path, _ = files.pop()
            _logger.warning("RPC worker %s: %s of its cache was cut short and is dropped", self._endpoint, path.name)
            self._n_broken += 1
            _drop(path)
        size = sum(stat.st_size for _, stat in files)
        for path, stat in sorted(files, key=lambda file: max(file[1].st_atime_ns, file[1].st_mtime_ns)):
            if self._max_bytes is None or size <= self._max_bytes:
                break
            size -= stat.st_size
            self._n_evicted += 1
            _drop(path)
        self._read_events()  # those of the check itself

    def _is_whole(self, path: Path, stat: os.stat_result) -> bool:
        """Whether a file holds what its name says; the answer for the last one is remembered."""
        if self._checked == (path, stat.st_mtime_ns):
            return True
        try:
            whole = _core.rpc_is_whole(path)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # a check is no use
        except OSError:
            whole = False
        self._checked = (path, stat.st_mtime_ns) if whole else None
        return whole

    def note_uses(self) -> None:
        """Count what llama.cpp read and wrote since the last time, and remember when."""
        for name, mask in self._read_events():
            path = self.path / name
            if mask & _IN_CLOSE_WRITE:
                self._n_stored += 1
            elif mask & _IN_CLOSE_NOWRITE:
                self._n_hits += 1
                with contextlib.suppress(OSError):
                    stat = path.stat()
                    self._hit_bytes += stat.st_size
                    # Read times are kept by hand, since most file systems keep them lazily.
                    os.utime(path, ns=(time.time_ns(), stat.st_mtime_ns))

    def _read_events(self) -> list[tuple[str, int]]:
        events = []
        while self.fd is not None:
            try:
                block = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                break
            at = 0
            while at < len(block):
                _, mask, _, length = _EVENT.unpack_from(block, at)
                name = block[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0").decode("ascii", "replace")
                at += _EVENT.size + length
                if _NAME.fullmatch(name):
                    events.append((name, mask))
        return events

    def info(self) -> CacheInfo:
        """The figures."""
        files = self._files()
        counted = self.fd is not None or sys.platform == "linux"
        return CacheInfo(
            path=self.path,
            n_files=len(files),
            size_bytes=sum(stat.st_size for _, stat in files),
            max_bytes=self._max_bytes,
            n_hits=self._n_hits if counted else None,
            hit_bytes=self._hit_bytes if counted else None,
            n_stored=self._n_stored if counted else None,
            n_evicted=self._n_evicted,
            n_broken=self._n_broken,
        )


def _drop(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _watch(path: Path) -> int | None:
    """A descriptor that tells of files that were closed (inotify), where the system has that."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(path), _IN_CLOSE_WRITE | _IN_CLOSE_NOWRITE) < 0:
        os.close(fd)
        return None
    return fd
