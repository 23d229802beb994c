"""Looking at the cache of models and taking things out of it."""

import os
from dataclasses import dataclass
from pathlib import Path

from llama_batch.errors import ModelNotFoundError
from llama_batch.models import cache, hub, pypi
from llama_batch.models.progress import Reporter
from llama_batch.models.uri import FileSource, HubSource, OllamaSource, PypiSource, parse


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the cache.

    Attributes:
        uri: What resolves to it.
        path: Its file; the first, where it has several.
        size: Of all its files. Unit: bytes.
        sha256: Of the first file, in hexadecimal.
        created: When it was fetched. Unit: seconds since 1970.
    """

    uri: str
    path: Path
    size: int
    sha256: str
    created: float


def list_models() -> list[CachedModel]:
    """The models in the cache, in the order of their names.

    Returns:
        Those that are complete. Files of your own and Ollama's are not listed: they are not in the cache.

    Example:
        >>> for model in list_models():
        ...     print(model.uri, model.size, model.path)
    """
    found = []
    for path in cache.files_below(cache.root() / "models", ".gguf.json"):
        record = cache.read_record(path)
        if record is None:
            continue
        files = [(path.parent / file.path, file.size) for file in record.files]
        if all(cache.size_of(file) == size for file, size in files):
            size = sum(file.size for file in record.files)
            found.append(CachedModel(record.uri, files[0][0], size, record.files[0].sha256, record.created))
    return sorted(found, key=lambda model: model.uri)


def verify_model(uri: str | os.PathLike[str] | None) -> CachedModel:
    """Compare every byte of a cached model with the SHA-256 recorded when it was fetched.

    Args:
        uri: As for `resolve`.

    Returns:
        The model, which is whole.

    Raises:
        ModelNotFoundError: It is not in the cache, or is damaged.
    """
    path, record = _locate(uri)
    for file in record.files:
        if cache.sha256_of(path.parent / file.path) != file.sha256:
            raise ModelNotFoundError(f"{path.parent / file.path} is damaged; remove {record.uri} and fetch it again")
    size = sum(file.size for file in record.files)
    first = record.files[0]
    return CachedModel(record.uri, path.parent / first.path, size, first.sha256, record.created)


def remove_model(uri: str | os.PathLike[str] | None) -> int:
    """Remove a model from the cache; one of Hugging Face from the cache that programs share, too.

    Args:
        uri: As for `resolve`.

    Returns:
        The space that it took. Unit: bytes.

    Raises:
        ModelNotFoundError: It is not in the cache, or it is not this package's to remove.
    """
    path, record = _locate(uri)
    source = parse(record.uri)
    allowed = path.parent if isinstance(source, PypiSource) else hub.hub_cache()
    key = f"pypi:{source.package}" if isinstance(source, PypiSource) else f"hf:{getattr(source, 'repo', '')}"
    with cache.workplace(key, Reporter(record.uri, None)):
        path.unlink(missing_ok=True)
        for file in record.files:
            _unlink(path.parent / file.path, allowed)
        _prune(path.parent, cache.root() / "models")
    return sum(file.size for file in record.files)


def _unlink(file: Path, allowed: Path) -> None:
    """Remove a file and what it links to, if they lie where models lie: a record is a file that anyone may edit."""
    base = allowed.resolve()
    for target in (file.resolve(), file.parent.resolve() / file.name):
        if target.is_relative_to(base):
            target.unlink(missing_ok=True)


def _prune(folder: Path, top: Path) -> None:
    """Remove folders that are empty now."""
    while folder != top and folder.is_relative_to(top):
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def _locate(uri: str | os.PathLike[str] | None) -> tuple[Path, cache.Record]:
    """The record of a model in the cache, damaged files or not."""
    source = parse(uri)
    match source:
        case FileSource(path):
            raise ModelNotFoundError(f"{path} is a file of your own, not of the cache")
        case OllamaSource(name):
            raise ModelNotFoundError(f"ollama:{name} belongs to Ollama; `ollama rm {name}` removes it")
        case PypiSource():
            located = next(pypi.records(source), None)
        case HubSource():
            record = cache.read_record(hub.record_path(source))
            located = None if record is None else (hub.record_path(source), record)
    if located is None:
        raise ModelNotFoundError(f"{uri} is not in the cache")
    return located
