//! What an engine does: loading, ready, failed or closed.

use super::lock;
use super::mailbox::wait_for;
use super::waker::{Signal, Wakes};
use crate::error::Error;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// What an engine does.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// The model is not there yet; requests queue.
    Loading,
    /// It answers.
    Ready,
    /// It cannot, for this reason; every request gets it.
    Failed(Error),
    /// It was closed.
    Closed,
}

impl State {
    /// The word for it.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Ready => "ready",
            Self::Failed(_) => "failed",
            Self::Closed => "closed",
        }
    }

    /// Whether the engine can be used: `None` if that is not settled yet.
    fn verdict(&self) -> Option<Result<(), Error>> {
        match self {
            Self::Loading => None,
            Self::Ready => Some(Ok(())),
            Self::Failed(error) => Some(Err(error.clone())),
            Self::Closed => Some(Err(Error::EngineClosed)),
        }
    }
}

/// The state, and who waits for it to change.
pub(super) struct StateCell {
    inner: Mutex<(State, Vec<Signal>)>,
    changed: Condvar,
}

impl StateCell {
    pub(super) fn new() -> Self {
        Self { inner: Mutex::new((State::Loading, Vec::new())), changed: Condvar::new() }
    }

    pub(super) fn get(&self) -> State {
        lock(&self.inner).0.clone()
    }

    /// Move on. A closed engine stays closed, and a failed one can only be closed.
    pub(super) fn set(&self, next: State) {
        let mut wakes = Wakes::default();
        let mut inner = lock(&self.inner);
        let allowed = match inner.0 {
            State::Loading => true,
            State::Ready => next != State::Loading,
            State::Failed(_) => next == State::Closed,
            State::Closed => false,
        };
        if allowed {
            inner.0 = next;
            for signal in inner.1.drain(..) {
                wakes.mark(&signal);
            }
        }
        drop(inner);
        self.changed.notify_all();
    }

    /// Whether the engine is ready; false if the time runs out first.
    pub(super) fn wait_ready(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        wait_for(&self.inner, &self.changed, timeout, |(state, _)| state.verdict().is_some());
        match self.get().verdict() {
            None => Ok(false),
            Some(verdict) => verdict.map(|()| true),
        }
    }

    /// Have a signal marked once, when loading is over. True if it is already.
    pub(super) fn subscribe(&self, signal: Signal) -> bool {
        let mut inner = lock(&self.inner);
        if inner.0 == State::Loading {
            inner.1.push(signal);
            return false;
        }
        true
    }
}
