//! How a caller who does not block hears that something is there for it.

use std::sync::Arc;

/// What wakes a caller: in Python, one hub for each event loop.
///
/// A tick first marks everything that it changed, then wakes each waker once, however many requests it serves.
pub trait Waker: Send + Sync {
    /// Something is there under this key. Called with locks held: it must not call back into the engine.
    fn mark(&self, key: u64);

    /// All that was marked can be looked at. Called without locks; it must neither block nor panic.
    fn wake(&self);

    /// Whether nobody is left to wake.
    fn is_gone(&self) -> bool {
        false
    }
}

/// A waker, and the key under which its owner knows what it waits for.
#[derive(Clone)]
pub struct Signal {
    waker: Arc<dyn Waker>,
    key: u64,
}

impl Signal {
    /// A signal that marks `key` at `waker`.
    pub fn new(waker: Arc<dyn Waker>, key: u64) -> Self {
        Self { waker, key }
    }

    /// Whether nobody is left whom it could wake.
    pub(super) fn is_gone(&self) -> bool {
        self.waker.is_gone()
    }

    /// Whether both mark the same key at the same waker.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.key == other.key && same(&self.waker, &other.waker)
    }
}

fn same(a: &Arc<dyn Waker>, b: &Arc<dyn Waker>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

/// The wakers that have something marked; each is woken once when this is dropped.
#[derive(Default)]
pub(super) struct Wakes(Vec<Arc<dyn Waker>>);

impl Wakes {
    /// Mark a signal, and remember its waker.
    pub(super) fn mark(&mut self, signal: &Signal) {
        signal.waker.mark(signal.key);
        if !self.0.iter().any(|waker| same(waker, &signal.waker)) {
            self.0.push(Arc::clone(&signal.waker));
        }
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        for waker in self.0.drain(..) {
            waker.wake();
        }
    }
}
