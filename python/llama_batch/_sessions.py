"""Sessions in files: saved by one engine, loaded by another."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from llama_batch.errors import OptionError
from llama_batch.types import SavedSession

if TYPE_CHECKING:
    from llama_batch import _core
    from llama_batch.types import Key


class SessionsApi:
    """What an engine does with sessions and files."""

    native: _core.Engine

    def save_session(
        self, session: Key, path: str | os.PathLike[str], *, cache_scope: Key | None = None
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
            SessionError: the session has no finished request (one with `cache_prompt=False` leaves nothing), or the
                file cannot be written.
            OptionError: the session, the scope or the path cannot be one.
            EngineNotReadyError: the model is still loading.
            EngineClosedError: the engine is closed.

        Example:
            >>> engine.generate("Once upon a time", session="tale").result()
            >>> engine.save_session("tale", "tale.session")
        """
        file = _file(path)
        n_tokens, n_restorable = self.native.save_session(session, file, cache_scope)
        return SavedSession(session, file, n_tokens, n_restorable)

    def load_session(
        self,
        path: str | os.PathLike[str],
        *,
        session: Key | None = None,
        cache_scope: Key | None = None,
    ) -> SavedSession:
        """Load what `save_session` wrote, so that the session's next request goes on from there.

        The state goes into the RAM tier (`prompt_cache_ram_mb`). Any request of the same scope whose prompt begins the
        same finds it; `session` is only a name.

        Args:
            path: the file.
            session: another name for it; None keeps the one that it was saved under.
            cache_scope: the scope that it was saved in.

        Returns:
            What was loaded. A few tokens are not worth a state (8; 32 where the model's memory has no blocks), and RAM
            may have no room for all: what has none is computed again.

        Raises:
            SessionNotFoundError: there is no such file; a `FileNotFoundError` too.
            SessionError: the file is damaged, or is one of another model, scope, or kind of context: `type_k`,
                `type_v`, `flash_attn`, `swa_full`, `kv_unified` and the RoPE options have to be the same.
            OptionError: the session, the scope or the path cannot be one.
            EngineNotReadyError: the model is still loading.
            EngineClosedError: the engine is closed.

        Example:
            >>> engine.load_session("tale.session").n_restorable
            47
        """
        file = _file(path)
        name, n_tokens, n_restorable = self.native.load_session(file, session, cache_scope)
        return SavedSession(name, file, n_tokens, n_restorable)


def _file(path: object) -> Path:
    """The file that a caller means.

    Raises:
        OptionError: it is no path.
    """
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str) or not name:
        raise OptionError(f"path must be the name of a file, not {path!r}")
    return Path(name).expanduser()
