"""What `Llama` does with text and tokens, beside answering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llama_batch.compat.embeddings import embedded
from llama_batch.errors import OptionError, PromptError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_batch.engine import Engine


class TokensApi:
    """The part of `Llama` that tokenises and embeds."""

    engine: Engine
    """The engine beneath."""

    model_path: str
    _n_ctx: int

    @property
    def metadata(self) -> Mapping[str, str]:
        """Every scalar key of the GGUF file, with its value as text."""
        return self.engine.model.metadata

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Turn text into tokens.

        Args:
            text: UTF-8.
            add_bos: add BOS as the vocabulary says.
            special: read the text of control tokens as those tokens.

        Returns:
            Token ids.

        Raises:
            PromptError: it is no UTF-8.

        Example:
            >>> llm.tokenize(b"Hello, world")
        """
        if not isinstance(text, bytes):
            raise PromptError(f"tokenize takes bytes, not {type(text).__name__}")
        try:
            decoded = text.decode()
        except UnicodeDecodeError as error:
            raise PromptError(f"the text is no UTF-8: {error}") from None
        return self.engine.model.tokenize(decoded, add_special=add_bos, parse_special=special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Turn tokens into text.

        Args:
            tokens: the tokens.
            prev_tokens: tokens before them, on which a space at the beginning may depend.
            special: write control tokens too.

        Returns:
            UTF-8, which need not end with a whole character.

        Raises:
            PromptError: a token is not in the vocabulary.

        Example:
            >>> llm.detokenize(llm.tokenize(b"Hello"))
            b'Hello'
        """
        model = self.engine.model
        if not prev_tokens:
            return model.detokenize_bytes(tokens, special=special)
        before = model.detokenize_bytes(prev_tokens, special=special)
        return model.detokenize_bytes([*prev_tokens, *tokens], special=special)[len(before) :]

    def n_ctx(self) -> int:
        """The context. Unit: tokens."""
        return self._n_ctx or self.engine.model.n_ctx_train

    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        return self.engine.model.n_vocab

    def n_embd(self) -> int:
        """Width of the embeddings."""
        return self.engine.model.n_embd

    def token_bos(self) -> int:
        """The token that begins a text; -1 where there is none."""
        token = self.engine.model.bos_token
        return -1 if token is None else token

    def token_eos(self) -> int:
        """The token that ends a text; -1 where there is none."""
        token = self.engine.model.eos_token
        return -1 if token is None else token

    def embed(
        self,
        input: str | Sequence[str],  # noqa: A002 - the original's name
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """Turn texts into vectors.

        Args:
            input: a text, or several.
            normalize: make vectors of length 1.
            truncate: cut texts that are longer than the context.
            return_count: tell how many tokens there were, too.

        Returns:
            A vector, or a list of vectors; with `return_count`, a tuple of that and a number.

        Example:
            >>> len(llm.embed("Hello, world!"))
        """
        given: Any = input
        texts = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
        if not all(isinstance(text, str) for text in texts):
            raise OptionError("embed takes a text, or a list of texts")
        ready: list[Any] = texts
        if truncate and self.n_ctx():
            ready = [self.engine.model.tokenize(text)[: self.n_ctx()] for text in texts]
        vectors, n_tokens = embedded(self.engine, ready, normalize=normalize)
        made = vectors[0] if isinstance(input, str) else vectors
        return (made, n_tokens) if return_count else made

    def create_embedding(
        self,
        input: str | Sequence[str],  # noqa: A002 - the original's name
        model: str | None = None,
    ) -> dict[str, Any]:
        """Turn texts into vectors, in OpenAI's shape.

        Args:
            input: a text, or several.
            model: the name of the model in the answer.

        Returns:
            The dict.

        Example:
            >>> len(llm.create_embedding("Hello, world!")["data"][0]["embedding"])
        """
        texts = [input] if isinstance(input, str) else input
        vectors, n_tokens = self.embed(texts, return_count=True)
        data = [{"object": "embedding", "embedding": vector, "index": i} for i, vector in enumerate(vectors)]
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        return {"object": "list", "data": data, "model": model or self.model_path, "usage": usage}

    def _echoed(self, prompt: str | Sequence[int]) -> str:
        return prompt if isinstance(prompt, str) else self.engine.model.detokenize(prompt)

    def _filled(self, prompt: str | Sequence[int], suffix: str) -> list[int] | None:
        """The prompt that asks for what stands before a suffix; None if the model has no tokens for that."""
        from llama_batch.server.fim import fill_in_the_middle, fim_tokens

        if not isinstance(suffix, str):
            raise OptionError(f"suffix must be text, not {type(suffix).__name__}")
        if fim_tokens(self.engine.model) is None:
            return None
        return fill_in_the_middle(self.engine.model, prompt if isinstance(prompt, str) else list(prompt), suffix)
