"""`LlamaGrammar`: what an answer must look like."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_batch.errors import OptionError

if TYPE_CHECKING:
    from os import PathLike


class LlamaGrammar:
    """A grammar for `create_completion` and `create_chat_completion`.

    It is compiled with the first request that has it: a wrong one is a `GrammarError` of that request.

    Example:
        >>> llm("Yes or no? ", grammar=LlamaGrammar.from_string('root ::= "yes" | "no"'))
    """

    def __init__(self, **options: Any) -> None:
        """Hold a grammar. Made by the `from_` methods.

        Args:
            options: what the engine is to be told.
        """
        self.options = options

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:  # noqa: ARG003 - the original has it
        """A grammar in llama.cpp's language (GBNF).

        Args:
            grammar: the text; its rule `root` is what the answer matches.
            verbose: has no meaning here.

        Returns:
            The grammar.

        Raises:
            OptionError: it is no text.

        Example:
            >>> LlamaGrammar.from_string('root ::= "yes" | "no"')
        """
        if not isinstance(grammar, str):
            raise OptionError(f"LlamaGrammar.from_string: grammar must be text, not {type(grammar).__name__}")
        return cls(grammar=grammar)

    @classmethod
    def from_file(cls, file: str | PathLike[str], verbose: bool = True) -> LlamaGrammar:
        """A grammar in llama.cpp's language, from a file.

        Args:
            file: its path.
            verbose: has no meaning here.

        Returns:
            The grammar.

        Raises:
            OptionError: the file cannot be read.

        Example:
            >>> LlamaGrammar.from_file("json.gbnf")
        """
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, ValueError, TypeError) as error:
            raise OptionError(f"LlamaGrammar.from_file: {file!r} cannot be read: {error}") from None
        return cls.from_string(text, verbose)

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:  # noqa: ARG003 - as above
        """The grammar of a JSON schema.

        Args:
            json_schema: the schema, as JSON text.
            verbose: has no meaning here.

        Returns:
            The grammar.

        Raises:
            OptionError: it is no text.

        Example:
            >>> LlamaGrammar.from_json_schema('{"type": "object"}')
        """
        if not isinstance(json_schema, str):
            what = type(json_schema).__name__
            raise OptionError(f"LlamaGrammar.from_json_schema: json_schema must be JSON text, not {what}")
        return cls(json_schema=json_schema)
