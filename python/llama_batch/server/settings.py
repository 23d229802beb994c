"""What the operator of a server decides."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self, get_args

from llama_batch.errors import OptionError
from llama_batch.server.keys import KeyRing, is_number

CacheScope = Literal["key", "shared"]

_COUNTS = (
    "max_body_bytes",
    "max_prompt_length",
    "max_messages",
    "max_choices",
    "max_texts",
    "max_schema_bytes",
    "max_stop",
    "max_stop_length",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Names, keys and limits of a server.

    Attributes:
        model_name: what the model is called in answers; None takes the engine's name.
        strict_model: whether a request that names another model is a 404; otherwise `model` is echoed.
        keys: who may come in; none means everybody.
        cache_scope: "key" keeps what one API key has cached from all others, "shared" lets all reuse all.
        max_tokens: tokens generated at most for one answer; None leaves it to the context.
        max_body_bytes: the size of a request's body. Unit: bytes.
        body_timeout_s: the time in which it must come. Unit: seconds.
        max_prompt_length: the length of one prompt. Unit: characters of text, or token ids.
        max_messages: messages of one chat; rendering them takes about a quarter of a millisecond each.
        max_choices: answers to one request: its prompts times `n`, or `best_of`.
        max_texts: texts of one request for embeddings.
        max_schema_bytes: the size of a schema, grammar, regular expression or set of tools. Unit: bytes.
        max_stop: stop strings of one request, and texts of any other list.
        max_stop_length: the length of each. Unit: characters.
        allowed_hosts: the hosts that `Host` may name, against DNS rebinding; empty accepts any.
        cors_origins: the origins whose pages may read answers; empty switches CORS off.
        ping_s: the silence after which a stream sends a keep-alive comment; 0 never does. Unit: seconds.
        trust_callers: whether who has no API key is the operator's own code, which chooses cache scopes and priorities
            as callers of the engine do; for applications that no port leads to.
        trust_chat_template: whether requests may bring a chat template of their own.
        log_prompts: whether the log may hold what was asked.
    """

    model_name: str | None = None
    strict_model: bool = False
    keys: KeyRing = field(default_factory=KeyRing)
    cache_scope: CacheScope = "key"
    max_tokens: int | None = None
    max_body_bytes: int = 8 << 20
    body_timeout_s: float = 60.0
    max_prompt_length: int = 4 << 20
    max_messages: int = 4096
    max_choices: int = 128
    max_texts: int = 2048
    max_schema_bytes: int = 64 << 10
    max_stop: int = 64
    max_stop_length: int = 1024
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    ping_s: float = 15.0
    trust_callers: bool = False
    trust_chat_template: bool = False
    log_prompts: bool = False

    def __post_init__(self) -> None:
        for name in _COUNTS:
            count = getattr(self, name)
            if not is_number(count, whole=True) or count < 1:
                raise OptionError(f"{name} must be a whole number of at least 1, not {count!r}")
        if self.max_tokens is not None and (not is_number(self.max_tokens, whole=True) or self.max_tokens < 1):
            raise OptionError(f"max_tokens must be a whole number of at least 1, not {self.max_tokens!r}")
        if self.cache_scope not in get_args(CacheScope):
            raise OptionError(f'cache_scope must be "key" or "shared", not {self.cache_scope!r}')
        for name, least in (("ping_s", 0.0), ("body_timeout_s", 0.01)):
            seconds = getattr(self, name)
            if not is_number(seconds, whole=False) or seconds < least:
                raise OptionError(f"{name} must be a number of at least {least:g}, not {seconds!r}")
        if not isinstance(self.keys, KeyRing):
            raise OptionError(f"keys must be a KeyRing, not {type(self.keys).__name__}")
        for name in ("allowed_hosts", "cors_origins"):
            listed = getattr(self, name)
            if isinstance(listed, str) or not all(isinstance(item, str) for item in listed):
                raise OptionError(f"{name} must be a list of texts, not {listed!r}")

    def changed(self, **changes: Any) -> Self:
        """The same with other values.

        Args:
            changes: fields and their values.

        Returns:
            New settings.

        Raises:
            OptionError: there is no such field, or it cannot have such a value.

        Example:
            >>> Settings().changed(max_tokens=100).max_tokens
            100
        """
        known = [each.name for each in fields(self)]
        for name in changes:
            if name not in known:
                from difflib import get_close_matches

                near = get_close_matches(name, known, n=1)
                raise OptionError(f"unknown setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return replace(self, **changes)
