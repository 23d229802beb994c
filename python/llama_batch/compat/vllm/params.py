"""`SamplingParams`: how answers are drawn, with vLLM's defaults."""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from llama_batch.compat.arguments import check, renamed
from llama_batch.compat.vllm.arguments import SAMPLING, STRUCTURED
from llama_batch.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ENDLESS = 2_147_483_647
"""`max_tokens` that leaves the end to the context."""

MAX_LOGPROBS = 1000
"""So many of the likeliest tokens the engine tells of."""

_ORDER = ("penalties", "temperature", "min_p", "top_k", "top_p")
"""vLLM's order: what is cut off is cut off at the temperature that is drawn at."""


@dataclass
class StructuredOutputsParams:
    """What an answer must look like; one of the first five.

    Attributes:
        json: a JSON schema: a dict, or JSON text.
        regex: a regular expression that the whole answer matches.
        choice: texts of which the answer is one.
        grammar: a grammar in llama.cpp's language (GBNF).
        json_object: True for any JSON object.

    Example:
        >>> SamplingParams(structured_outputs=StructuredOutputsParams(choice=["Positive", "Negative"]))
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        """Refuse what is not supported, and all but one structure."""
        self.options()

    def options(self) -> dict[str, Any]:
        """The options of the engine.

        Raises:
            OptionError: there is not one structure, or it is not supported.
        """
        given = {field.name: getattr(self, field.name) for field in fields(StructuredOutputsParams)}
        check(type(self).__name__, STRUCTURED, given)
        wanted = {name: given[name] for name in ("json", "regex", "choice", "grammar") if given[name] is not None}
        if self.json_object:
            wanted["json_object"] = True
        if len(wanted) != 1:
            raise OptionError(f"{type(self).__name__}: give one of json, regex, choice, grammar and json_object=True")
        [(name, value)] = wanted.items()
        if name == "json_object":
            return {"json_schema": {"type": "object"}}
        return {"json_schema" if name == "json" else name: value}


class GuidedDecodingParams(StructuredOutputsParams):
    """The old name of `StructuredOutputsParams`."""


@dataclass
class SamplingParams:
    """How answers are drawn: vLLM's parameters, with vLLM's defaults.

    All of them, and what becomes of them, are listed in `docs/compat.md`. Some are read when a request is made: an
    option that is out of range may be told of then.

    Raises:
        OptionError: a parameter is wrong or not supported; the message says what to use instead.

    Example:
        >>> SamplingParams(temperature=0.8, top_p=0.95, max_tokens=100)
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: Sequence[int] | None = None
    prompt_logprob_start: int | None = None
    logprob_token_ids: Sequence[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: Any = 0
    stream_interval: int | None = None
    skip_clone: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    extra_args: Mapping[str, Any] | None = None
    bad_words: Sequence[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: Any = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: Sequence[int] | None = None
    truncate_prompt_tokens: int | None = None
    best_of: int | None = None
    guided_decoding: StructuredOutputsParams | None = None
    logits_processors: Any = None

    def __post_init__(self) -> None:
        """Refuse what is not supported."""
        self.options()

    @classmethod
    def from_optional(cls, **parameters: Any) -> SamplingParams:
        """Parameters of which None stands for the default.

        Args:
            parameters: by name.

        Returns:
            The parameters.

        Raises:
            OptionError: one is wrong or not supported.

        Example:
            >>> SamplingParams.from_optional(temperature=None, top_p=0.9)
        """
        check("SamplingParams", SAMPLING, parameters)
        return cls(**{name: value for name, value in parameters.items() if value is not None or name == "max_tokens"})

    def clone(self) -> SamplingParams:
        """A copy."""
        return copy.copy(self)

    def options(self, n_vocab: int | None = None) -> dict[str, Any]:
        """The options of the engine.

        Args:
            n_vocab: tokens of the vocabulary, which say whether all of them can be told of.

        Returns:
            Options of `Engine.generate`.

        Raises:
            OptionError: a parameter is wrong or not supported.

        Example:
            >>> SamplingParams(temperature=0).options()["temp"]
            0
        """
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        check("SamplingParams", SAMPLING, given)
        options = renamed(SAMPLING, given)
        options["samplers"] = _ORDER
        options["penalty_last_n"] = -1
        options["top_k"] = 0 if self.top_k == -1 else self.top_k
        options["max_tokens"] = ENDLESS if self.max_tokens is None else self.max_tokens
        options["stall_timeout"] = None
        for name in ("stop", "stop_token_ids", "logit_bias", "allowed_token_ids", "bad_words"):
            if given[name] is not None and (not hasattr(given[name], "__len__") or len(given[name])):
                options[name] = given[name]
        if self.seed is not None and self.seed != -1:
            options["seed"] = self.seed
        for name in ("logprobs", "prompt_logprobs"):
            if given[name] is not None:
                options[name] = _n_logprobs(name, given[name], n_vocab)
        if self.skip_reading_prefix_cache:
            options["cache_prompt"] = False
        return options | self._structure()

    def _structure(self) -> dict[str, Any]:
        given = {name: value for name in ("structured_outputs", "guided_decoding") if (value := getattr(self, name))}
        if len(given) > 1:
            raise OptionError("SamplingParams: give structured_outputs or guided_decoding, not both")
        for name, value in given.items():
            if not isinstance(value, StructuredOutputsParams):
                raise OptionError(f"{name} must be StructuredOutputsParams, not {type(value).__name__}")
            return value.options()
        return {}


def _n_logprobs(name: str, wanted: Any, n_vocab: int | None) -> Any:
    """How many tokens to tell of; -1 stands for all."""
    if wanted != -1:
        return wanted
    if n_vocab is None:
        return 0
    if n_vocab > MAX_LOGPROBS:
        raise OptionError(f"SamplingParams: {name}=-1 is not supported for {n_vocab} tokens: up to {MAX_LOGPROBS} are")
    return n_vocab
