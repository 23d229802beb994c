"""What the classes of both projects have in common: an engine beneath, and what only the originals have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from llama_batch._closing import Closing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_batch.engine import Engine


class OverEngine(Closing):
    """A class of another project, over an engine."""

    engine: Engine
    """The engine beneath."""

    _instead: ClassVar[tuple[str, Mapping[str, str]]]
    """The class's name, and what to use in the place of what only the original has."""

    def close(self) -> None:
        """Close the model; what is under way ends, with what it has.

        Example:
            >>> llm.close()
        """
        self.engine.close()

    def __getattr__(self, name: str) -> Any:
        """Say what to use in the place of what only the original has."""
        own, instead = self._instead
        if name in instead:
            raise AttributeError(f"{own}.{name} is not supported; instead: {instead[name]}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
