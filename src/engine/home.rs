//! Which process an engine lives in. Its threads do not survive a fork, and its locks may be held by one of them.

use crate::error::Error;

/// The process in which something was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home(u32);

impl Home {
    /// This process.
    pub(super) fn here() -> Self {
        Self(std::process::id())
    }

    /// Whether this is another process. Asked before any lock is taken.
    pub(super) fn is_elsewhere(self) -> bool {
        self.0 != std::process::id()
    }

    /// # Errors
    /// [`Error::Forked`] in another process.
    pub(super) fn check(self) -> Result<(), Error> {
        if self.is_elsewhere() { Err(Error::Forked) } else { Ok(()) }
    }
}
