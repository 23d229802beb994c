"""The class `LLM`."""

from __future__ import annotations

import random
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_batch.compat.arguments import check, renamed
from llama_batch.compat.base import OverEngine
from llama_batch.compat.embeddings import embedded
from llama_batch.compat.vllm.arguments import CHAT, GENERATE, METHODS
from llama_batch.compat.vllm.arguments import LLM as ARGUMENTS
from llama_batch.compat.vllm.outputs import EmbeddingOutput, EmbeddingRequestOutput, RequestOutput, request_output
from llama_batch.compat.vllm.params import SamplingParams
from llama_batch.compat.vllm.prompts import Prompt, each_conversation, each_prompt, fitted, ready
from llama_batch.compat.vllm.tokenizer import Tokenizer
from llama_batch.engine import Engine
from llama_batch.errors import OptionError
from llama_batch.mapping import Map

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from llama_batch.generation import Generation
    from llama_batch.types import Completion, ModelSource

N_PARALLEL = 16
"""Requests that run at once, where `max_num_seqs` does not say."""

N_CTX = 8192
"""The KV cache at least. Unit: tokens."""

_REPOSITORY = re.compile(r"[\w.\-]+/[\w.\-]+(?::[\w.\-]+)?")


class LLM(OverEngine):
    """vLLM's class, over an engine: its arguments, its defaults, its outputs.

    Any number of threads may call it at once. All arguments, and what becomes of them, are listed in `docs/compat.md`.
    `LLM.engine` is the engine beneath, for all that the original has no words for. One that nobody holds closes.

    Example:
        >>> llm = LLM(model="model.gguf")
        >>> for output in llm.generate(["Hello, my name is", "The future of AI is"], SamplingParams(max_tokens=20)):
        ...     print(output.prompt, output.outputs[0].text)
    """

    _instead = ("LLM", METHODS)

    def __init__(
        self,
        model: ModelSource,
        *,
        runner: str = "auto",
        convert: str = "auto",
        task: str = "auto",
        tokenizer: str | None = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        quantization: str | None = None,
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        chat_template: str | None = None,
        seed: int | None = 0,
        gpu_memory_utilization: float = 0.92,
        swap_space: float = 4,
        cpu_offload_gb: float = 0,
        enforce_eager: bool = False,
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        enable_prefix_caching: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """Load a model.

        `kwargs` are further arguments of vLLM, or start options of `Engine`, such as `n_ctx` and `n_gpu_layers`.

        Raises:
            OptionError: an argument is wrong or not supported; the message says what to use instead.
            ModelNotFoundError: there is no such model.
            ModelLoadError: it could not be loaded.
        """
        named = {name: value for name, value in locals().items() if name not in {"self", "kwargs"}}
        theirs = {name: value for name, value in kwargs.items() if name in ARGUMENTS}
        ours = {name: value for name, value in kwargs.items() if name not in ARGUMENTS}
        check("LLM", ARGUMENTS, named | theirs)
        for name in ("seed", "max_model_len"):
            value = named[name]
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise OptionError(f"LLM: {name} must be a whole number, not {value!r}")
        options = {"n_parallel": N_PARALLEL, "max_queue": 0, "n_ctx": max(max_model_len or 0, N_CTX)}
        self._limit = max_model_len or None
        self._chat_template = chat_template
        self._lock = threading.Lock()
        self._random = None if seed is None else random.Random(seed)  # noqa: S311 - seeds of draws are no secrets
        self._n_requests = 0
        self.engine = Engine(_source(model), **{**options, **renamed(ARGUMENTS, named), **ours})
        self.engine.wait_ready()

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: Any = None,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        prompt_token_ids: Any = None,
    ) -> list[RequestOutput]:
        """Answer prompts, all of them together.

        Args:
            prompts: text, token ids, a `TextPrompt`, a `TokensPrompt`, or a list of them.
            sampling_params: how answers are drawn: one for all, or one for each prompt.
            use_tqdm: show a progress bar; or what makes one, called as tqdm is.
            lora_request: refused.
            priority: who goes first: a number for each prompt, the lower the sooner.
            tokenization_kwargs: refused.
            prompt_token_ids: refused; see `prompts`.

        Returns:
            An output for each prompt, in order.

        Raises:
            OptionError: an argument is wrong or not supported; the message says what to use instead.
            LlamaBatchError: a request failed; the others are cancelled.

        Example:
            >>> llm.generate("Hello, my name is", SamplingParams(temperature=0))[0].outputs[0].text
        """
        given = {name: value for name, value in locals().items() if name != "self"}
        check("LLM.generate", GENERATE, given)
        model = self.engine.model
        each = each_prompt(prompts)
        params = _params_for(len(each), sampling_params)
        if priority is not None and len(priority) != len(each):
            raise OptionError(f"LLM.generate: {len(priority)} priorities are given for {len(each)} prompts")
        jobs = []
        for place, (prompt, how) in enumerate(zip(each, params, strict=True)):
            options = how.options(model.n_vocab)
            made = fitted(ready(prompt, model), how, options, self._limit)
            options |= made.options
            if priority is not None:
                options["priority"] = priority[place]
            jobs.append((made, how, options, None))
        return self._run(jobs, use_tqdm)

    def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: Any = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations, all of them together.

        Args:
            messages: a list of messages, or a list of such lists.
            sampling_params: how answers are drawn: one for all, or one for each conversation.
            use_tqdm: show a progress bar; or what makes one, called as tqdm is.
            lora_request: refused.
            chat_template: a template in the place of the model's own: its text, or the path of a file.
            chat_template_content_format: has no meaning here.
            add_generation_prompt: end the prompt with what begins the answer.
            continue_final_message: go on with the last message, which is an answer's beginning.
            tools: functions that the answer may call, as OpenAI's API has them.
            chat_template_kwargs: what else the template is told.
            tokenization_kwargs: refused.
            mm_processor_kwargs: refused.

        Returns:
            An output for each conversation, in order; `text` is as the model wrote it, calls of functions included.

        Raises:
            OptionError: an argument is wrong or not supported; the message says what to use instead.
            ChatTemplateError: the model has no template, or the messages do not suit it.
            LlamaBatchError: a request failed; the others are cancelled.

        Example:
            >>> llm.chat([{"role": "user", "content": "Hello"}])[0].outputs[0].text
        """
        given = {name: value for name, value in locals().items() if name != "self"}
        check("LLM.chat", CHAT, given)
        model = self.engine.model
        each = each_conversation(messages)
        asked: dict[str, Any] = {"chat_template": chat_template or self._chat_template, "tools": tools}
        asked |= {"chat_template_kwargs": chat_template_kwargs}
        asked |= {"add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message}
        jobs = []
        for talk, how in zip(each, _params_for(len(each), sampling_params), strict=True):
            options = how.options(model.n_vocab)
            if how.truncate_prompt_tokens is not None:
                raise OptionError("LLM.chat: truncate_prompt_tokens is not supported: leave messages out")
            text = model.apply_chat_template(talk, **asked)
            made = fitted(Prompt(text, model.tokenize(text), {}), how, options, self._limit)
            jobs.append((made, how, {**options, **asked, "reasoning_format": "none"}, talk))
        return self._run(jobs, use_tqdm)

    def embed(
        self,
        prompts: Any,
        *,
        use_tqdm: bool | Callable[..., Any] = True,  # noqa: ARG002 - vectors come all at once
        pooling_params: Any = None,
        lora_request: Any = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Turn texts into vectors of length 1.

        Args:
            prompts: as `generate` takes them.
            use_tqdm: has no meaning here.
            pooling_params: refused; see `Engine.embed`.
            lora_request: refused.
            tokenization_kwargs: refused.

        Returns:
            An output for each text, in order.

        Example:
            >>> llm.embed("Hello")[0].outputs.embedding
        """
        if pooling_params is not None:
            raise OptionError("LLM.embed: pooling_params is not supported: use `pooling=` of `Engine.embed`")
        check("LLM.embed", GENERATE, {"lora_request": lora_request, "tokenization_kwargs": tokenization_kwargs})
        each = [ready(prompt, self.engine.model) for prompt in each_prompt(prompts)]
        vectors, _ = embedded(self.engine, [prompt.token_ids for prompt in each], normalize=True)
        return [
            EmbeddingRequestOutput(self._next_id(), EmbeddingOutput(vector), prompt.token_ids)
            for prompt, vector in zip(each, vectors, strict=True)
        ]

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Example:
            >>> llm.get_tokenizer().encode("Hello")
        """
        return Tokenizer(self.engine.model, self._chat_template)

    def get_default_sampling_params(self) -> SamplingParams:
        """What `sampling_params=None` stands for."""
        return SamplingParams()

    def _next_id(self) -> str:
        with self._lock:
            self._n_requests += 1
            return str(self._n_requests - 1)

    def _run(self, jobs: list[Any], use_tqdm: bool | Callable[..., Any]) -> list[RequestOutput]:
        """Submit all, a window of them at a time, and wait for them."""
        with self._lock:
            for _, _, options, _ in jobs:
                # Equal prompts are to get different answers, and the same ones in each run of the program.
                if self._random is not None and "seed" not in options:
                    options["seed"] = self._random.getrandbits(32)
        bar = use_tqdm(total=len(jobs), desc="Processed prompts") if callable(use_tqdm) else None
        done: list[Completion[Any]] = []
        run: Map[Any] = Map(
            self._submit,
            jobs,
            capacity=self.engine.native.capacity,
            ordered=True,
            on_error="raise",
            progress=use_tqdm is True,
        )
        try:
            for completion in run:
                done.append(completion)
                if bar is not None:
                    bar.update(1)
        finally:
            run.close()
            if bar is not None:
                bar.close()
        model = self.engine.model
        return [
            request_output(self._next_id(), prompt.text, prompt.token_ids, completion, how, model)
            for (prompt, how, _, _), completion in zip(jobs, done, strict=True)
        ]

    def _submit(self, job: Any) -> Generation[Any]:
        prompt, _, options, talk = job
        if talk is None:
            return self.engine.generate(prompt.token_ids, **options)
        return self.engine.chat(talk, **options)


def _source(model: ModelSource) -> ModelSource:
    """A model as the engine takes it: what looks like a repository of Hugging Face is one, unless it is a file."""
    if isinstance(model, str) and _REPOSITORY.fullmatch(model) and not model.lower().endswith(".gguf"):
        return model if Path(model).exists() else f"hf:{model}"
    return model


def _params_for(count: int, given: Any) -> list[SamplingParams]:
    """Parameters for each of several prompts."""
    if given is None:
        return [SamplingParams()] * count
    if isinstance(given, SamplingParams):
        return [given] * count
    if not isinstance(given, list | tuple) or not all(isinstance(each, SamplingParams) for each in given):
        raise OptionError("sampling_params must be SamplingParams, or a list of them")
    if len(given) != count:
        raise OptionError(f"{len(given)} sampling_params are given for {count} prompts")
    return list(given)
