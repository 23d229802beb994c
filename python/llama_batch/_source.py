"""What stands for a model: a path, or a URI."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from llama_batch.errors import ModelLoadError, ModelNotFoundError, OptionError

if TYPE_CHECKING:
    from llama_batch import _core
    from llama_batch.types import ModelSource

SCHEMES = ("pypi:", "hf:", "ollama:", "sim:")


def is_uri(source: ModelSource) -> bool:
    """Whether it is a URI, and not a path.

    Raises:
        OptionError: it is neither.
    """
    if isinstance(source, str):
        return source.startswith(SCHEMES)
    if not isinstance(source, os.PathLike):
        raise OptionError(f"model must be a path or a URI, not {type(source).__name__}")
    return False


def local_file(source: ModelSource) -> Path:
    """The file, looked at as far as that takes no time.

    Raises:
        ModelNotFoundError: there is no such file.
        ModelLoadError: it is no GGUF file.
    """
    path = Path(source).expanduser()
    try:
        # Opening a pipe would wait for its writer.
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ModelNotFoundError(f"{path} is no regular file")
        with path.open("rb") as file:
            magic = file.read(4)
    except ModelNotFoundError:
        raise
    except IsADirectoryError:
        raise ModelNotFoundError(f"{path} is a folder, not a GGUF file") from None
    except FileNotFoundError:
        hint = f" (a URI begins with {', '.join(SCHEMES[:3])})" if not path.suffix else ""
        raise ModelNotFoundError(f"there is no file {path}{hint}") from None
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(f"{str(path)!r} cannot be read: {error}") from None
    if magic != b"GGUF":
        raise ModelLoadError(f"{path} is not a GGUF file: it begins with {magic!r}, not with b'GGUF'")
    return path


def sim_settings(uri: str) -> dict[str, str]:
    """The settings of a simulated model: `sim:?pass_ms=5&eog_every=50`."""
    from urllib.parse import parse_qsl

    return dict(parse_qsl(uri.removeprefix("sim:").lstrip("?"), keep_blank_values=True))


def load_file(native: _core.Engine, path: Path) -> None:
    """Have an engine load a file, with the folder that keeps what is measured of models."""
    from llama_batch.models.cache import notes

    native.load_file(path, notes())
