//! Whose time is over: the limits of a request, and who comes back for them when.

use super::ids::RequestId;
use super::request::Request;
use super::running::Place;
use super::scheduler::Scheduler;
use super::time::Time;
use crate::error::{Error, TimeoutKind};
use std::time::Duration;

/// A `TimeoutKind` that can be ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimeoutOrder {
    Total,
    Queue,
}

impl Scheduler {
    /// A request came in, with its limits.
    pub(super) fn note_deadlines(&mut self, now: Time, request: &Request) {
        let id = request.id;
        if let Some(timeout) = request.timeout {
            self.deadlines.insert((now + timeout, id, TimeoutOrder::Total));
        }
        if let Some(timeout) = request.queue_timeout {
            self.deadlines.insert((now + timeout, id, TimeoutOrder::Queue));
        }
    }

    /// End the requests whose time is over.
    pub fn handle_timeout(&mut self, now: Time) {
        let later = (Time(now.0.saturating_add(1)), RequestId(0), TimeoutOrder::Total);
        let rest = self.deadlines.split_off(&later);
        for (_, id, order) in std::mem::replace(&mut self.deadlines, rest) {
            let live = self.live.get(&id).map(|live| (&live.request, live.place == Place::Waiting));
            let Some((request, is_waiting)) = live.or_else(|| self.embeds.find(id)) else { continue };
            let (kind, limit) = match order {
                TimeoutOrder::Total => (TimeoutKind::Total, request.timeout),
                TimeoutOrder::Queue if is_waiting => (TimeoutKind::Queue, request.queue_timeout),
                TimeoutOrder::Queue => continue,
            };
            self.end(now, id, Err(timeout_error(kind, limit)));
        }
        let stalled: Vec<RequestId> =
            self.running_ids().filter(|id| self.stalls_at(*id).is_some_and(|at| at <= now)).collect();
        for id in stalled {
            let limit = self.live[&id].request.stall_timeout;
            self.end(now, id, Err(timeout_error(TimeoutKind::Stall, limit)));
        }
    }

    /// When `handle_timeout` is due at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        let stalls = self.running_ids().filter_map(|id| self.stalls_at(id)).min();
        self.deadlines.first().map(|(at, ..)| *at).into_iter().chain(stalls).min()
    }

    /// When a request ran out of time, or will: `stall_timeout`, which counts only while it holds a slot. The progress of
    /// whom it awaits is its own.
    fn stalls_at(&self, id: RequestId) -> Option<Time> {
        let live = &self.live[&id];
        let limit = live.request.stall_timeout?;
        let mut progressed_at = live.progressed_at;
        let mut awaits = live.awaits;
        while let Some(donor) = awaits.and_then(|awaited| self.live.get(&awaited.donor)) {
            progressed_at = progressed_at.max(donor.progressed_at);
            awaits = donor.awaits;
        }
        live.seq().map(|_| progressed_at + limit)
    }

    pub(super) fn forget_deadlines(&mut self, request: &Request, submitted_at: Time) {
        if let Some(timeout) = request.timeout {
            self.deadlines.remove(&(submitted_at + timeout, request.id, TimeoutOrder::Total));
        }
        if let Some(timeout) = request.queue_timeout {
            self.deadlines.remove(&(submitted_at + timeout, request.id, TimeoutOrder::Queue));
        }
    }
}

fn timeout_error(kind: TimeoutKind, limit: Option<Duration>) -> Error {
    Error::RequestTimeout { kind, limit_s: limit.unwrap_or_default().as_secs_f64() }
}
