"""The methods of the engine that take options, for tools/gen_options.py: all of them but the options themselves."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """A method of the generated class.

    Attributes:
        name: its name.
        head: its own parameters, each as an annotation with its default.
        returns: its return type.
        table: the option table that its keywords come from.
        summary: the docstring up to the arguments.
        args: the documentation of its own parameters.
        tail: the docstring after the arguments.
        call: the statement that hands the options on.
    """

    name: str
    head: tuple[str, ...]
    returns: str
    table: str
    summary: str
    args: tuple[str, ...]
    tail: str
    call: str


RAISES = """
Raises:
    OptionError: an option is unknown, of the wrong type, or out of range. Every other error comes from the
        generation: see `llama_batch.errors`.
"""
PROMPT_ARG = "prompt: text (BOS as the vocabulary says, special tokens parsed) or token ids."
EMBED_ARG = (
    "input: one text or several, each text (BOS and EOS as the vocabulary says, special tokens parsed) or token ids."
)
CHAT_ARG = 'messages: text, or a list of messages such as `{"role": "user", "content": "..."}`.'
MODEL_ARG = (
    "model: the path of a GGUF file, or a URI: `pypi:`, `hf:owner/repo[:quant]`, `ollama:name`, or `sim:` for a "
    "simulated model. None takes the default model."
)
MAP_ITEM = "Prompt | Sequence[Message]"
MAP_HEAD = (f"prompts: Iterable[{MAP_ITEM}] | AsyncIterable[{MAP_ITEM}]", "*", "ordered: bool = True")
MAP_ARGS = (
    "prompts: any number of prompts; taken one by one, as there is room.",
    "ordered: give completions in the order of the prompts; otherwise as they finish.",
    'on_error: "raise" raises the first error, "return" gives each error in the place of its completion.',
    "progress: show a progress bar (needs `rich`).",
    "chat: each prompt is text or a list of messages, and goes through the model's chat template.",
)

CHAT_HEAD = (
    "messages: str | Sequence[Message]",
    "*",
    "tools: Sequence[Mapping[str, Any]] | None = None",
    "tool_choice: str | Mapping[str, Any] | None = None",
    "parallel_tool_calls: bool | None = None",
    "enable_thinking: bool | None = None",
    'reasoning_format: Literal["auto", "none"] | None = None',
    "chat_template: str | PathLike[str] | None = None",
    "chat_template_kwargs: Mapping[str, Any] | None = None",
    "continue_final_message: bool = False",
    "add_generation_prompt: bool = True",
)
CHAT_ARGS = (
    CHAT_ARG,
    "tools: functions that the answer may call, as OpenAI's API has them; `Completion.message` has the calls.",
    'tool_choice: "auto", "none", "required", or `{"type": "function", "function": {"name": ...}}`.',
    "parallel_tool_calls: whether one answer may call several; None means as the template can.",
    "enable_thinking: whether a model that can think aloud first does so; None means as its template has it.",
    'reasoning_format: "auto" tells thoughts apart from the answer in `Completion.message`, "none" leaves them in it.',
    "chat_template: a template in the place of the model's own: its text, or the path of a file.",
    "chat_template_kwargs: what else the template is told.",
    "continue_final_message: the last message is an answer, which is gone on with.",
    "add_generation_prompt: end the prompt with what begins an answer.",
)
CHAT_NAMES = [part.split(":")[0] for part in CHAT_HEAD[2:]]


def chat_call(method: str, *, shaped: str = "") -> str:
    """The statements of a method that takes what `chat` takes.

    Args:
        method: its name.
        shaped: what it returns, where that is made of the generation `made`.
    """
    names = "".join(f'    "{name}": {name},\n' for name in CHAT_NAMES)
    made = f"self._converse(messages, chat, given(EngineApi.{method}, options, aliases, unknown))"
    end = f"made = {made}\nreturn {shaped}" if shaped else f"return {made}"
    return f"chat = {{\n{names}}}\n{end}"


METHODS = (
    Method(
        "__init__",
        ("model: ModelSource | None = None", "*", "model_path: ModelSource | None = None", "name: str | None = None"),
        "None",
        "start",
        "Start an engine. Options and a local file are checked at once; the model loads in the background.",
        (
            MODEL_ARG,
            "model_path: another name for `model`.",
            "name: names the engine in events and logs.",
        ),
        """
        Raises:
            OptionError: an option is unknown, of the wrong type, or out of range.
            ModelNotFoundError: there is no such file.

        Example:
            >>> with Engine("model.gguf", n_parallel=8) as engine:
            ...     print(engine.chat("Why is the sky blue?").result())
        """,
        "self._start(model, model_path, name, given(EngineApi.__init__, options, aliases, unknown))",
    ),
    Method(
        "generate",
        ("prompt: Prompt", "*"),
        "Generation[Any]",
        "request",
        "Submit a prompt; the whole completion comes from `result()` or `await`.",
        (PROMPT_ARG,),
        f"""
        Returns:
            The generation; dropping it cancels the request.
        {textwrap.indent(RAISES, "        ").rstrip()}

        Example:
            >>> done = engine.generate("Once upon a time", max_tokens=100).result()
        """,
        'return self._submit("generate", prompt, given(EngineApi.generate, options, aliases, unknown))',
    ),
    Method(
        "stream",
        ("prompt: Prompt", "*"),
        "Generation[Any]",
        "request",
        "Submit a prompt; its text comes as it is generated, from `for` or `async for`.",
        (PROMPT_ARG,),
        f"""
        Returns:
            The generation; dropping it, or leaving the loop, cancels the request.
        {textwrap.indent(RAISES, "        ").rstrip()}

        Example:
            >>> for chunk in engine.stream("Tell me a story"):
            ...     print(chunk, end="", flush=True)
        """,
        'return self._submit("stream", prompt, given(EngineApi.stream, options, aliases, unknown))',
    ),
    Method(
        "chat",
        CHAT_HEAD,
        "Generation[Any]",
        "request",
        "Submit messages through the model's chat template; the answer comes whole or as it is generated.",
        CHAT_ARGS,
        f"""
        Returns:
            The generation; dropping it cancels the request.
        {textwrap.indent(RAISES, "        ").rstrip()}

        Example:
            >>> print(engine.chat("Why is the sky blue?").result())
        """,
        chat_call("chat"),
    ),
    Method(
        "chat_completion",
        CHAT_HEAD,
        "PendingChatCompletion",
        "request",
        "Submit messages as `chat` does; the answer is OpenAI's `chat.completion`, from `result()` or `await`.",
        CHAT_ARGS,
        f"""
        Returns:
            What waits for the dict; dropping it cancels the request.
        {textwrap.indent(RAISES, "        ").rstrip()}

        Example:
            >>> made = engine.chat_completion("Why is the sky blue?").result()
            >>> made["choices"][0]["message"]["content"]
        """,
        chat_call("chat_completion", shaped="self._completion_of(made)"),
    ),
    Method(
        "stream_chat_completion",
        (*CHAT_HEAD, "include_usage: bool = False"),
        "ChatCompletionStream",
        "request",
        "Submit messages as `chat` does; the answer comes as dicts, each OpenAI's `chat.completion.chunk`.",
        (*CHAT_ARGS, "include_usage: end with a chunk that has `usage` and no choices."),
        f"""
        Returns:
            An iterator and async iterator of dicts; dropping it, or leaving the loop, cancels the request.
        {textwrap.indent(RAISES, "        ").rstrip()}

        Example:
            >>> for chunk in engine.stream_chat_completion("Tell me a story"):
            ...     print(chunk["choices"][0]["delta"].get("content", ""), end="", flush=True)
        """,
        chat_call("stream_chat_completion", shaped="self._chunks_of(made, include_usage)"),
    ),
    Method(
        "map",
        (*MAP_HEAD, 'on_error: Literal["raise", "return"] = "raise"', "progress: bool = False", "chat: bool = False"),
        "Map[Any]",
        "request",
        "Complete any number of prompts, a window of them at a time.",
        MAP_ARGS,
        f"""
        Returns:
            An iterator and async iterator of completions; with `on_error="return"`, of completions and errors.
        {textwrap.indent(RAISES, "        ").rstrip()}

        Example:
            >>> for done in engine.map(prompts, max_tokens=50, progress=True):
            ...     print(done.text)
        """,
        "settled = given(EngineApi.map, options, aliases, unknown)\n"
        "return self._map(prompts, settled, ordered=ordered, on_error=on_error, progress=progress, chat=chat)",
    ),
    Method(
        "embed",
        ("input: Embeddable", "*"),
        "EmbeddingJob",
        "embed",
        "Submit texts that are to become vectors; they come from `result()` or `await`.",
        (EMBED_ARG,),
        f"""
        Returns:
            The job; dropping it cancels the request. Its `Embeddings` have one vector for each text.
        {textwrap.indent(RAISES.replace("generation", "job"), "        ").rstrip()}

        Example:
            >>> found = engine.embed(["a cat", "a dog"]).result()
            >>> len(found.vectors), found.n_embd
            (2, 576)
        """,
        "return self._embed(input, given(EngineApi.embed, options, aliases, unknown))",
    ),
)
