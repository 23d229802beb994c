"""Where models come from: one name, one cache, one function that leads from the one to the other.

Example:
    >>> from llama_batch.models import resolve
    >>> path = resolve(None)  # the default model; fetched once, then found without the network
"""

from llama_batch.models.manage import CachedModel, list_models, remove_model, verify_model
from llama_batch.models.progress import Progress, Report, progress_bar
from llama_batch.models.resolve import resolve
from llama_batch.models.uri import DEFAULT_MODEL, parse

__all__ = [
    "DEFAULT_MODEL",
    "CachedModel",
    "Progress",
    "Report",
    "list_models",
    "parse",
    "progress_bar",
    "remove_model",
    "resolve",
    "verify_model",
]
