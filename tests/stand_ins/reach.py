"""The ways in which frameworks reach a model: the URL of a server, and OpenAI's clients over an engine in process.

A framework may want an older client of OpenAI than llama-batch's other tests have, and lives in an environment of its
own then. `LLAMA_BATCH_PYTHON` names the interpreter that serves, so that only what is tried in process needs
llama-batch there.
"""

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    import openai

KEY = "sk-contract"
SIMULATED = "sim:?eog_every=40"
PYTHON = os.environ.get("LLAMA_BATCH_PYTHON", sys.executable)

QUESTION = "What is the capital of France?"
MAX_TOKENS = 12
AS_IT_IS = {"cache_prompt": False}
"""A field of ours, for `extra_body`: what is computed from its beginning is computed alike each time."""
TOO_LONG = "a b " * 9000


class Report(BaseModel):
    """A report on the weather."""

    # Without this a small model goes on with members of its own, which schemas let it unless they say otherwise.
    model_config = ConfigDict(extra="forbid")

    city: Literal["Rome", "Oslo"]
    degrees: int = Field(ge=-50, le=50)


def weather(city: Literal["Rome", "Oslo"]) -> str:
    """Tells the weather in a city."""
    return f"It is 21 degrees in {city}."


@dataclass(frozen=True)
class Reach:
    """One way to one model.

    Attributes:
        url: where a server listens; None in process.
        client: OpenAI's client, over that URL or over the engine: what a framework says is compared with it.
        async_client: the same for asyncio.
        is_real: whether the model has learnt anything.
    """

    url: str | None
    client: "openai.OpenAI"
    async_client: "openai.AsyncOpenAI"
    is_real: bool

    @property
    def shaped_tokens(self) -> int:
        """Enough for an answer in JSON: a simulated model puts as much white space into it as a grammar lets it."""
        return 150 if self.is_real else 2000

    def plain(self, text: str = QUESTION, **more: Any) -> Any:
        """What the client says, without a framework; greedily, and with the seed that the frameworks are given."""
        asked: dict[str, Any] = {"max_tokens": MAX_TOKENS, "temperature": 0, "seed": 1, "extra_body": AS_IT_IS, **more}
        return self.client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}], **asked)

    def check_answer(self, text: str | None) -> None:
        """An answer to the question is the one that the client gets without a framework."""
        assert text
        assert text == self.plain().choices[0].message.content
