"""Embeddings: texts as vectors, and the request that makes them.

Example:
    >>> found = engine.embed(["a cat", "a dog", "a tax form"]).result()
    >>> matrix = numpy.array(found.vectors)  # one row for each text
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from llama_batch._job import Job

if TYPE_CHECKING:
    from array import array

    from llama_batch.types import Timings, Usage

__all__ = ["EmbeddingJob", "Embeddings"]


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The vectors of texts, in the order of the texts.

    A vector is an `array.array` of C floats (typecode "f"): a sequence of numbers with `tolist()` and `tobytes()`,
    which numpy takes without a copy (`numpy.asarray(vector)`).

    Attributes:
        request_id: the number of the request.
        vectors: one for each text, of `n_embd` values. With `pooling="none"` the vectors of all tokens of a text stand
            in one array, one after the other: `n_tokens` times `n_embd` values, which
            `numpy.asarray(vector).reshape(-1, n_embd)` takes apart.
        n_tokens: how many tokens each text has.
        n_embd: values of a vector.
        pooling: how the vectors of a text's tokens became one; the model's own way where "auto" was asked for.
        usage: tokens of all texts together, as `prompt_tokens`.
        timings: when things happened. `queue_ms` ends with the first text's pass, `prefill_ms` is the rest.
    """

    request_id: int
    vectors: tuple[array[float], ...]
    n_tokens: tuple[int, ...]
    n_embd: int
    pooling: Literal["mean", "cls", "last", "none"]
    usage: Usage
    timings: Timings


class EmbeddingJob(Job[Embeddings]):
    """Submitted texts. They are computed whether anybody waits or not; dropping the last reference cancels that.

    Wait with `result()` or `await`, from any thread and from several event loops at once. An error comes from both,
    each time; one that was cancelled raises `RequestCancelledError`, since a part of the vectors is no result.

    Example:
        >>> task = asyncio.create_task(engine.embed(["a cat", "a dog"]))
        >>> vectors = (await task).vectors
    """

    __slots__ = ()
