"""API keys: who a client is, and what it may take."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from llama_batch.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from os import PathLike

    from llama_batch.types import Key

_HASHED = "sha256:"
_MIN_LENGTH = 4
_MINUTE_S = 60.0
_ANONYMOUS_SCOPE = "llama-batch:anonymous"
_SHARED_SCOPE = "llama-batch:shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """An API key, of which only a hash is kept, with its limits.

    Attributes:
        digest: SHA-256 of the key.
        name: what the log calls it; never the key itself.
        scope: the cache scope that it shares with other keys of the same scope; None: one of its own.
        requests_per_minute: requests that it may begin, on average; None is no limit.
        tokens_per_minute: tokens, read and generated, on average; None is no limit. Reused ones count too.
        max_concurrent: requests that may be under way; None is no limit.
        max_tokens: tokens generated at most for one answer; None is no limit.
        priority: the priority of its requests, which may ask for a later place (a larger number) only.
    """

    digest: bytes
    name: str = ""
    scope: str | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_concurrent: int | None = None
    max_tokens: int | None = None
    priority: int = 0

    @classmethod
    def of(cls, key: str, **limits: Any) -> Self:
        """Make one from the key.

        Args:
            key: the key; or "sha256:" and the hash of one, in hexadecimal.
            limits: the other attributes.

        Returns:
            The key.

        Raises:
            OptionError: the key is too short, or a limit is unknown or wrong.

        Example:
            >>> ApiKey.of("sk-team-a", name="team a", requests_per_minute=60)
        """
        if not is_text(key) or len(key) < _MIN_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
            raise OptionError(f"an API key is ASCII text of at least {_MIN_LENGTH} characters without spaces")
        if key.startswith(_HASHED):
            try:
                digest = bytes.fromhex(key.removeprefix(_HASHED))
            except ValueError:
                digest = b""
            if len(digest) != hashlib.sha256().digest_size:
                raise OptionError("what follows sha256: must be 64 hexadecimal digits")
        else:
            digest = hashlib.sha256(key.encode()).digest()
        known = {each.name for each in fields(cls)} - {"digest"}
        if unknown := sorted(set(limits) - known):
            raise OptionError(f"an API key has no {unknown[0]!r}; it has {', '.join(sorted(known))}")
        limits.setdefault("name", f"key-{digest.hex()[:8]}")
        return cls(digest=digest, **limits)

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute", "max_concurrent", "max_tokens"):
            limit = getattr(self, name)
            whole = name in {"max_concurrent", "max_tokens"}
            wrong = not is_number(limit, whole=whole)
            if limit is not None and (wrong or limit <= 0):
                raise OptionError(f"{name} must be a {'whole ' if whole else ''}number above 0, not {limit!r}")
        if not is_number(self.priority, whole=True):
            raise OptionError(f"priority must be a whole number, not {self.priority!r}")
        for name in ("name", "scope"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise OptionError(f"{name} must be text, not {value!r}")

    def cache_scope(self) -> Key:
        """The scope of what it caches: derived from its hash, so that it tells nobody the key."""
        if self.scope is not None:
            return ("llama-batch:scope", self.scope)
        return ("llama-batch:key", hashlib.sha256(b"cache scope of " + self.digest).hexdigest()[:32])


def is_number(value: object, *, whole: bool) -> bool:
    """Whether a value, which may come from a file, is a number: a finite one, and no truth value."""
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        return False
    return math.isfinite(value)


def is_text(value: object) -> bool:
    """Whether a value, which may come from a file, is text."""
    return isinstance(value, str)


class KeyRing:
    """The keys that a server accepts; an empty one lets everybody in, as one anonymous client.

    Example:
        >>> KeyRing([ApiKey.of("sk-team-a"), ApiKey.of("sk-team-b", tokens_per_minute=10_000)])
    """

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        """Hold keys.

        Args:
            keys: the keys.

        Raises:
            OptionError: a key is there twice.
        """
        self.keys = tuple(keys)
        if len({key.digest for key in self.keys}) != len(self.keys):
            raise OptionError("an API key is there twice")

    def __bool__(self) -> bool:
        """Whether there are keys."""
        return bool(self.keys)

    def find(self, presented: str) -> ApiKey | None:
        """The key that a client presents.

        Takes as long for a key that is nearly right as for one that is all wrong, and looks at all of them.

        Args:
            presented: what the client sent.

        Returns:
            The key; None if there is no such key.

        Example:
            >>> ring.find("sk-team-a").name
            'team a'
        """
        digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
        found: ApiKey | None = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read keys from a file: JSON, or lines.

        A line is a key, and perhaps its limits: `sk-team-a name=a requests_per_minute=60`; what follows a `#` that
        stands first is a comment. JSON is a list of objects that have the `key` and the attributes of `ApiKey`.

        Args:
            path: the file.

        Returns:
            The keys.

        Raises:
            OptionError: the file cannot be read, or says what no key has; no key is in the message.

        Example:
            >>> KeyRing.load("keys.txt")
        """
        try:
            text = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise OptionError(f"the file of API keys {path} cannot be read: {reason}") from None
        rows = _json_rows(text) if text.lstrip().startswith(("[", "{")) else _line_rows(text)
        keys = []
        for place, row in rows:
            try:
                key = row.pop("key", None)
                keys.append(ApiKey.of(key, **row))
            except (OptionError, TypeError) as error:
                raise OptionError(f"{path}, {place}: {error}") from None
        if not keys:
            raise OptionError(f"the file of API keys {path} has no key")
        return cls(keys)


def _json_rows(text: str) -> list[tuple[str, dict[str, Any]]]:
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        raise OptionError("the file of API keys begins like JSON, and is none") from None
    listed = listed.get("keys") if isinstance(listed, dict) else listed
    if not isinstance(listed, list) or not all(isinstance(row, dict) for row in listed):
        raise OptionError('the file of API keys is no list of objects, such as [{"key": "..."}]')
    return [(f"key {place}", dict(row)) for place, row in enumerate(listed, 1)]


def _line_rows(text: str) -> list[tuple[str, dict[str, Any]]]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        key, *limits = line.split()[:64] or [""]
        if not key or key.startswith("#"):
            continue
        row: dict[str, Any] = {"key": key}
        for limit in limits:
            name, equals, value = limit.partition("=")
            if not equals:
                raise OptionError(f"line {number} of the API keys: {limit!r} is not NAME=VALUE")
            row[name] = value if name in {"name", "scope"} else _number(value)
        rows.append((f"line {number}", row))
    return rows


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


class Bucket:
    """A token bucket: what comes in on average, with one minute's worth at once."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Make a full one.

        Args:
            per_minute: what comes in. Unit: per minute.
            clock: gives the time. Unit: seconds.
        """
        self._size, self._clock = per_minute, clock
        self._level, self._at = per_minute, clock()

    def _fill(self) -> float:
        now = self._clock()
        self._level = min(self._size, self._level + (now - self._at) * self._size / _MINUTE_S)
        self._at = now
        return self._level

    def wait_s(self, amount: float) -> float:
        """How long until so much is there; 0 if it is now. Unit: seconds."""
        missing = min(amount, self._size) - self._fill()
        return max(0.0, missing * _MINUTE_S / self._size)

    def take(self, amount: float) -> None:
        """Take so much, also what is not there yet."""
        self._level = self._fill() - amount


class Client:
    """Who sends requests: the holder of a key, or the anonymous one."""

    def __init__(
        self,
        key: ApiKey | None,
        *,
        shared: bool = False,
        trusted: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a client.

        Args:
            key: its key; None: it is anonymous.
            shared: whether all clients reuse what any of them has cached.
            trusted: whether it is the operator's own code, and chooses as callers of the engine do.
            clock: gives the time. Unit: seconds.
        """
        self.key = key
        self.name = "anonymous" if key is None else key.name
        self.priority = 0 if key is None else key.priority
        self.max_tokens = None if key is None else key.max_tokens
        self.n_active = 0
        self.is_trusted = trusted
        self._shared = shared
        self._requests = self._bucket("requests_per_minute", clock)
        self._tokens = self._bucket("tokens_per_minute", clock)

    def _bucket(self, name: str, clock: Callable[[], float]) -> Bucket | None:
        rate = None if self.key is None else getattr(self.key, name)
        return None if rate is None else Bucket(rate, clock)

    def scope(self, asked: str | int | None) -> Key | None:
        """The cache scope of a request; None is the engine's own.

        Args:
            asked: what the request named; it divides the client's own scope further, and never leaves it. Who is
                trusted has none of its own: what it names is the engine's scope of that name.
        """
        if self.is_trusted:
            return asked
        own: Key = _ANONYMOUS_SCOPE if self.key is None else self.key.cache_scope()
        if self._shared:
            own = _SHARED_SCOPE
        return own if asked is None else (own, asked)

    def flow(self) -> Key | None:
        """Whom its requests are served with; None leaves it to their cache scopes.

        It is the client itself, whatever its requests say: by many scopes nobody gets more than a client's share, and a
        cache that all share makes nobody wait for a flood.
        """
        if self.is_trusted:
            return None
        return _ANONYMOUS_SCOPE if self.key is None else self.key.cache_scope()

    def refusal(self) -> tuple[str, float] | None:
        """Why a request may not begin now, and after how many seconds it may; None if it may, and then it counts."""
        if self.key is not None and self.key.max_concurrent is not None and self.n_active >= self.key.max_concurrent:
            return f"this API key may have {self.key.max_concurrent} requests under way", 1.0
        if self._tokens is not None and (wait_s := self._tokens.wait_s(1.0)) > 0:
            return f"this API key has used its {self.key.tokens_per_minute:g} tokens per minute", wait_s  # type: ignore[union-attr]
        if self._requests is not None:
            if (wait_s := self._requests.wait_s(1.0)) > 0:
                return f"this API key has used its {self.key.requests_per_minute:g} requests per minute", wait_s  # type: ignore[union-attr]
            self._requests.take(1.0)
        return None

    @property
    def is_charged(self) -> bool:
        """Whether its tokens are counted."""
        return self._tokens is not None

    def charge(self, n_tokens: int) -> None:
        """Count tokens that were read or generated."""
        if self._tokens is not None:
            self._tokens.take(n_tokens)
