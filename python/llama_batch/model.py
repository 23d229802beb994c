"""A loaded model: text to tokens and back, metadata, the chat template."""

from __future__ import annotations

from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from llama_batch._messages import conversation
from llama_batch.errors import PromptError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from llama_batch import _core
    from llama_batch.types import Message


class Model:
    """The model of an engine. Its calls run in the caller's thread, beside the engine's work.

    Example:
        >>> model = engine.model
        >>> model.detokenize(model.tokenize("Hello"))
        'Hello'
    """

    def __init__(self, native: _core.Model) -> None:
        """Hold a loaded model. `Engine.model` gives it.

        Args:
            native: the model.
        """
        self._native = native

    @cached_property
    def _facts(self) -> dict[str, Any]:
        """What is read once, and only where somebody asks: most callers only tokenise."""
        return self._native.facts()

    @property
    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        return self._native.n_vocab

    @property
    def metadata(self) -> Mapping[str, str]:
        """Every scalar key of the GGUF file, with its value as text."""
        return MappingProxyType(dict(self._facts.get("metadata", ())))

    @property
    def description(self) -> str:
        """Architecture, size and quantisation, in llama.cpp's words."""
        return str(self._facts.get("description", "a simulated model"))

    @property
    def architecture(self) -> str:
        """The name of the architecture, such as "llama"."""
        return str(self._facts.get("architecture", "simulated"))

    @property
    def chat_template(self) -> str | None:
        """The source of the model's chat template; None if it has none."""
        template: str | None = self._facts.get("chat_template")
        return template

    @property
    def n_ctx_train(self) -> int:
        """The context that the model was trained on. Unit: tokens."""
        return int(self._facts.get("n_ctx_train", 0))

    @property
    def n_params(self) -> int:
        """Parameters."""
        return int(self._facts.get("n_params", 0))

    @property
    def n_embd(self) -> int:
        """Width of the embeddings."""
        return int(self._facts.get("n_embd", 0))

    @property
    def n_layer(self) -> int:
        """Layers."""
        return int(self._facts.get("n_layer", 0))

    @property
    def size_bytes(self) -> int:
        """The size of all tensors. Unit: bytes."""
        return int(self._facts.get("size_bytes", 0))

    @property
    def bos_token(self) -> int | None:
        """The token that begins a text."""
        token: int | None = self._facts.get("bos")
        return token

    @property
    def eos_token(self) -> int | None:
        """The token that ends a text."""
        token: int | None = self._facts.get("eos")
        return token

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Turn text into tokens.

        Args:
            text: the text.
            add_special: add BOS and EOS as the vocabulary says.
            parse_special: read the text of control tokens as those tokens.

        Returns:
            Token ids.

        Raises:
            PromptError: the text cannot be tokenised.

        Example:
            >>> len(engine.model.tokenize("Hello, world"))
            4
        """
        try:
            return self._native.tokenize(text, add_special, parse_special)
        except UnicodeEncodeError:
            raise PromptError("the text holds a lone surrogate, which no encoding of text has") from None

    def detokenize(self, token_ids: Sequence[int], *, special: bool = False) -> str:
        """Turn tokens into text; bytes that are no whole character become U+FFFD.

        Args:
            token_ids: the tokens.
            special: write control tokens too.

        Returns:
            The text.

        Raises:
            PromptError: a token is not in the vocabulary.

        Example:
            >>> engine.model.detokenize([504, 2, 3])
        """
        return self.detokenize_bytes(token_ids, special=special).decode("utf-8", "replace")

    def detokenize_bytes(self, token_ids: Sequence[int], *, special: bool = False) -> bytes:
        """Turn tokens into bytes, which need not end with a whole character.

        Args:
            token_ids: the tokens.
            special: write control tokens too.

        Returns:
            UTF-8, in general.

        Raises:
            PromptError: a token is not in the vocabulary.

        Example:
            >>> engine.model.detokenize_bytes([504])
        """
        try:
            return self._native.pieces(list(token_ids), special)
        except (OverflowError, TypeError) as error:
            raise PromptError(f"token ids are integers of the vocabulary: {error}") from None

    def is_eog(self, token_id: int) -> bool:
        """Whether a token ends a generation.

        Args:
            token_id: the token.

        Returns:
            Whether it does.

        Example:
            >>> engine.model.is_eog(engine.model.eos_token)
            True
        """
        return self._native.is_eog(token_id)

    def score(self, token_ids: Sequence[int], n_prompt: int, *, chunk: int = 512) -> list[float]:
        """How far each token of a text was from the likeliest one at its place, computed alone and uncached.

        The shapes of batches alone move logits: equality of text proves nothing on real models, and this does.

        Args:
            token_ids: the prompt's tokens, then the text's.
            n_prompt: how many are the prompt's; at least 1.
            chunk: tokens of one forward pass.

        Returns:
            For each token of the text, the largest logit at its place less its own: 0 where greedy decoding would have
            chosen it.

        Raises:
            PromptError: a token is not in the vocabulary, or there is no prompt.
            InferenceError: a pass failed, or the model is simulated.

        Example:
            >>> engine.model.score([*prompt, *done.token_ids], len(prompt))
        """
        return self._native.score(list(token_ids), n_prompt, chunk)

    def apply_chat_template(
        self,
        messages: str | Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
        chat_template: str | PathLike[str] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> str:
        """Render messages with the model's chat template.

        Args:
            messages: text, or a list of messages such as `{"role": "user", "content": "..."}`.
            add_generation_prompt: end with what begins the answer.
            tools: functions that the answer may call, as OpenAI's API has them.
            enable_thinking: whether a model that can think aloud does so.
            chat_template: a template in the place of the model's own: its text, or the path of a file.
            chat_template_kwargs: what else the template is told.
            continue_final_message: the last message is an answer to be gone on with.

        Returns:
            The prompt, to be tokenised with special tokens parsed. What a message spells is then parsed too:
            `Engine.chat` takes care of that, and this text cannot.

        Raises:
            ChatTemplateError: there is no template, it failed, or the messages do not suit it.
            PromptError: a message holds what no text can hold.

        Example:
            >>> prompt = engine.model.apply_chat_template("Why is the sky blue?")
        """
        chat = {
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
            "enable_thinking": enable_thinking,
            "chat_template": chat_template,
            "chat_template_kwargs": chat_template_kwargs,
            "continue_final_message": continue_final_message,
        }
        prompt, _, _ = self._native.render_chat(conversation(messages, chat))
        return prompt
