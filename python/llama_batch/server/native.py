"""llama-server's `/completion`."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from llama_batch import openai_shapes as shapes
from llama_batch.server.asking import beside, check_limits, check_model, check_prompt, first_given, options_of
from llama_batch.server.chat import ping_s, telling_progress
from llama_batch.server.completions import submit_all, together
from llama_batch.server.failures import HttpError, not_served
from llama_batch.server.sse import SseStream, event, text_event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_batch.generation import Generation
    from llama_batch.logprobs import Logprob, TokenLogprobs
    from llama_batch.model import Model
    from llama_batch.server.requests import NativeRequest
    from llama_batch.server.service import Call
    from llama_batch.types import Completion

_STOP_TYPES = {"eog": "eos", "stop": "word", "max_tokens": "limit", "context_full": "limit"}


async def completion(call: Call, request: NativeRequest) -> Any:
    """Go on with a prompt, or with several."""
    call.prompt_field = "prompt"
    name = check_model(call, request.model)
    given = _prompts(request.prompt)
    prompts = await beside(call, lambda: [_prompt(call, each, place) for place, each in enumerate(given)])
    if request.prompt_logprobs is not None:
        raise not_served("prompt_logprobs", "/v1/completions serves it")
    options = options_of(call, request, first_given(request, "n_predict", "max_tokens"))
    if (n := first_given(request, "n", "n_cmpl")) is not None:
        options["n"] = n
    if n_probs := first_given(request, "n_probs", "logprobs"):
        options["logprobs"] = n_probs
    check_limits(call, options, len(prompts))
    if call.service.settings.log_prompts:
        call.facts["prompt"] = prompts
    shape = _Shape(name, request, options)
    with contextlib.ExitStack() as stack:
        stack.enter_context(call.service.admitted(call.client))
        if request.return_progress:
            stack.enter_context(call.service.progress.following())
        generations = await submit_all(call, prompts, options)
        if not request.stream:
            done = await call.completions(generations)
            choices = [choice for each in done for choice in each.choices]
            made = [shape.whole(i, choice, prompts[i // len(done[0].choices)]) for i, choice in enumerate(choices)]
            return made[0] if len(made) == 1 else made
        out = SseStream(call, ping_s(request.sse_ping_interval))
        async with out.carrying(generations):
            following = [
                _follow(call, out, shape, generation, first=place * options.get("n", 1), prompt=prompts[place])
                for place, generation in enumerate(generations)
            ]
            done = await together(following)
            if not call.is_gone:
                call.told(done)
    return None


async def _follow(
    call: Call, out: SseStream, shape: _Shape, generation: Generation, *, first: int, prompt: str | list[int]
) -> Completion:
    """Send one prompt's answers as they are made."""
    n_so_far: dict[int, int] = {}

    def telling(read: dict[str, Any]) -> dict[str, Any]:
        return {**shape.piece(first, "", (), 0), "prompt_progress": read}

    wanted = bool(shape.request.return_progress)
    plain = {}
    async with telling_progress(call, generation, out, telling, wanted=wanted) as told_all:
        async for piece in generation:
            await told_all()
            index = first + piece.choice
            n = n_so_far[index] = n_so_far.get(index, 0) + len(piece.token_ids)
            if piece.logprobs is None and not shape.tells_tokens:
                if index not in plain:
                    plain[index] = text_event(partial(shape.plain, index))
                await out.write(plain[index](piece))
            else:
                await out.write(event(shape.piece(index, piece, piece.token_ids, n, piece.logprobs)))
    done = await generation
    if not call.is_gone:
        ends = [shape.whole(first + i, choice, prompt) for i, choice in enumerate(done.choices)]
        sent = {"content": "", "tokens": []}
        await out.write(b"".join(event({name: sent.get(name, end[name]) for name in end}) for end in ends))
    return done


def _prompts(given: Any) -> list[Any]:
    """Each prompt alone: a list that holds a token id is one prompt."""
    if isinstance(given, list) and not any(isinstance(each, int) for each in given):
        if not given:
            raise HttpError(400, "'prompt' is an empty list", code="empty_prompt", param="prompt")
        return given
    return [given]


def _prompt(call: Call, given: Any, place: int) -> str | list[int]:
    """One prompt as the engine takes it."""
    if isinstance(given, dict) and isinstance(given.get("prompt_string"), str):
        if given.get("multimodal_data"):
            raise not_served("prompt.multimodal_data", "prompts are text or tokens")
        given = given["prompt_string"]
    if isinstance(given, str) or (isinstance(given, list) and all(type(each) is int for each in given)):
        check_prompt(call, given, "prompt")
        return given
    if not isinstance(given, list) or not all(type(each) in {int, str} for each in given):
        name = f"prompt.{place}"
        message = f"{name!r} must be text, or a list of token ids and texts"
        raise HttpError(400, message, code="invalid_value", param=name)
    if sum(len(each) if isinstance(each, str) else 1 for each in given) > call.service.settings.max_prompt_length:
        check_prompt(call, [0] * (call.service.settings.max_prompt_length + 1), "prompt")
    return _mixed(call.service.engine.model, given)


def _mixed(model: Model, parts: Sequence[int | str]) -> list[int]:
    """Token ids of a prompt in which ids and texts are mixed; BOS comes before text that comes first."""
    tokens: list[int] = []
    for place, part in enumerate(parts):
        tokens += [part] if isinstance(part, int) else model.tokenize(part, add_special=place == 0)
    return tokens


class _Shape:
    """llama-server's shapes."""

    def __init__(self, model_name: str, request: NativeRequest, options: dict[str, Any]) -> None:
        self.model_name, self.request = model_name, request
        self.tells_tokens = bool(request.return_tokens)
        self._post = bool(options.get("post_sampling_probs") or options.get("post_sampling_logprobs"))
        # The scopes are between the key and the engine.
        hidden = {"cache_scope", "fair_scope", "json_schema"}
        self._settings = {key: value for key, value in options.items() if key not in hidden}

    def piece(
        self,
        index: int,
        text: str,
        tokens: Sequence[int],
        n_predicted: int | None,
        logprobs: Sequence[TokenLogprobs] | None = None,
    ) -> dict[str, Any]:
        """A part of an answer."""
        made: dict[str, Any] = {"index": index, "content": text, "stop": False, "id_slot": -1}
        if self.tells_tokens:
            made["tokens"] = list(tokens)
        if n_predicted is not None:
            made["tokens_predicted"] = n_predicted
        if logprobs is not None:
            made["completion_probabilities"] = self._probabilities(logprobs)
        return made

    def plain(self, index: int, text: str) -> dict[str, Any]:
        """A part of an answer that is nothing but text."""
        return self.piece(index, text, (), None)

    def whole(self, index: int, done: Completion, prompt: str | list[int]) -> dict[str, Any]:
        """A whole answer; of its members those that were asked for."""
        used = done.usage
        made: dict[str, Any] = {
            "index": index,
            "content": done.text,
            "tokens": list(done.token_ids) if self.tells_tokens else [],
            "id_slot": -1,
            "stop": True,
            "model": self.model_name,
            "tokens_predicted": used.generated_tokens,
            "tokens_evaluated": used.prompt_tokens,
            "generation_settings": {**self._settings, "seed": done.seed, "stream": bool(self.request.stream)},
            "prompt": prompt,
            "has_new_line": "\n" in done.text,
            "truncated": False,
            "stop_type": _STOP_TYPES.get(done.finish_reason, "none"),
            "stopping_word": done.stop_reason if isinstance(done.stop_reason, str) else "",
            "tokens_cached": used.prompt_tokens + used.generated_tokens,
            "timings": shapes.timings(done),
        }
        if done.logprobs is not None:
            made["completion_probabilities"] = self._probabilities(done.logprobs)
        return _picked(made, self.request.response_fields) if self.request.response_fields else made

    def _probabilities(self, logprobs: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
        top = "top_probs" if self._post else "top_logprobs"
        return [{**self._token(each), top: [self._token(other) for other in each.top]} for each in logprobs]

    def _token(self, told: TokenLogprobs | Logprob) -> dict[str, Any]:
        known = {"id": told.token_id, "token": told.text, "bytes": list(told.bytes)}
        if self._post:
            return {**known, "prob": told.probability}
        return {**known, "logprob": max(told.logprob, -9999.0)}


def _picked(made: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """The members that are wanted, as llama-server has it: `a/b` comes as a member of that name."""
    picked: dict[str, Any] = {}
    for path in paths:
        value: Any = made
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            picked[path.rpartition("/")[2]] = value
    return picked
