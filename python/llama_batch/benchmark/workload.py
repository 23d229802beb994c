"""What is asked: conversations, and synthetic ones of given sizes."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from llama_batch.errors import OptionError

if TYPE_CHECKING:
    from llama_batch.types import Message

__all__ = ["WORDS", "Conversation", "Count", "Sizes", "Synthetic", "Turn", "Writer"]

WORDS = tuple(
    """time river house music light garden letter winter market bridge paper story table window forest stone morning
silver doctor engine summer kitchen island street teacher machine ocean village number colour picture season mountain
valley harbour lantern station journey captain library weather orchard blanket whistle compass""".split()
)

Count: TypeAlias = Callable[[str], Awaitable[int]]
"""How many tokens a text has."""

N_ROUNDS = 6
"""How often a prompt's length is corrected. Each round shrinks the mistake to that of the text that it adds."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation.

    Attributes:
        messages: what it adds to the history before the next answer; the question is the last.
        n_output: tokens of the answer.
    """

    messages: tuple[Message, ...]
    n_output: int

    @classmethod
    def of(cls, text: str, n_output: int) -> Turn:
        """A turn that asks one thing."""
        return cls(({"role": "user", "content": text},), n_output)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns, each asked as soon as the one before it is answered; its answers become a part of the history.

    Attributes:
        turns: the turns, at least one.
        arrival: when it begins, from the start of the run, where a trace says so. Unit: seconds.
    """

    turns: tuple[Turn, ...]
    arrival: float | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """A length, or a range from which lengths are drawn uniformly. Unit: tokens.

    Attributes:
        low: the least.
        high: the most, included.
    """

    low: int
    high: int

    @classmethod
    def parse(cls, word: str) -> Sizes:
        """Read `128` or `64-256`.

        Args:
            word: the word.

        Raises:
            OptionError: it is neither, or less than 1.
        """
        low, dash, high = word.partition("-")
        try:
            sizes = cls(int(low), int(high) if dash else int(low))
        except ValueError:
            raise OptionError(f"{word!r} is neither a number of tokens nor a range such as 64-256") from None
        if not 1 <= sizes.low <= sizes.high:
            raise OptionError(f"{word!r}: a length is 1 at least, and a range ascends")
        return sizes

    def draw(self, drawn: random.Random) -> int:
        """One of the lengths."""
        return drawn.randint(self.low, self.high)

    def __str__(self) -> str:
        """As it is read."""
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


class Writer:
    """Writes words without a meaning: the same ones for the same seed."""

    def __init__(self, seed: int | str, count: Count) -> None:
        """Write for a vocabulary.

        Args:
            seed: of all that is drawn.
            count: how many tokens a text has.
        """
        self.drawn = random.Random(seed)  # noqa: S311 - a load, not a secret
        self.count = count
        self._tokens_per_word: float | None = None

    async def text(self, n_tokens: int) -> str:
        """Words that have a number of tokens together, or as close below it as a word allows.

        Args:
            n_tokens: the number.

        Returns:
            The text; one word at least.
        """
        if self._tokens_per_word is None:
            self._tokens_per_word = max(0.1, await self.count(" ".join(WORDS)) / len(WORDS))
        words = [self.drawn.choice(WORDS) for _ in range(max(1, int(n_tokens / self._tokens_per_word)))]
        for _ in range(N_ROUNDS):
            missing = n_tokens - await self.count(" ".join(words))
            n_more = int(missing / self._tokens_per_word)
            if missing >= 0 and n_more <= 0:
                break
            if n_more > 0:
                words += [self.drawn.choice(WORDS) for _ in range(n_more)]
            elif len(words) > 1:
                del words[max(1, len(words) + min(n_more, -1)) :]
            else:
                break
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Conversations of random words.

    Attributes:
        n_conversations: how many.
        prompt_tokens: what each turn asks, beside what is shared.
        output_tokens: what each turn generates.
        n_turns: requests of each.
        shared_tokens: a beginning that all of them share, as a system prompt is; 0 for none.
        seed: of all that is drawn.
    """

    n_conversations: int
    prompt_tokens: Sizes = field(default_factory=lambda: Sizes(128, 128))
    output_tokens: Sizes = field(default_factory=lambda: Sizes(128, 128))
    n_turns: int = 1
    shared_tokens: int = 0
    seed: int = 0

    async def write(self, count: Count) -> list[Conversation]:
        """Write them.

        Args:
            count: how many tokens a text has.

        Returns:
            The conversations.
        """
        writer = Writer(self.seed, count)
        shared: tuple[Message, ...] = ()
        if self.shared_tokens:
            shared = ({"role": "system", "content": await writer.text(self.shared_tokens)},)
        return [await self._one(writer, shared) for _ in range(self.n_conversations)]

    async def _one(self, writer: Writer, shared: tuple[Message, ...]) -> Conversation:
        turns = []
        for number in range(self.n_turns):
            text = await writer.text(self.prompt_tokens.draw(writer.drawn))
            # Where history is text without a template, a line of its own is all that parts a turn from the one before.
            turn = Turn.of(f"\n{text}" if shared or number else text, self.output_tokens.draw(writer.drawn))
            turns.append(Turn((*shared, *turn.messages), turn.n_output) if number == 0 else turn)
        return Conversation(tuple(turns))

    def describe(self) -> dict[str, Any]:
        """Itself, for a file."""
        sizes = {"prompt_tokens": str(self.prompt_tokens), "output_tokens": str(self.output_tokens)}
        return {"kind": "synthetic", **asdict(self), **sizes}
