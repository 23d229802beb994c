"""Objects that stand for one thing in one process."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex


class Unique:
    """Neither copied nor pickled: the copy would close, cancel or read what belongs to the original."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        """Refuse to be copied or pickled."""
        raise TypeError(f"{type(self).__name__} objects cannot be copied or pickled")
