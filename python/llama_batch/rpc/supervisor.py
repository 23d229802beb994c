"""Keeps a worker's child process running, on one thread that the child's life hangs on."""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_batch.errors import RpcError
from llama_batch.rpc.process import Child

if TYPE_CHECKING:
    from llama_batch.rpc.cache import TensorCache

TICK_S = 1.0
"""How often memory is looked at."""
FIRST_DELAY_S, MAX_DELAY_S = 0.5, 30.0
QUIET_S = 1.0
"""How long nobody was connected when the cache is tidied: clients come back at once, between two parts of a load."""
HEALTHY_S = 60.0
"""A child that lived so long begins the count of failures anew."""
STOP_S = 5.0
_N_EXIT_CODES = 16
_logger = logging.getLogger("llama_batch.rpc")


@dataclass(frozen=True)
class Policy:
    """When a child is started again, and when it is given up."""

    bind_timeout: float
    max_restarts: int
    max_rss_bytes: int | None


class Supervisor:
    """One worker's thread. Others read its attributes, ask it to stop or restart, and wait for it."""

    def __init__(self, what: dict[str, Any], cache: TensorCache | None, policy: Policy) -> None:
        """Start the thread.

        Args:
            what: What the child is to serve.
            cache: Its tensors; open.
            policy: When to start it again.
        """
        self.endpoint = f"{what['host']}:{what['port']}"
        self.child: Child | None = None
        self.error: RpcError | None = None
        self.state = "starting"
        self.n_restarts = self.n_clients = 0
        self.exit_codes: list[int] = []
        self.cache = cache
        self.settled = threading.Event()
        """Set when the first child listens, or never will."""
        self._what, self._policy = what, policy
        self._is_stopping = self._is_recycling = False
        self._waker: int | None
        self._awake, self._waker = os.pipe()
        self._waking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"llama-batch-rpc-{self.endpoint}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the child and the thread, and wait for both."""
        self._is_stopping = True
        self._wake()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def restart(self) -> None:
        """Begin with a new child; without delay, and counted as no failure."""
        self._is_recycling = True
        self._wake()

    def wait(self, timeout: float | None) -> bool:
        """Wait for the end of it; False if that did not come in time."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _wake(self) -> None:
        with self._waking:
            if self._waker is not None:
                os.write(self._waker, b".")

    def _run(self) -> None:
        try:
            self._keep_running()
        except Exception as error:
            _logger.exception("RPC worker %s: its supervisor failed", self.endpoint)
            self._give_up("ended", f"its supervisor failed: {error!r}")
        finally:
            if self.child is not None:
                self.child.kill()
                self.child.reap()
                self.child = None
            if self.cache is not None:
                self.cache.close()
            with self._waking:
                if self._waker is not None:
                    os.close(self._waker)
                self._waker = None
                os.close(self._awake)
            self.settled.set()

    def _keep_running(self) -> None:
        delay, n_failures = FIRST_DELAY_S, 0
        while not self._is_stopping:
            self.state = "starting"
            if self.cache is not None:
                self.cache.tidy()
            self.child = child = Child(self._what)
            self._attend(child)
            code = child.reap()
            self.child = None
            self.n_clients += child.n_clients
            self.exit_codes = [*self.exit_codes, code][-_N_EXIT_CODES:]
            if self._is_stopping:
                break
            if self._is_recycling:
                self._is_recycling = False
                self.n_restarts += 1
                continue
            reason, why = child.failure or ("ended", _ending(code, child))
            if time.monotonic() - child.started > HEALTHY_S:
                delay, n_failures = FIRST_DELAY_S, 0
            n_failures += 1
            # What failed before it ever served, or cannot be had, will not be there in half a second.
            is_final = not self.settled.is_set() or reason not in {"ended", "bind_timeout"}
            if is_final or n_failures > self._policy.max_restarts:
                self._give_up(reason, why)
                return
            _logger.warning("RPC worker %s: %s; it is started again in %.1f s", self.endpoint, why, delay)
            self.state = "waiting"
            self._sleep(delay)
            delay = min(2 * delay, MAX_DELAY_S)
            self.n_restarts += 1
        self.state = "stopped"

    def _give_up(self, reason: str, why: str) -> None:
        text = why if why.startswith("RPC ") else f"RPC worker {self.endpoint}: {why}"
        self.error = RpcError(text, reason=reason, endpoint=self.endpoint)
        self.state = "failed"

    def _sleep(self, seconds: float) -> None:
        """Wait, unless somebody wants something."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._awake, selectors.EVENT_READ)
            if selector.select(seconds):
                os.read(self._awake, 4096)

    def _attend(self, child: Child) -> None:
        """Listen to a child until it ends, whoever wants that."""
        deadline: float | None = child.started + self._policy.bind_timeout
        is_ending = False
        with selectors.DefaultSelector() as selector:
            for fd in (child.fd, self._awake, None if self.cache is None else self.cache.fd):
                if fd is not None:
                    selector.register(fd, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select(self._patience(deadline))}
                if self._awake in ready:
                    os.read(self._awake, 4096)
                if child.fd in ready and not child.read():
                    return
                if self.cache is not None and self.cache.fd in ready:
                    self.cache.note_uses()
                if child.is_listening and not is_ending:
                    deadline = None
                    self.state = "serving"
                    self.settled.set()
                self._watch_memory(child)
                self._tidy_behind(child)
                if (self._is_stopping or self._is_recycling) and not is_ending:
                    child.ask_to_end()
                    is_ending, deadline = True, time.monotonic() + STOP_S
                if deadline is not None and time.monotonic() > deadline:
                    if not is_ending:
                        child.failure = ("bind_timeout", f"it did not listen in {self._policy.bind_timeout} s")
                    child.kill()
                    deadline = None

    @staticmethod
    def _patience(deadline: float | None) -> float:
        return TICK_S if deadline is None else min(TICK_S, max(0.0, deadline - time.monotonic()))

    def _tidy_behind(self, child: Child) -> None:
        """Look after the cache once clients have left, and stayed away for a while."""
        left = child.closed_at
        if self.cache is None or left is None or child.is_connected or time.monotonic() - left < QUIET_S:
            return
        child.closed_at = None
        self.cache.tidy()

    def _watch_memory(self, child: Child) -> None:
        """A child that has grown begins anew, between clients."""
        limit = self._policy.max_rss_bytes
        if limit is None or child.is_connected or not child.is_listening or self._is_recycling:
            return
        rss = child.rss_bytes
        if rss is not None and rss > limit:
            _logger.info("RPC worker %s: it has %d MiB and begins anew", self.endpoint, rss >> 20)
            self._is_recycling = True


def _ending(code: int, child: Child) -> str:
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    said = f"; its last words: {' | '.join(child.last_lines)}" if child.last_lines else ""
    return f"its process ended ({how}){said}"
