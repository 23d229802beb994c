//! Which process an engine lives in. Its threads do not survive a fork, and its locks may be held by one of them.

use crate::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the first process and this one. Asked at each token, where the system's own number for the process
/// would take a call into it.
static N_FORKS: AtomicU32 = AtomicU32::new(0);

/// This process was just forked off: what was made before belongs to another one.
#[cfg(feature = "python")]
pub(crate) fn forked() {
    N_FORKS.fetch_add(1, Ordering::Relaxed);
}

/// How often this process and those before it were forked off: another number means another process.
#[cfg(feature = "python")]
pub(crate) fn n_forks() -> u32 {
    N_FORKS.load(Ordering::Relaxed)
}

/// The process in which something was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home(u32);

impl Home {
    /// This process.
    pub(super) fn here() -> Self {
        Self(N_FORKS.load(Ordering::Relaxed))
    }

    /// Whether this is another process. Asked before any lock is taken.
    pub(super) fn is_elsewhere(self) -> bool {
        self.0 != N_FORKS.load(Ordering::Relaxed)
    }

    /// # Errors
    /// [`Error::Forked`] in another process.
    pub(super) fn check(self) -> Result<(), Error> {
        if self.is_elsewhere() { Err(Error::Forked) } else { Ok(()) }
    }
}
