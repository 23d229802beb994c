//! Aborts a forward pass that nobody waits for any more.

use super::lock;
use crate::core::RequestId;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Knows for whom the running pass computes, and which cancellations the core has not heard of yet.
#[derive(Default)]
pub(super) struct PassWatch(Mutex<Watch>);

#[derive(Default)]
struct Watch {
    /// Whose rows the running pass has, without those who cancelled.
    wanted: BTreeSet<RequestId>,
    /// Who cancelled since the engine thread last looked.
    cancelled: BTreeSet<RequestId>,
    /// Whether everybody did.
    all: bool,
    /// What aborts the running pass; none between passes, or where an abort would do harm.
    flag: Option<Arc<AtomicBool>>,
}

impl PassWatch {
    /// A pass begins, for these.
    pub(super) fn begin(&self, requests: impl Iterator<Item = RequestId>, flag: Option<Arc<AtomicBool>>) {
        let Some(flag) = flag else { return };
        let mut watch = lock(&self.0);
        flag.store(false, Ordering::SeqCst);
        watch.flag = Some(flag);
        if !watch.all {
            watch.wanted = requests.filter(|id| !watch.cancelled.contains(id)).collect();
        }
        watch.abort_if_unwanted();
    }

    /// The pass is over.
    pub(super) fn end(&self) {
        let mut watch = lock(&self.0);
        watch.flag = None;
        watch.wanted.clear();
    }

    /// A running request is cancelled; the engine thread is told too.
    pub(super) fn cancel(&self, id: RequestId) {
        let mut watch = lock(&self.0);
        watch.cancelled.insert(id);
        if watch.wanted.remove(&id) {
            watch.abort_if_unwanted();
        }
    }

    /// Everything is cancelled, for good.
    pub(super) fn cancel_all(&self) {
        let mut watch = lock(&self.0);
        watch.all = true;
        watch.wanted.clear();
        watch.abort_if_unwanted();
    }

    /// The core has heard of a cancellation.
    pub(super) fn settle(&self, id: RequestId) {
        lock(&self.0).cancelled.remove(&id);
    }
}

impl Watch {
    fn abort_if_unwanted(&self) {
        if let Some(flag) = self.flag.as_ref().filter(|_| self.wanted.is_empty()) {
            flag.store(true, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(ids: &[u64]) -> impl Iterator<Item = RequestId> {
        ids.iter().copied().map(RequestId)
    }

    fn watching(ids: &[u64]) -> (PassWatch, Arc<AtomicBool>) {
        let (watch, flag) = (PassWatch::default(), Arc::new(AtomicBool::new(true)));
        watch.begin(requests(ids), Some(Arc::clone(&flag)));
        assert!(!flag.load(Ordering::SeqCst), "a pass begins with a clear flag");
        (watch, flag)
    }

    #[test]
    fn a_pass_is_aborted_when_the_last_who_wants_it_leaves() {
        let (watch, flag) = watching(&[1, 1, 2]);
        watch.cancel(RequestId(1));
        watch.cancel(RequestId(3));
        assert!(!flag.load(Ordering::SeqCst));
        watch.cancel(RequestId(2));
        assert!(flag.load(Ordering::SeqCst));
    }

    #[test]
    fn a_cancellation_that_the_core_does_not_know_yet_counts_for_the_next_pass() {
        let (watch, flag) = watching(&[1]);
        watch.end();
        watch.cancel(RequestId(2));
        watch.begin(requests(&[2]), Some(Arc::clone(&flag)));
        assert!(flag.load(Ordering::SeqCst));
        watch.end();
        watch.settle(RequestId(2));
        watch.begin(requests(&[2]), Some(Arc::clone(&flag)));
        assert!(!flag.load(Ordering::SeqCst));
    }

    #[test]
    fn between_passes_nothing_is_aborted() {
        let (watch, flag) = watching(&[1]);
        watch.end();
        watch.cancel(RequestId(1));
        assert!(!flag.load(Ordering::SeqCst));
    }

    #[test]
    fn once_all_is_cancelled_no_pass_runs() {
        let (watch, flag) = watching(&[1, 2]);
        watch.cancel_all();
        assert!(flag.load(Ordering::SeqCst));
        watch.end();
        watch.begin(requests(&[3]), Some(Arc::clone(&flag)));
        assert!(flag.load(Ordering::SeqCst));
    }
}
