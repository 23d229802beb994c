"""Models of Hugging Face: kept in its own cache, which llama.cpp shares, and found there without the network."""

import contextlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llama_batch.errors import ModelNotFoundError
from llama_batch.models import cache
from llama_batch.models.progress import Reporter
from llama_batch.models.uri import HubSource, safe_parts

DEFAULT_QUANT = "Q4_K_M"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_TIMEOUT_S = 15.0


def hub_cache() -> Path:
    """The folder that all programs share for downloads from Hugging Face."""
    if given := os.environ.get("HF_HUB_CACHE"):
        return Path(given).expanduser()
    if given := os.environ.get("HF_HOME"):
        return Path(given).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface" / "hub"


def record_path(source: HubSource) -> Path:
    """Where the cache remembers what a URI led to."""
    quant = (source.quant or "default").lower().replace("/", "--")
    return cache.root() / "models" / "hf" / Path(*source.repo.split("/")) / f"{quant}.gguf.json"


def find(source: HubSource, *, offline: bool) -> cache.Record | None:
    """The cached model, without the network.

    What an earlier call recorded, else what another program has put into the shared cache. There a URI without a
    quantisation is taken to mean `Q4_K_M`, or, when offline, what there is.

    Args:
        source: What to find.
        offline: Whether there is no other way to find it.
    """
    if record := cache.intact(record_path(source)):
        return record
    repo = hub_cache() / ("models--" + source.repo.replace("/", "--"))
    try:
        snapshot = repo / "snapshots" / (repo / "refs" / "main").read_text("utf-8").strip()
        names = [
            path.relative_to(snapshot).as_posix() for path in cache.files_below(snapshot, ".gguf") if path.exists()
        ]
        wanted = HubSource(source.repo, source.quant if source.quant or offline else DEFAULT_QUANT)
        paths = [snapshot / name for name in choose(names, wanted)]
    except (OSError, ModelNotFoundError):
        return None
    hashes = [path.resolve().name for path in paths]
    if not all(re.fullmatch(r"[0-9a-f]{64}", sha256) for sha256 in hashes):
        hashes = [cache.sha256_of(path) for path in paths]
    record = _record(source, list(zip(paths, hashes, strict=True)))
    with contextlib.suppress(OSError):  # a cache that cannot be written serves, too
        cache.write_record(record_path(source), record)
    return record


def fetch(source: HubSource, uri: str, report: Reporter) -> Path:
    """Download a model, all its shards, with huggingface_hub.

    Args:
        source: What to fetch.
        uri: As the user wrote it, for messages.
        report: Told of the progress.

    Returns:
        The path of the record, which this writes.

    Raises:
        ModelNotFoundError: huggingface_hub is missing, or the repository, the file, the network or the right is.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise ModelNotFoundError(f"{uri} needs the package huggingface_hub: pip install 'llama-batch[hub]'") from error
    with cache.workplace(f"hf:{source.repo}", report):
        if find(source, offline=False):
            return record_path(source)
        meter = _Meter(report)
        try:
            files = _download(huggingface_hub, source, meter)
        except ModelNotFoundError:
            raise
        except Exception as error:  # whatever huggingface_hub and its HTTP client raise, of any version
            if meter.raised is not None:
                raise meter.raised from None
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ModelNotFoundError(_reason(huggingface_hub, source, error)) from error
        record = _record(source, files)
        cache.write_record(record_path(source), record)
        return record_path(source)


def choose(names: Iterable[str], source: HubSource) -> list[str]:
    """The files to load: the first one and its shards.

    Args:
        names: All files of the repository.
        source: The quantisation's name, in any case, or a file's; None for `Q4_K_M`, else the first file.

    Returns:
        The file names, in order.

    Raises:
        ModelNotFoundError: No file is of that quantisation, or a shard is missing.
    """
    all_names = {n for n in names if n.lower().endswith(".gguf") and safe_parts(n)}
    models = sorted(n for n in all_names if "mmproj" not in n.rpartition("/")[2].lower() and _number(n) <= 1)
    if not models:
        raise ModelNotFoundError(f"hf:{source.repo} holds no GGUF file")
    quant = source.quant or DEFAULT_QUANT
    if quant.lower().endswith(".gguf"):
        chosen = [n for n in models if quant in (n, n.rpartition("/")[2])]
    else:
        pattern = re.compile(rf"(?:^|[-._/]){re.escape(quant)}(?=[-./]|$)", re.IGNORECASE)
        chosen = [n for n in models if pattern.search(_stem(n))]
    if not chosen and source.quant is not None:
        raise ModelNotFoundError(f"hf:{source.repo} has no {quant}; it has {', '.join(models)}")
    first = (chosen or models)[0]
    if not (match := _SHARD.fullmatch(first)):
        return [first]
    shards = [f"{match['stem']}-{i:05}-of-{match['count']}.gguf" for i in range(1, int(match["count"]) + 1)]
    if missing := [n for n in shards if n not in all_names]:
        raise ModelNotFoundError(f"hf:{source.repo} lacks parts of the model: {', '.join(missing)}")
    return shards


def shards_beside(path: Path) -> list[Path]:
    """All files of a model whose first one this is, as far as they are there."""
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return [path]
    names = [f"{match['stem']}-{i:05}-of-{match['count']}.gguf" for i in range(2, int(match["count"]) + 1)]
    return [path, *(path.with_name(name) for name in names if path.with_name(name).is_file())]


def _number(name: str) -> int:
    match = _SHARD.fullmatch(name)
    return int(match["number"]) if match else 0


def _stem(name: str) -> str:
    match = _SHARD.fullmatch(name)
    return match["stem"] if match else name[: -len(".gguf")]


def _record(source: HubSource, files: list[tuple[Path, str]]) -> cache.Record:
    base = record_path(source).parent
    uri = f"hf:{source.repo}" + (f":{source.quant}" if source.quant else "")
    return cache.Record(uri, tuple(cache.describe_file(path, base, sha) for path, sha in files), time.time())


def _download(huggingface_hub: Any, source: HubSource, meter: "_Meter") -> list[tuple[Path, str]]:
    """Fetch what `choose` says; the paths and their SHA-256, compared with the server's."""
    endpoint = os.environ.get("HF_ENDPOINT") or None
    api = huggingface_hub.HfApi(endpoint=endpoint, library_name="llama-batch")
    info = api.model_info(source.repo, files_metadata=True, timeout=_TIMEOUT_S)
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
    names = choose(siblings, source)
    meter.total = sum(siblings[name].size or 0 for name in names)
    folder = hub_cache()
    folder.mkdir(parents=True, exist_ok=True)
    cache.need_space(folder, meter.total)
    files = []
    for name in names:
        path = Path(
            huggingface_hub.hf_hub_download(
                source.repo, name, endpoint=endpoint, cache_dir=folder, tqdm_class=meter.bar_class(huggingface_hub)
            )
        )
        sha256 = cache.sha256_of(path, meter.report)
        expected = siblings[name].lfs.sha256 if siblings[name].lfs else None
        if expected is not None and sha256 != expected:
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise ModelNotFoundError(f"{name} of hf:{source.repo} came damaged and was removed; try again")
        files.append((path, sha256))
    return files


class _Meter:
    """Counts what huggingface_hub's progress bars are told, over all files of a model."""

    def __init__(self, report: Reporter) -> None:
        self.report = report
        self.total = 0
        self.done = 0
        self.raised: BaseException | None = None

    def update(self, n_bytes: float) -> None:
        """Count bytes; what the callback raises ends the download and is kept, as others may wrap it."""
        self.done += int(n_bytes)
        try:
            self.report("downloading", self.done, max(self.total, self.done))
        except BaseException as error:
            self.raised = error
            raise

    def bar_class(self, huggingface_hub: Any) -> type:
        """A progress bar that draws nothing and counts here."""
        meter = self
        base: Any = huggingface_hub.utils.tqdm

        class Bar(base):  # type: ignore[misc]  # the class is known at run time alone
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **{**kwargs, "disable": True})

            def update(self, n: float | None = 1) -> bool | None:
                meter.update(n or 0)
                return None

        return Bar


def _reason(huggingface_hub: Any, source: HubSource, error: Exception) -> str:
    """What went wrong, in one line that says what to do."""
    errors = huggingface_hub.errors
    if isinstance(error, errors.GatedRepoError):
        return f"hf:{source.repo} is gated: accept its terms on its page, then set HF_TOKEN or run `hf auth login`"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"hf:{source.repo} does not exist, or is private: then set HF_TOKEN or run `hf auth login`"
    if isinstance(error, errors.HfHubHTTPError):
        response = getattr(error, "response", None)
        return f"Hugging Face answers {getattr(response, 'status_code', 'an error')} for hf:{source.repo}; try again"
    first = str(error).strip().partition("\n")[0] or type(error).__name__
    return f"hf:{source.repo} cannot be fetched ({first}); check the network, and HF_ENDPOINT if it is set"
