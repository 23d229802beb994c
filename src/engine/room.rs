//! The queue's bounds: how many requests run and wait in all and of one scope, and who waits for room among them.
//!
//! Where a full queue makes its callers wait, those of a scope come in as they came, and between scopes the one that has
//! fewest in the engine: a scope that is full, or floods it, holds up nobody else.

use super::intake::Entry;
use crate::core::RequestId;
use crate::error::{Error, QueueBound};
use crate::options::{Key, QueueFullPolicy, StartOptions};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Whose requests are counted together; none is a scope too.
pub(super) type ScopeKey = Option<Key>;

/// The requests of one scope.
#[derive(Default)]
pub(super) struct Scope {
    n_in_flight: u32,
    /// Waiting for room, in order of arrival.
    waiting: VecDeque<Entry>,
}

/// All scopes that have requests.
pub(super) type Scopes = BTreeMap<ScopeKey, Scope>;

/// What the bounds leave.
pub(super) struct Room {
    policy: QueueFullPolicy,
    n_parallel: u32,
    max_queue: u32,
    max_queue_per_scope: u32,
    n_in_flight: u32,
    n_waiting: u32,
    scopes: Scopes,
    /// The first of each scope that has room of its own: how many it has in flight, who, whose.
    heads: BTreeSet<(u32, RequestId, ScopeKey)>,
}

impl Room {
    pub(super) fn new(options: &StartOptions) -> Self {
        Self {
            policy: options.queue_full,
            n_parallel: options.n_parallel,
            max_queue: options.max_queue,
            max_queue_per_scope: options.max_queue_per_scope,
            n_in_flight: 0,
            n_waiting: 0,
            scopes: Scopes::new(),
            heads: BTreeSet::new(),
        }
    }

    /// Whether a request has its place from its arrival on, or is refused then.
    pub(super) fn reserves(&self) -> bool {
        self.policy == QueueFullPolicy::Raise
    }

    /// How many run and wait, and how many wait for room.
    pub(super) fn counts(&self) -> (u32, u32) {
        (self.n_in_flight, self.n_waiting)
    }

    /// Why a request of `n` answers does not come in, if it does not.
    pub(super) fn refusal(&self, key: &ScopeKey, n: u32) -> Option<Error> {
        if !self.reserves() {
            return None;
        }
        let bounds = self.bounds(key);
        let never = bounds.iter().flatten().find(|bound| n > bound.most).map(|bound| {
            let (most, option) = (bound.most, bound.which.option());
            Error::Option(format!("n={n}: at most {most} answers run and wait here (n_parallel + {option})"))
        });
        never.or_else(|| {
            let full = bounds.iter().flatten().find(|bound| bound.n.saturating_add(n) > bound.most);
            full.map(|full| Error::QueueFull { bound: full.which, limit: full.limit })
        })
    }

    fn bounds(&self, key: &ScopeKey) -> [Option<Bound>; 2] {
        let bound = |which, limit: u32, n| {
            (limit > 0).then(|| Bound { which, limit, most: self.n_parallel.saturating_add(limit), n })
        };
        let n_in_scope = self.scopes.get(key).map_or(0, |scope| scope.n_in_flight);
        [
            bound(QueueBound::All, self.max_queue, self.n_in_flight),
            bound(QueueBound::Scope, self.max_queue_per_scope, n_in_scope),
        ]
    }

    /// Whether one more has room, in all and in its scope.
    fn has_room(&self, key: &ScopeKey) -> bool {
        self.bounds(key).iter().flatten().all(|bound| bound.n < bound.most)
    }

    /// So many places are taken.
    pub(super) fn take(&mut self, key: &ScopeKey, n: u32) {
        self.n_in_flight = self.n_in_flight.saturating_add(n);
        self.change(key, |scope| scope.n_in_flight = scope.n_in_flight.saturating_add(n));
    }

    /// So many places are given back.
    pub(super) fn give_back(&mut self, key: &ScopeKey, n: u32) {
        self.n_in_flight = self.n_in_flight.saturating_sub(n);
        self.change(key, |scope| scope.n_in_flight = scope.n_in_flight.saturating_sub(n));
    }

    /// Who has no place gets one, or waits for it.
    pub(super) fn enter(&mut self, entry: Entry) -> Option<Entry> {
        let key = entry.request.flow.clone();
        let is_first = self.scopes.get(&key).is_none_or(|scope| scope.waiting.is_empty());
        if is_first && self.has_room(&key) {
            self.take(&key, 1);
            return Some(entry);
        }
        self.n_waiting += 1;
        self.change(&key, |scope| scope.waiting.push_back(entry));
        None
    }

    /// The next of those who wait, if it has room.
    pub(super) fn next(&mut self) -> Option<Entry> {
        let (.., key) = self.heads.first().filter(|(.., key)| self.has_room(key))?.clone();
        let entry = self.change(&key, |scope| scope.waiting.pop_front())?;
        self.n_waiting -= 1;
        self.take(&key, 1);
        Some(entry)
    }

    /// Somebody waits no more.
    pub(super) fn leave(&mut self, key: &ScopeKey, id: RequestId) -> Option<Entry> {
        let entry = self.change(key, |scope| {
            let at = scope.waiting.binary_search_by_key(&id, |entry| entry.request.id).ok()?;
            scope.waiting.remove(at)
        })?;
        self.n_waiting -= 1;
        Some(entry)
    }

    /// All who wait for room.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Entry> {
        self.scopes.values().flat_map(|scope| &scope.waiting)
    }

    /// Nobody is there any more; those who were, to be dropped without the lock.
    pub(super) fn clear(&mut self) -> Scopes {
        (self.n_in_flight, self.n_waiting) = (0, 0);
        self.heads.clear();
        std::mem::take(&mut self.scopes)
    }

    /// Change a scope, and keep the first of its line where it belongs.
    fn change<T>(&mut self, key: &ScopeKey, change: impl FnOnce(&mut Scope) -> T) -> T {
        let most = self.n_parallel.saturating_add(self.max_queue_per_scope);
        let is_bounded = self.max_queue_per_scope > 0;
        let head = |scope: &Scope| {
            let first = scope.waiting.front().filter(|_| !is_bounded || scope.n_in_flight < most)?;
            Some((scope.n_in_flight, first.request.id, key.clone()))
        };
        let scope = self.scopes.entry(key.clone()).or_default();
        let before = head(scope);
        let result = change(scope);
        let after = head(scope);
        if scope.n_in_flight == 0 && scope.waiting.is_empty() {
            self.scopes.remove(key);
        }
        if before != after {
            before.map(|head| self.heads.remove(&head));
            self.heads.extend(after);
        }
        result
    }
}

/// One of the bounds.
struct Bound {
    which: QueueBound,
    /// What its option says.
    limit: u32,
    /// Requests that may run and wait.
    most: u32,
    /// How many there are.
    n: u32,
}
