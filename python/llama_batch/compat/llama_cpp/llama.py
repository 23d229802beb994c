"""The class `Llama`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Self

from llama_batch.compat.arguments import check
from llama_batch.compat.base import OverEngine
from llama_batch.compat.llama_cpp import answers
from llama_batch.compat.llama_cpp.arguments import CHAT, COMPLETION, FROM_PRETRAINED, LLAMA, METHODS, RANDOM_SEED
from llama_batch.compat.llama_cpp.formats import chat_format as format_of
from llama_batch.compat.llama_cpp.options import request_options, response_format, start_options, tool_options
from llama_batch.compat.llama_cpp.tokens import TokensApi
from llama_batch.engine import Engine
from llama_batch.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_batch.types import Message, ModelSource


class Llama(OverEngine, TokensApi):
    """llama-cpp-python's class, over an engine: its arguments, its defaults, its dicts.

    Any number of threads may call it at once. All arguments, and what becomes of them, are listed in `docs/compat.md`.
    `Llama.engine` is the engine beneath, for all that the original has no words for. One that nobody holds closes.

    Example:
        >>> llm = Llama(model_path="model.gguf", n_ctx=2048)
        >>> llm("Q: Name the planets. A:", max_tokens=32, stop=["Q:"])["choices"][0]["text"]
    """

    _instead = ("Llama", METHODS)

    def __init__(
        self,
        model_path: ModelSource,
        *,
        n_gpu_layers: int = 0,
        split_mode: int = 1,
        main_gpu: int = 0,
        tensor_split: Sequence[float] | None = None,
        vocab_only: bool = False,
        use_mmap: bool = True,
        use_mlock: bool = False,
        kv_overrides: Mapping[str, Any] | None = None,
        seed: int = RANDOM_SEED,
        n_ctx: int = 512,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        rope_scaling_type: int | None = -1,
        pooling_type: int = -1,
        attention_type: int = -1,
        rope_freq_base: float = 0.0,
        rope_freq_scale: float = 0.0,
        yarn_ext_factor: float = -1.0,
        yarn_attn_factor: float = 1.0,
        yarn_beta_fast: float = 32.0,
        yarn_beta_slow: float = 1.0,
        yarn_orig_ctx: int = 0,
        logits_all: bool = False,
        embedding: bool = False,
        offload_kqv: bool = True,
        flash_attn: bool = False,
        op_offload: bool | None = None,
        swa_full: bool | None = None,
        no_perf: bool = False,
        last_n_tokens_size: int = 64,
        lora_base: str | None = None,
        lora_scale: float = 1.0,
        lora_path: str | None = None,
        numa: bool | int = False,
        chat_format: str | None = None,
        chat_handler: Any = None,
        draft_model: Any = None,
        tokenizer: Any = None,
        type_k: int | None = None,
        type_v: int | None = None,
        spm_infill: bool = False,
        verbose: bool = True,
        **options: Any,
    ) -> None:
        """Load a model. `options` are further start options of `Engine`, such as `n_parallel`.

        Raises:
            OptionError: an argument is wrong or not supported; the message says what to use instead.
            ModelNotFoundError: there is no such model.
            ModelLoadError: it could not be loaded.
        """
        given = {name: value for name, value in locals().items() if name not in {"self", "options"}}
        check("Llama", LLAMA, given)
        self._template: str | None = None
        self._stops: tuple[str, ...] = ()
        if chat_format is not None:
            self._template, self._stops = format_of(chat_format)
        self.model_path = str(model_path)
        self.chat_format, self.verbose = chat_format, verbose
        self._n_ctx = n_ctx
        self._seed: int | None = None
        self.engine = Engine(model_path, **{**start_options(given), **options})
        self.engine.wait_ready()
        if chat_format is None and self.engine.model.metadata and self.engine.model.chat_template is None:
            self._template, self._stops = format_of("llama-2")  # as the original does

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None,
        additional_files: Sequence[str] | None = None,
        local_dir: str | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | None = None,
        **kwargs: Any,
    ) -> Self:
        """Load a model from Hugging Face; what is in its cache already is not fetched again.

        Args:
            repo_id: the repository.
            filename: a file's name, or a pattern such as "*q8_0.gguf", which one model matches.
            additional_files: refused; all parts of a split model are fetched.
            local_dir: refused; see `HF_HUB_CACHE`.
            local_dir_use_symlinks: refused.
            cache_dir: refused; see `HF_HUB_CACHE`.
            **kwargs: arguments of `Llama`.

        Returns:
            The model, loaded.

        Raises:
            OptionError: no model matches, or several do; or an argument is not supported.
            ModelNotFoundError: it cannot be fetched.

        Example:
            >>> llm = Llama.from_pretrained("Qwen/Qwen2-0.5B-Instruct-GGUF", "*q8_0.gguf", verbose=False)
        """
        given = {name: value for name, value in locals().items() if name not in {"cls", "kwargs"}}
        check("Llama.from_pretrained", FROM_PRETRAINED, given)
        if not all(isinstance(given[name], str) for name in ("repo_id", "filename")):
            raise OptionError("Llama.from_pretrained: repo_id and filename must be text")
        from llama_batch.compat.llama_cpp.hub import matching_file

        return cls(f"hf:{repo_id}:{matching_file(repo_id, str(filename))}", **kwargs)

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | Sequence[str] | None = (),
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: Any = None,
        logits_processor: Any = None,
        grammar: Any = None,
        logit_bias: Mapping[Any, float] | None = None,
    ) -> Any:
        """Complete a text.

        Returns:
            A dict of the shape `text_completion`; with `stream`, an iterator of such dicts. Leaving it cancels the
            request.

        Raises:
            OptionError: an argument is wrong or not supported; the message says what to use instead.
            LlamaBatchError: the request failed.

        Example:
            >>> for chunk in llm.create_completion("Once upon a time", max_tokens=100, stream=True):
            ...     print(chunk["choices"][0]["text"], end="")
        """
        given = {name: value for name, value in locals().items() if name != "self"}
        check("create_completion", COMPLETION, given)
        options = self._seeded(request_options(COMPLETION, given))
        if echo and logprobs is not None:
            if stream:
                raise OptionError("create_completion: echo with logprobs is not streamed: leave one of them out")
            options["prompt_logprobs"] = logprobs
        filled = None if suffix is None else self._filled(prompt, suffix)
        asked = answers.Asked.now(
            "cmpl",
            self._name(model),
            echo=self._echoed(prompt) if echo else "",
            suffix="" if suffix is None or filled is not None else suffix,
        )
        ready = prompt if filled is None else filled
        if stream:
            return answers.text_chunks(asked, self.engine.stream(ready, **options))
        return answers.text_completion(asked, self.engine.generate(ready, **options).result())

    __call__ = create_completion

    def create_chat_completion(
        self,
        messages: Sequence[Message],
        functions: Sequence[Mapping[str, Any]] | None = None,
        function_call: str | Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | Sequence[str] | None = (),
        seed: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: Any = None,
        grammar: Any = None,
        logit_bias: Mapping[Any, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
    ) -> Any:
        """Answer a chat.

        Returns:
            A dict of the shape `chat.completion`; with `stream`, an iterator of `chat.completion.chunk`. Leaving it
            cancels the request.

        Raises:
            OptionError: an argument is wrong or not supported; the message says what to use instead.
            LlamaBatchError: the request failed.

        Example:
            >>> messages = [{"role": "user", "content": "Why is the sky blue?"}]
            >>> llm.create_chat_completion(messages)["choices"][0]["message"]["content"]
        """
        given = {name: value for name, value in locals().items() if name != "self"}
        check("create_chat_completion", CHAT, given)
        options = self._seeded(request_options(CHAT, given))
        options |= self._chat_options(given, options)
        asked = answers.Asked.now("chatcmpl", self._name(model), functions=functions is not None)
        generation = self.engine.chat(messages, **options)
        if stream:
            return answers.chat_chunks(asked, generation)
        return answers.chat_completion(asked, generation.result())

    def create_chat_completion_openai_v1(self, *args: Any, **kwargs: Any) -> Any:
        """Answer a chat with objects of the package `openai` in the place of dicts.

        Args:
            *args: of `create_chat_completion`.
            **kwargs: of `create_chat_completion`.

        Returns:
            A `ChatCompletion`; with `stream`, an iterator of `ChatCompletionChunk`.

        Raises:
            ImportError: `openai` is not installed.

        Example:
            >>> llm.create_chat_completion_openai_v1(messages).choices[0].message.content
        """
        types = importlib.import_module("openai.types.chat")
        made = self.create_chat_completion(*args, **kwargs)
        if isinstance(made, dict):
            return types.ChatCompletion(**made)
        return (types.ChatCompletionChunk(**chunk) for chunk in made)

    def set_seed(self, seed: int) -> None:
        """Set the seed of calls that have none of their own.

        Args:
            seed: the seed.

        Example:
            >>> llm.set_seed(1337)
        """
        self._seed = seed

    def reset(self) -> None:
        """Does nothing: a call leaves no state behind but cached prefixes, which change no answer."""

    def __repr__(self) -> str:
        """The model's name and state."""
        return f"<Llama {self.model_path!r} {self.engine.state}>"

    def _name(self, model: str | None) -> str:
        return self.model_path if model is None else model

    def _seeded(self, options: dict[str, Any]) -> dict[str, Any]:
        return options if self._seed is None else {"seed": self._seed, **options}

    def _chat_options(self, given: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """What a chat asks for beyond what a completion does."""
        made = tool_options(given)
        shape = response_format(given["response_format"])
        if shape and given["grammar"] is not None:
            raise OptionError("create_chat_completion: give response_format or grammar, not both")
        made |= shape
        if given["logprobs"]:
            made["logprobs"] = given["top_logprobs"] or 0
        elif given["top_logprobs"] is not None:
            raise OptionError("create_chat_completion: top_logprobs goes with logprobs=True")
        if self._template is not None:
            made["chat_template"] = self._template
            stop = options.get("stop", ())
            made["stop"] = [*([stop] if isinstance(stop, str) else stop), *self._stops]
        return {**made, "reasoning_format": "none"}
