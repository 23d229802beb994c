"""Models that Ollama has pulled, read where they are; nothing is written there."""

import json
import os
import re
import sys
from pathlib import Path

from llama_batch.errors import ModelNotFoundError
from llama_batch.models import cache
from llama_batch.models.uri import OllamaSource

_MODEL_LAYER = "application/vnd.ollama.image.model"


def folders() -> list[Path]:
    """Where Ollama may keep its models: as set, the user's, and the Linux service's."""
    if given := os.environ.get("OLLAMA_MODELS"):
        return [Path(given).expanduser()]
    found = [Path.home() / ".ollama" / "models"]
    if sys.platform.startswith("linux"):
        found.append(Path("/usr/share/ollama/.ollama/models"))
    return found


def find(source: OllamaSource) -> Path:
    """The GGUF file behind a name.

    Args:
        source: The name and tag.

    Returns:
        The path of the blob.

    Raises:
        ModelNotFoundError: Ollama has no such model, or what it has is damaged.
    """
    for folder in folders():
        manifest = folder.joinpath("manifests", *source.path)
        if manifest.is_file():
            return _blob(folder, manifest, source)
    raise ModelNotFoundError(
        f"Ollama has no model {source.name} in {' or '.join(map(str, folders()))}; `ollama pull {source.name}` fetches "
        f"it, OLLAMA_MODELS says where else to look{_known()}"
    )


def _blob(folder: Path, manifest: Path, source: OllamaSource) -> Path:
    """The file that a manifest names as the model."""
    again = f"`ollama pull {source.name}` repairs it"
    try:
        layers = json.loads(manifest.read_text("utf-8"))["layers"]
        layer = next((layer for layer in layers if layer["mediaType"] == _MODEL_LAYER), None)
        digest, size = ("", 0) if layer is None else (str(layer["digest"]), int(layer["size"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ModelNotFoundError(f"Ollama's manifest {manifest} is damaged; {again}") from error
    if layer is None:
        raise ModelNotFoundError(f"Ollama's {source.name} holds no model in a form that llama.cpp reads ({manifest})")
    match = re.fullmatch(r"sha256[:-]([0-9a-f]{64})", digest)
    if match is None:
        raise ModelNotFoundError(f"Ollama's manifest {manifest} is damaged; {again}")
    blob = folder / "blobs" / f"sha256-{match[1]}"
    if cache.size_of(blob) != size:
        raise ModelNotFoundError(f"Ollama's {source.name} is incomplete: {blob} is missing or cut short; {again}")
    return blob


def _known() -> str:
    """The models that there are, for the message."""
    names = []
    for folder in folders():
        library = folder / "manifests" / "registry.ollama.ai" / "library"
        names += sorted(f"{path.parent.name}:{path.name}" for path in library.glob("*/*") if path.is_file())
    return f"; it has {', '.join(names[:10])}" if names else ""
