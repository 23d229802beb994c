"""Sessions in files: saved by one engine, loaded by another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llama_batch.types import SavedSession

if TYPE_CHECKING:
    import os
    from collections.abc import Hashable

    from llama_batch import _core


class SessionsApi:
    """What an engine does with sessions and files."""

    native: _core.Engine

    def save_session(
        self, session: Hashable, path: str | os.PathLike[str], *, cache_scope: Hashable | None = None
    ) -> SavedSession:
        """Save the tokens and the KV state of a session's last finished request, to go on with it another time.

        Waits for the forward pass under way, then for the disk; `asyncio.to_thread` keeps an event loop free of that.
        The file is whole or not there, for its owner only, and replaces one of an earlier save.

        Args:
            session: as for `generate`.
            path: the file. It holds what was said, in the clear.
            cache_scope: as for `generate`; only this scope can load it.

        Returns:
            What was saved.

        Raises:
            SessionError: the session has no finished request, or the file cannot be written.
            EngineNotReadyError: the model is still loading.
            EngineClosedError: the engine is closed.

        Example:
            >>> engine.generate("Once upon a time", session="tale").result()
            >>> engine.save_session("tale", "tale.session")
        """
        n_tokens, n_restorable = self.native.save_session(session, path, cache_scope)
        return SavedSession(session, Path(path), n_tokens, n_restorable)

    def load_session(
        self,
        path: str | os.PathLike[str],
        *,
        session: Hashable | None = None,
        cache_scope: Hashable | None = None,
    ) -> SavedSession:
        """Load what `save_session` wrote, so that the session's next request goes on from there.

        The state goes into the RAM tier (`prompt_cache_ram_mb`). Any request of the same scope whose prompt begins the
        same finds it; `session` is only a name.

        Args:
            path: the file.
            session: another name for it; None keeps the one that it was saved under.
            cache_scope: the scope that it was saved in.

        Returns:
            What was loaded.

        Raises:
            SessionError: the file is damaged, or is one of another model, kind of context or scope.
            EngineNotReadyError: the model is still loading.
            EngineClosedError: the engine is closed.

        Example:
            >>> engine.load_session("tale.session").n_restorable
            47
        """
        name, n_tokens, n_restorable = self.native.load_session(path, session, cache_scope)
        return SavedSession(name, Path(path), n_tokens, n_restorable)
