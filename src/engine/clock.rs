//! The one place that reads a clock.

use crate::core::Time;
use std::time::Instant;

/// Counts from the moment it was made.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that starts now.
    #[expect(clippy::disallowed_methods, reason = "the one clock: everything else is given a Time")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the start.
    pub fn now(self) -> Time {
        Time(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
