"""The model's tokenizer, with the methods of a tokenizer of transformers that code around vLLM uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_batch.model import Model
    from llama_batch.types import Message


class Tokenizer:
    """Text to tokens and back.

    Example:
        >>> tokenizer = llm.get_tokenizer()
        >>> tokenizer.decode(tokenizer.encode("Hello"))
        'Hello'
    """

    def __init__(self, model: Model, chat_template: str | None = None) -> None:
        """Made by `LLM.get_tokenizer`.

        Args:
            model: the model.
            chat_template: a template in the place of the model's own.
        """
        self._model = model
        self._chat_template = chat_template

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary."""
        return self._model.n_vocab

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text."""
        return self._model.bos_token

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text."""
        return self._model.eos_token

    @property
    def chat_template(self) -> str | None:
        """The chat template."""
        return self._chat_template or self._model.chat_template

    def __len__(self) -> int:
        """Tokens of the vocabulary."""
        return self._model.n_vocab

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Turn text into tokens; the text of control tokens is read as those tokens.

        Args:
            text: the text.
            add_special_tokens: add BOS and EOS as the vocabulary says.

        Returns:
            Token ids.

        Raises:
            PromptError: the text cannot be tokenised.

        Example:
            >>> tokenizer.encode("Hello")
        """
        return self._model.tokenize(text, add_special=add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """Turn tokens into text.

        Args:
            token_ids: a token, or several.
            skip_special_tokens: leave control tokens out.

        Returns:
            The text.

        Raises:
            PromptError: a token is not in the vocabulary.

        Example:
            >>> tokenizer.decode([504], skip_special_tokens=True)
        """
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._model.detokenize(ids, special=not skip_special_tokens)

    def apply_chat_template(
        self,
        conversation: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Render messages with the chat template.

        Args:
            conversation: a list of messages.
            tools: functions that the answer may call.
            chat_template: a template in the place of the model's own.
            add_generation_prompt: end with what begins the answer.
            continue_final_message: the last message is an answer to be gone on with.
            tokenize: give token ids instead of text.
            **kwargs: what else the template is told.

        Returns:
            Token ids, or text.

        Raises:
            ChatTemplateError: there is no template, it failed, or the messages do not suit it.

        Example:
            >>> tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        """
        prompt = self._model.apply_chat_template(
            conversation,
            tools=tools,
            chat_template=chat_template or self._chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template_kwargs=kwargs or None,
        )
        return self._model.tokenize(prompt, add_special=False) if tokenize else prompt
