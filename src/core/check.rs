//! Invariants. A broken one is a bug of ours and panics, in release too.

use super::running::{Live, Place};
use super::scheduler::Scheduler;
use super::sequences::Holder;

impl Scheduler {
    /// All invariants. Slow: for tests, and for a moment when nothing is running.
    ///
    /// # Panics
    /// When one is broken.
    pub fn check(&self) {
        self.ram.check();
        self.disk.blocks.check();
        self.check_idle();
    }

    /// The same without the tiers, which can have as many blocks as the disk has room for.
    ///
    /// # Panics
    /// When one is broken.
    pub fn check_idle(&self) {
        self.check_step();
        self.sequences.check();
        for (id, live) in &self.live {
            self.check_live(live);
            let (is_waiting, is_parked) = self.line.holds(&live.turn);
            let n_places =
                [is_waiting, is_parked, self.slots.iter().flatten().filter(|other| *other == id).count() == 1];
            assert_eq!(n_places.iter().filter(|there| **there).count(), 1, "request {id} is in one place");
        }
        let n_placed = self.line.n_waiting() + self.line.parked().len() + self.running_ids().count();
        assert_eq!(n_placed, self.live.len(), "every place holds a live request");
        self.line.check(self.live.len());
        self.check_sequences();
        if !self.in_flight {
            self.embeds.check();
        }
        if self.ops.is_empty() && !self.in_flight && !self.is_lost {
            self.check_liveness();
        }
    }

    /// What a step can break, cheaply.
    pub(super) fn check_step(&self) {
        if self.limits.is_pool {
            assert!(self.sequences.cells.n_used() <= self.limits.n_ctx, "more cells in use than there are");
        }
        let bound = u64::from(self.options.max_queue) + u64::from(self.options.n_parallel);
        assert!(self.options.max_queue == 0 || self.n_live() <= bound, "the queue is over its bound");
        assert!(self.totals.n_submitted - self.totals.n_finished == self.n_live(), "each request ends once");
    }

    fn check_live(&self, live: &Live) {
        assert!(live.n_computed <= live.n_tokens(), "no more is computed than there is");
        assert!(live.n_generated() <= live.request.max_tokens, "no token after the last");
        match live.place {
            Place::Running { slot, seq } => {
                assert_eq!(self.slots[slot.0 as usize], Some(live.request.id), "its slot knows it");
                assert!(seq.0 < self.limits.n_seq_max, "its sequence can be computed");
                let holder = self.sequences.holder(seq);
                assert!(
                    matches!(holder, Some(Holder::Request(id)) if *id == live.request.id),
                    "its sequence is its own"
                );
                if self.ops.is_empty() && !self.in_flight {
                    assert_eq!(self.sequences.cells.len(seq), live.n_computed, "its cells are what is computed");
                    assert!(live.n_remaining() > 0 || live.is_pending, "a running request has something to compute");
                }
                if let Some(awaited) = live.awaits {
                    assert_eq!(live.n_computed, 0, "who awaits a prefix has none");
                    let donor = self.live.get(&awaited.donor);
                    assert!(donor.is_none_or(|d| d.admitted_no < live.admitted_no), "only older ones are awaited");
                }
            }
            Place::Waiting | Place::Parked { .. } => {
                assert_eq!((live.n_computed, live.awaits), (0, None), "who waits holds no cells and no promise");
            }
        }
    }

    fn check_sequences(&self) {
        for (seq, holder) in self.sequences.iter() {
            assert!(seq.0 < self.limits.n_seq_ids, "a sequence id that the backend knows");
            match holder {
                Holder::Request(id) => {
                    assert_eq!(self.live.get(id).and_then(Live::seq), Some(seq), "who holds a sequence runs on it");
                }
                Holder::Cached(cached) if self.ops.is_empty() && !self.in_flight => {
                    assert_eq!(self.sequences.cells.len(seq) as usize, cached.tokens.len(), "cells of a cached prefix");
                }
                Holder::Cached(_) => {}
            }
        }
    }

    /// A parked request never waits for itself. That a plan which finds nothing to do leaves nobody waiting is asserted
    /// in `plan`, after every one.
    fn check_liveness(&self) {
        let nobody_runs = self.running_ids().next().is_none() && !self.is_pending();
        if nobody_runs && self.line.n_waiting() == 0 && self.line.parked().len() > 0 {
            // Who was given more from the disk just now gets its slot next.
            let comes = self.line.parked().any(|id| self.live[&id].loaded_at.is_some());
            assert!(comes, "a parked request waits although nobody runs");
        }
    }
}
