"""The type of what an answer is parsed to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
    T_co = TypeVar("T_co", covariant=True)
else:
    from typing import TypeVar

    T, T_co = TypeVar("T"), TypeVar("T_co", covariant=True)


class Validates(Protocol[T_co]):
    """What turns JSON into values of a type: a `TypeAdapter` of pydantic, for one."""

    def json_schema(self) -> dict[str, Any]:
        """The schema of the type."""

    def validate_json(self, data: str, /) -> T_co:
        """The value of a JSON text."""
