"""Which file of a repository a pattern means."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from llama_batch.errors import ModelNotFoundError, OptionError
from llama_batch.models import cache
from llama_batch.models.hub import hub_cache

_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)


def matching_file(repo_id: str, filename: str) -> str:
    """The file of a repository that a pattern matches; what is in the cache already needs no network.

    Args:
        repo_id: the repository.
        filename: a file's name, or a pattern with `*`, `?` and `[]`.

    Returns:
        The name.

    Raises:
        OptionError: no file matches, or several models do.
        ModelNotFoundError: the repository cannot be looked at.

    Example:
        >>> matching_file("Qwen/Qwen2-0.5B-Instruct-GGUF", "*q8_0.gguf")
        'qwen2-0_5b-instruct-q8_0.gguf'
    """
    if not re.search(r"[*?\[]", filename):
        return filename
    found = _matches(_cached(repo_id), filename)
    if len(found) != 1:
        names = _listed(repo_id)
        found = _matches(names, filename)
        if not found:
            there = ", ".join(sorted(name for name in names if name.endswith(".gguf")))
            raise OptionError(f"Llama.from_pretrained: no file of {repo_id} matches {filename!r}; it has {there}")
        if len(found) > 1:
            raise OptionError(f"Llama.from_pretrained: {filename!r} matches several files: {', '.join(found)}")
    return found[0]


def _matches(names: list[str], pattern: str) -> list[str]:
    """The files of models that a pattern matches, the first parts of split ones alone."""
    models = [name for name in names if name.lower().endswith(".gguf") and not _LATER_PART.search(name)]
    return sorted(name for name in models if fnmatchcase(name, pattern) or fnmatchcase(name.split("/")[-1], pattern))


def _cached(repo_id: str) -> list[str]:
    repo = hub_cache() / ("models--" + repo_id.replace("/", "--"))
    try:
        snapshot = repo / "snapshots" / (repo / "refs" / "main").read_text("utf-8").strip()
        files = [path for path in cache.files_below(snapshot, ".gguf") if path.exists()]
    except OSError:
        return []
    return [path.relative_to(snapshot).as_posix() for path in files]


def _listed(repo_id: str) -> list[str]:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ModelNotFoundError("Llama.from_pretrained needs a package: pip install 'llama-batch[hub]'") from error
    try:
        return list(huggingface_hub.HfApi(library_name="llama-batch").list_repo_files(repo_id))
    except Exception as error:  # whatever huggingface_hub and its HTTP client raise, of any version
        first = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelNotFoundError(f"the files of hf:{repo_id} cannot be listed ({first})") from error
