"""Objects that `with` closes."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Closing:
    """Leaving `with` closes it, however it is left."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """End what is under way."""

    def __enter__(self) -> Self:
        """The object; leaving closes it."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()
