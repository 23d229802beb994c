"""The Rust side. Internal: the public classes are in `llama_batch`."""

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, Literal, Self, final

from llama_batch.embedding import Embeddings
from llama_batch.errors import LlamaBatchError
from llama_batch.telemetry import Event
from llama_batch.types import Chunk, Completion, EngineState

__all__ = [
    "ChatParser",
    "Engine",
    "EventReceiver",
    "Hub",
    "Model",
    "NextChunk",
    "Simulation",
    "Ticket",
    "__version__",
    "build",
    "die_with_parent",
    "drain_logs",
    "error_samples",
    "has_llama",
    "interrupt_strategies",
    "new_key",
    "option_tables",
    "rpc_is_whole",
    "rpc_prove",
    "rpc_resolve",
    "rpc_serve",
    "rpc_supported",
    "serve_isolated",
    "try_template",
    "wait_for_strategies",
]

__version__: str

def build() -> str:
    """Which llama.cpp is inside; "none" in a build without it."""

def wait_for_strategies(timeout: float) -> bool:
    """Wait until no batch strategy is being called; False if `timeout` seconds passed first."""

def interrupt_strategies() -> None:
    """Raise `SystemExit` in the batch strategies that are being called."""

def has_llama() -> bool:
    """Whether llama.cpp is inside."""

def drain_logs() -> tuple[list[tuple[int, str]], int]:
    """What llama.cpp logged since the last call, as levels of `logging` and lines, and how many lines were lost."""

def die_with_parent() -> None:
    """Have this process killed when its parent ends; without effect where the system is not Linux."""

def rpc_supported() -> bool:
    """Whether llama.cpp's RPC was built in."""

def rpc_resolve(text: str) -> tuple[str, int]:
    """The IPv4 address and the port of an endpoint."""

def rpc_prove(text: str, timeout: float) -> tuple[str, list[tuple[int, int]]]:
    """A server's version of the protocol, and the free and total bytes of its devices."""

def rpc_is_whole(path: str | PathLike[str]) -> bool:
    """Whether a file of a worker's cache holds what its name says."""

def rpc_serve(
    text: str,
    cache: str | PathLike[str] | None,
    n_threads: int,
    devices: list[str],
    tell: Callable[[list[tuple[str, str, int, int]]], object],
) -> None:
    """Serve devices of this machine; returns on failure only. `tell` is called with them first."""

def serve_isolated(work: int, alarm: int) -> None:
    """Be the process of an isolated backend, over two sockets by their descriptors, until the other end is closed."""

def new_key() -> int:
    """A key that nobody else has."""

def option_tables() -> dict[str, list[dict[str, Any]]]:
    """The tables, `start`, `request` and `embed`, as rows in the order of declaration."""

def error_samples() -> list[tuple[str, bool, LlamaBatchError]]:
    """One error of each kind, with its code and whether it may be retried."""

@final
class Hub:
    """One event loop's bell."""

    def __new__(cls, socket: bool) -> Hub: ...
    def fileno(self) -> int | None:
        """The file descriptor to watch; None where there is none."""

    def add(self, key: int, future: object) -> None:
        """Have a future of the hub's loop done when a key is marked."""

    def remove(self, key: int, future: object) -> None:
        """Take such a future back."""

    def mark(self, key: int) -> None:
        """Mark a key, as an engine does."""

    def ring(self) -> None:
        """The futures of all marked keys are done."""

    def drain(self) -> list[int]:
        """The keys that were marked since the last call."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it rings; False if the time runs out first, or once it is closed."""

    def close(self) -> None:
        """Ring it no more."""

@final
class Ticket:
    """A submitted request. Dropping it cancels the request."""

    @property
    def id(self) -> int:
        """The request's number."""

    @property
    def syntax(self) -> str | None:
        """How the answer to a conversation is read, as JSON; None before its prompt is made, and of other requests."""

    @property
    def key(self) -> int:
        """The key that hubs know it by."""

    def take(self) -> Chunk | Literal[False] | None:
        """The next chunk; None if it is not there yet, False at the end. Raises the request's error, once."""

    def next_chunk(self) -> NextChunk:
        """An awaitable of the next chunk, for a task of the running asyncio loop."""

    def enter(self) -> None:
        """Somebody begins to wait."""

    def leave(self, gives_up: bool) -> None:
        """Somebody waits no more, and cancels the request if it gives up and nobody else waits."""

    def is_waited_for(self) -> bool:
        """Whether somebody waits."""

    def done(self) -> bool:
        """Whether the request has ended."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there is something to take; False if the time runs out first."""

    def wait_end(self, timeout: float | None = None) -> bool:
        """Wait for the end; False if the time runs out first."""

    def watch(self, hub: Hub, key: int, end_only: bool) -> bool:
        """Have a key marked whenever something comes. True if something is there already."""

    def outcome(self) -> Completion | Embeddings | LlamaBatchError | None:
        """The completion or the embeddings, or the error that the request ended with; None while it runs."""

    def cancelled(self) -> bool:
        """Whether the request was cancelled."""

    def cancel(self) -> None:
        """Cancel the request."""

@final
class NextChunk:
    """An awaitable of the next chunk."""

    def __await__(self) -> NextChunk: ...
    def __iter__(self) -> NextChunk: ...
    def __next__(self) -> Any: ...
    def send(self, _value: object) -> Any:
        """Step it."""

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        """The task that waits is cancelled."""

    def close(self) -> None:
        """The coroutine that waits is thrown away."""

@final
class EventReceiver:
    """A bounded queue of one engine's events."""

    def recv(self, timeout: float | None = None) -> Event | Literal[False] | None:
        """The next event; None if the time runs out first, False once all is received."""

    def watch(self, hub: Hub, key: int) -> bool:
        """Have a key marked whenever an event comes. True if something is there already."""

    def close(self) -> None:
        """Nothing more comes; what came before is still received."""

    @property
    def n_dropped(self) -> int:
        """Events that came while the queue was full."""

def try_template(source: str) -> None:
    """Render a few conversations with a template. It may end the process: for one that is there for that."""

@final
class ChatParser:
    """Reads answers as a model's template writes them."""

    def __new__(cls, syntax: str) -> Self:
        """A parser from a syntax that came with a conversation."""

    def parse(self, text: str, is_partial: bool) -> str | None:
        """Read an answer, or its beginning: JSON; None where the text is no such answer."""

@final
class Model:
    """A loaded model."""

    @property
    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        """Text to tokens."""

    def pieces(self, tokens: list[int], special: bool) -> bytes:
        """The bytes of tokens, one after the other."""

    def is_eog(self, token: int) -> bool:
        """Whether a token ends a generation."""

    def render_chat(self, asked: str) -> tuple[str, list[int], str]:
        """The prompt that a conversation makes, its tokens, and the syntax of its answer."""

    def score(self, tokens: list[int], n_prompt: int, chunk: int) -> list[float]:
        """How far each token after the first `n_prompt` was from the likeliest."""

    def facts(self) -> dict[str, Any]:
        """What is known of it, by the names of `llama_batch.Model`."""

@final
class Engine:
    """An engine. Dropping it closes it, cancelling what runs."""

    def __new__(cls, name: str, options: dict[str, Any]) -> Engine: ...
    @property
    def id(self) -> int:
        """Its number in this process."""

    @property
    def capacity(self) -> tuple[int, int]:
        """Slots, and requests that may wait for one (0: any number)."""

    @property
    def state(self) -> EngineState:
        """What it does."""

    @property
    def calibration(self) -> str | None:
        """What was measured of the model, as JSON; None where nothing was."""

    def load_file(self, path: str | PathLike[str], notes: str | PathLike[str] | None = None) -> None:
        """Load a GGUF file in the background."""

    def load_sim(self, settings: Mapping[str, str]) -> None:
        """Simulate a model."""

    def fail(self, exception: BaseException) -> None:
        """The model never comes: end everybody who waits for it."""

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until it is ready; False if the time runs out first."""

    def watch_ready(self, hub: Hub, key: int) -> bool:
        """Have a key marked once loading is over. True if it is already."""

    def check(self, options: dict[str, Any]) -> None:
        """Check the options of a request, and submit nothing."""

    def save_session(self, session: Any, path: str | PathLike[str], scope: Any = None) -> tuple[int, int]:
        """Save a session: all tokens, and those that need not be computed again."""

    def load_session(self, path: str | PathLike[str], session: Any = None, scope: Any = None) -> tuple[Any, int, int]:
        """Load one: its name, all tokens, and those that need not be computed again."""

    def submit(self, prompt: Any, options: dict[str, Any], stream: bool) -> Ticket:
        """Submit text or token ids."""

    def submit_chat(self, asked: str, options: dict[str, Any], stream: bool) -> Ticket:
        """Submit a conversation, as JSON."""

    def submit_wrong(self, code: str, message: str, options: dict[str, Any], stream: bool) -> Ticket:
        """Submit something that was found wrong before."""

    def embed(self, texts: Any, options: dict[str, Any]) -> Ticket:
        """Submit texts that are to become vectors."""

    def cancel(self, request_id: int) -> None:
        """Cancel a request."""

    def stats(self) -> dict[str, Any]:
        """Figures of this moment, by the names of `llama_batch.Stats`."""

    def metrics(self) -> dict[str, Any]:
        """All that is measured, by the names of `llama_batch.metrics.Metrics`."""

    def model(self) -> Model:
        """The model, as soon as it turns text into tokens."""

    def close(self, drain: bool, timeout: float | None = None) -> bool:
        """Close it: whether its threads have ended."""

    def subscribe(self) -> EventReceiver:
        """Listen to its events from here on."""

@final
class Simulation:
    """A simulation. A broken invariant is an `AssertionError`, and leaves it unusable."""

    def __new__(cls, options: Mapping[str, Any], settings: Mapping[str, str]) -> Simulation: ...
    @property
    def now(self) -> float:
        """The virtual time, in seconds."""

    def submit(self, prompt: object, options: Mapping[str, Any]) -> int:
        """Submit token ids; the request's number."""

    def cancel(self, request_id: int) -> None:
        """Cancel a request; unknown and ended ones are left alone."""

    def advance(self, seconds: float) -> None:
        """Let time go by."""

    def inject(self, fault: str, code: int) -> None:
        """Let the next thing fail that can fail in this way."""

    def begin(self) -> bool:
        """Plan the next work and have it done, without telling the scheduler yet; whether there was any."""

    def complete(self) -> bool:
        """Tell the scheduler what came of the work under way; whether there was any."""

    def run(self, max_steps: int) -> bool:
        """Step until nothing is left to do or `max_steps` are over; whether nothing is left."""

    def events(self) -> list[tuple[str, dict[str, float], dict[str, Any]]]:
        """What the scheduler told since the last call, as name, measurements and metadata."""

    def stats(self) -> dict[str, Any]:
        """Figures of this moment, by the names of `llama_batch.Stats`."""

    @property
    def next_timeout(self) -> float | None:
        """When something times out next, in seconds."""

    def check(self) -> None:
        """All invariants."""
