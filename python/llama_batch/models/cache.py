"""Where fetched models live, and how they get there whole or not at all.

A model counts as cached once its *record* exists: a JSON file, written last and renamed into place, that names the
model's files with their sizes and SHA-256. Everything before that happens in a folder of its own under a lock, so an
interruption at any moment leaves nothing that could be taken for a model.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from stat import S_ISREG
from typing import IO

from llama_batch._lock import try_lock, unlock
from llama_batch.errors import ModelNotFoundError
from llama_batch.models.progress import Reporter

CHUNK = 1 << 20
_LOCK_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class CachedFile:
    """One file of a model. `mtime_ns` tells cheaply that it is still the one whose SHA-256 was taken."""

    path: str
    size: int
    sha256: str
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Record:
    """A cached model: its files (the first one is loaded; the rest are its shards) and where they came from."""

    uri: str
    files: tuple[CachedFile, ...]
    created: float
    alternatives: tuple[str, ...] = ()


def notes() -> Path:
    """The folder that keeps what was measured of models on this machine."""
    return root() / "calibration"


def root() -> Path:
    """The folder of the cache: `LLAMA_BATCH_CACHE`, or the platform's own place for caches."""
    if given := os.environ.get("LLAMA_BATCH_CACHE"):
        return Path(given).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("llama-batch", appauthor=False)


def read_record(path: Path) -> Record | None:
    """The record at a path, or None where there is none that can be read."""
    try:
        raw = json.loads(path.read_text("utf-8"))
        files = tuple(CachedFile(f["path"], f["size"], f["sha256"], f["mtime_ns"]) for f in raw["files"])
        if not files:
            return None
        return Record(raw["uri"], files, raw["created"], tuple(raw["alternatives"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_record(path: Path, record: Record) -> None:
    """Make a model count as cached."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(asdict(record), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def intact(path: Path) -> Record | None:
    """The record at a path if its files are still what it says.

    Sizes and modification times are compared; only where a time differs is the file hashed again, so that a cached
    model starts without delay and a changed one is noticed.

    Args:
        path: The record's path.

    Returns:
        The record, or None where there is none or a file is missing or changed.
    """
    record = read_record(path)
    if record is None:
        return None
    touched = False
    files = []
    for file in record.files:
        try:
            stat = (path.parent / file.path).stat()
            if stat.st_size != file.size:
                return None
            if stat.st_mtime_ns != file.mtime_ns:
                if sha256_of(path.parent / file.path) != file.sha256:
                    return None
                touched = True
        except OSError:
            return None
        files.append(replace(file, mtime_ns=stat.st_mtime_ns))
    if touched:
        record = replace(record, files=tuple(files))
        with contextlib.suppress(OSError):  # a cache that cannot be written is hashed each time, and serves
            write_record(path, record)
    return record


def describe_file(file: Path, base: Path, sha256: str) -> CachedFile:
    """What a record says of a file: its path relative to the record where it lies below it, else as it is."""
    stat = file.stat()
    path = file.relative_to(base) if file.is_relative_to(base) else file
    return CachedFile(path.as_posix(), stat.st_size, sha256, stat.st_mtime_ns)


def sha256_of(path: Path, report: Reporter | None = None) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    total = path.stat().st_size
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if report is not None:
                report("verifying", done, total)
    return digest.hexdigest()


def publish(temporary: Path, final: Path) -> None:
    """Move a complete file to its place: it is on the disk before its name is."""
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary.replace(final)


def need_space(folder: Path, n_bytes: int) -> None:
    """Refuse at once what cannot fit the disk, instead of after the download."""
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise ModelNotFoundError(
            f"the model needs {n_bytes / 1e6:,.0f} MB more in {folder}, where {free / 1e6:,.0f} MB are free: "
            "make room, or set LLAMA_BATCH_CACHE to a folder on another disk"
        )


def files_below(folder: Path, ending: str) -> Iterator[Path]:
    """The files below a folder whose names end so; what others remove meanwhile is passed over.

    `Path.rglob` raises when a folder goes while it looks.
    """
    for where, _, names in os.walk(folder):
        yield from (Path(where, name) for name in names if name.endswith(ending))


def size_of(path: Path) -> int | None:
    """The size of a file, or nothing where there is none. Unit: bytes."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size if S_ISREG(status.st_mode) else None


@contextlib.contextmanager
def workplace(key: str, report: Reporter) -> Iterator[Path]:
    """A private folder on the cache's disk for fetching one model, held by one process at a time.

    What an earlier process left there when it was killed is removed: nobody else can be using it while the lock is
    held. The folder is removed in the end, whatever happens.

    Args:
        key: Names what is fetched; equal keys exclude each other, between processes and threads.
        report: Told while waiting for another process.
    """
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    base = root() / "partial"
    base.mkdir(parents=True, exist_ok=True)
    with (base / f"{name}.lock").open("a+b") as lock:
        _acquire(lock, report)
        try:
            for stale in base.glob(f"{name}-*"):
                shutil.rmtree(stale, ignore_errors=True)
            folder = base / f"{name}-{secrets.token_hex(4)}"
            folder.mkdir()
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            unlock(lock)


def _acquire(lock: IO[bytes], report: Reporter) -> None:
    """Wait for a file's lock in small steps, so that Ctrl-C and the callback can end the wait."""
    while not try_lock(lock):
        report("waiting", 0, None)
        time.sleep(_LOCK_POLL_S)
