"""Measuring how an engine, or an OpenAI-compatible server, answers under load.

`llama-batch bench` is this package on a command line; `docs/benchmarking.md` tells what the words mean. A *workload* is
conversations (`workload`, `files`), *arrivals* say when each begins (`arrivals`), a *target* answers (`in_process`,
`url`), the *driver* puts the questions and keeps a `Record` of each, and a `Result` has the records with their figures.

Example:
    >>> from llama_batch import Engine
    >>> from llama_batch.benchmark import ClosedLoop, EngineTarget, Result, Synthetic, measure
    >>> async with Engine("model.gguf", n_parallel=8) as engine:
    ...     target = EngineTarget(engine)
    ...     conversations = await Synthetic(n_conversations=32).write(target.count)
    ...     run = await measure(target, conversations, ClosedLoop(8))
    >>> Result.of(run).figures.ttft_ms.p95
"""

from __future__ import annotations

from llama_batch.benchmark.arrivals import Arrivals, ClosedLoop, OpenLoop, poisson
from llama_batch.benchmark.driver import Run, measure
from llama_batch.benchmark.errors import BenchmarkError
from llama_batch.benchmark.figures import Distribution, Figures, Goodput, percentile
from llama_batch.benchmark.in_process import EngineTarget
from llama_batch.benchmark.record import Asked, Record, Target
from llama_batch.benchmark.result import Result
from llama_batch.benchmark.slo import Slo
from llama_batch.benchmark.workload import Conversation, Synthetic, Turn

__all__ = [
    "Arrivals",
    "Asked",
    "BenchmarkError",
    "ClosedLoop",
    "Conversation",
    "Distribution",
    "EngineTarget",
    "Figures",
    "Goodput",
    "OpenLoop",
    "Record",
    "Result",
    "Run",
    "Slo",
    "Synthetic",
    "Target",
    "Turn",
    "measure",
    "percentile",
    "poisson",
]
