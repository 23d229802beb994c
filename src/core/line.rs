//! Whose turn it is: by priority, which waiting raises; then by who was served least; then by arrival.
//!
//! **Aging.** A request gains a level of priority for each `priority_aging` that it waits, up to that of the most urgent
//! who waits. All gain alike, so a level is a number that does not change: `priority * aging + arrival`, in eighths.
//! Whoever is at the level that the most urgent priority has *now*, or before it, is at the top, and there all are equal:
//! a flood that has waited long goes before nobody who is as urgent as it was at first.
//!
//! **Fairness.** Requests belong to flows, and what flows were served is counted in tokens. Next is, of the flows with
//! somebody at the top, the one that was served least: the Virtual Token Counter of Sheng et al., "Fairness in Serving
//! Large Language Models" (OSDI 2024), with its weights of 1 for a token of a prompt and 2 for a generated one. Tokens found
//! in a cache are free. A prompt is paid for when it gets its slot, an answer as it comes. A flow that begins to wait is
//! lifted to the least served of those that wait: nobody saves up by being away.
//!
//! Hence the bound. Beside the least served, a flow that waits is ahead by what it was given when it was the least served
//! itself at most: a prompt, and the answers of all its requests with a slot. With prompts of `P` tokens, answers of `G`
//! and `n` slots, the service of two flows that both always have somebody waiting differs by no more than
//! `2 * (P + 2 * n * G)` over any time.

use super::ids::RequestId;
use super::time::Time;
use crate::options::Key;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

/// What a generated token costs; a prompt's costs 1.
pub(super) const GENERATED: u64 = 2;

/// Levels of one step of priority. More of them age more evenly; each decision looks at as many as somebody has waited.
const STEPS: u32 = 8;

/// Flows without requests that are remembered, since they were served more than others: who comes back is not new.
const MAX_AWAY: usize = 1024;

/// A flow, while it has requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlowId(u32);

/// A place in the line. Orders those of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    level: i64,
    /// For who comes up again and again.
    round: u64,
    pub(super) id: RequestId,
    priority: i32,
    pub(super) flow: FlowId,
}

/// Where a flow stands in the line: its first turn, behind what it was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    level: i64,
    served: u64,
    first: Turn,
}

/// Who is served together.
#[derive(Debug, Default)]
struct Flow {
    key: Option<Key>,
    n_requests: u32,
    /// Unit: tokens, weighted.
    served: u64,
    waiting: BTreeSet<Turn>,
}

/// All who wait.
#[derive(Debug)]
pub(super) struct Line {
    /// A level's length in time. Unit: ns; none where priorities do not age.
    step: Option<u64>,
    flows: Vec<Flow>,
    free: Vec<FlowId>,
    ids: BTreeMap<Option<Key>, FlowId>,
    /// The flows that wait.
    ranks: BTreeSet<Rank>,
    n_waiting: usize,
    /// Those who had a turn and want to go on: they go before the others of their level.
    parked: BTreeSet<Turn>,
    /// How many have each priority, parked ones included.
    priorities: BTreeMap<i32, u32>,
    /// What the flow was served whose turn was last, before it.
    last_served: u64,
    /// Flows without requests.
    away: BTreeSet<(u64, FlowId)>,
}

impl Line {
    /// Nobody, who gains a level in so much time; in none, nobody ever does.
    pub(super) fn new(aging: Duration) -> Self {
        let step = u64::try_from((aging / STEPS).as_nanos()).unwrap_or(u64::MAX);
        Self {
            step: (!aging.is_zero()).then_some(step.max(1)),
            flows: Vec::new(),
            free: Vec::new(),
            ids: BTreeMap::new(),
            ranks: BTreeSet::new(),
            n_waiting: 0,
            parked: BTreeSet::new(),
            priorities: BTreeMap::new(),
            last_served: 0,
            away: BTreeSet::new(),
        }
    }

    /// A flow has one request more.
    pub(super) fn join(&mut self, key: Option<&Key>) -> FlowId {
        let key = key.cloned();
        let id = match self.ids.get(&key) {
            Some(id) => *id,
            None => self.make(key),
        };
        let flow = &mut self.flows[id.0 as usize];
        flow.n_requests += 1;
        self.away.remove(&(flow.served, id));
        id
    }

    fn make(&mut self, key: Option<Key>) -> FlowId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.flows.push(Flow::default());
            FlowId(self.flows.len() as u32 - 1)
        });
        self.ids.insert(key.clone(), id);
        self.flows[id.0 as usize] = Flow { key, ..Flow::default() };
        id
    }

    /// A flow has one request less. The last one's flow is forgotten, unless it is ahead of others.
    pub(super) fn leave(&mut self, id: FlowId) {
        let flow = &mut self.flows[id.0 as usize];
        flow.n_requests -= 1;
        if flow.n_requests == 0 {
            self.away.insert((flow.served, id));
            self.forget();
        }
    }

    /// Forget the flows that would be lifted if they came back, and more where there are too many.
    fn forget(&mut self) {
        while let Some((served, id)) = self.away.first().copied() {
            if served > self.last_served && self.away.len() <= MAX_AWAY {
                return;
            }
            self.away.pop_first();
            let flow = std::mem::take(&mut self.flows[id.0 as usize]);
            self.ids.remove(&flow.key);
            self.free.push(id);
        }
    }

    /// Requests of a flow, wherever they are.
    pub(super) fn n_requests(&self, key: Option<&Key>) -> u32 {
        self.ids.get(&key.cloned()).map_or(0, |id| self.flows[id.0 as usize].n_requests)
    }

    /// The turn of a request of this priority that came at that time.
    pub(super) fn turn(&self, flow: FlowId, id: RequestId, priority: i32, arrived: Time) -> Turn {
        Turn { level: self.level(priority, arrived), round: 0, id, priority, flow }
    }

    fn level(&self, priority: i32, at: Time) -> i64 {
        let steps = self.step.map_or(0, |step| at.0 / step);
        (i64::from(priority) * i64::from(STEPS)).saturating_add(i64::try_from(steps).unwrap_or(i64::MAX))
    }

    /// Somebody waits from now on.
    pub(super) fn wait(&mut self, turn: Turn) {
        self.n_waiting += 1;
        *self.priorities.entry(turn.priority).or_default() += 1;
        let before = self.take_rank(turn.flow);
        if before.is_none_or(|rank| turn < rank.first) {
            let least = self.least_served(turn.level).map_or(self.last_served, |rank| rank.served);
            let flow = &mut self.flows[turn.flow.0 as usize];
            flow.served = flow.served.max(least);
        }
        self.flows[turn.flow.0 as usize].waiting.insert(turn);
        self.put_rank(turn.flow);
    }

    /// Somebody who had a turn waits to go on.
    pub(super) fn park(&mut self, turn: Turn) {
        *self.priorities.entry(turn.priority).or_default() += 1;
        self.parked.insert(turn);
    }

    /// Somebody waits no more.
    pub(super) fn remove(&mut self, turn: Turn) {
        if self.parked.remove(&turn) {
            return self.uncount(turn.priority);
        }
        let rank = self.take_rank(turn.flow);
        if rank.is_some() && self.flows[turn.flow.0 as usize].waiting.remove(&turn) {
            self.n_waiting -= 1;
            self.uncount(turn.priority);
        }
        self.put_rank(turn.flow);
    }

    /// A flow's turn has come, which costs so much.
    pub(super) fn serve(&mut self, id: FlowId, cost: u64) {
        self.last_served = self.flows[id.0 as usize].served;
        self.charge(id, cost);
        self.forget();
    }

    /// Who had a turn wants another: it is behind those of its flow who have waited for theirs.
    pub(super) fn again(&mut self, now: Time, turn: Turn, round: u64) -> Turn {
        let next = Turn { level: self.level(turn.priority, now), round, ..turn };
        // In this order, so that its flow does not begin to wait.
        self.wait(next);
        self.remove(turn);
        next
    }

    /// A flow was served.
    pub(super) fn charge(&mut self, id: FlowId, cost: u64) {
        self.take_rank(id);
        self.flows[id.0 as usize].served += cost;
        self.put_rank(id);
    }

    /// A flow gets back what it paid for and was not given.
    pub(super) fn refund(&mut self, id: FlowId, cost: u64) {
        self.take_rank(id);
        let flow = &mut self.flows[id.0 as usize];
        flow.served = flow.served.saturating_sub(cost);
        self.put_rank(id);
    }

    /// Whose turn it is.
    pub(super) fn next(&self, now: Time) -> Option<Turn> {
        let (most_urgent, _) = self.priorities.first_key_value()?;
        let top = self.level(*most_urgent, now);
        let parked = self.parked.first().copied();
        let waiting = || self.least_served(top).map(|rank| rank.first);
        parked.filter(|turn| turn.level <= top).or_else(waiting).or(parked)
    }

    /// Of the flows that wait at this level or before it, the one that was served least; if there is none, of those at the
    /// first level that has some.
    fn least_served(&self, last_level: i64) -> Option<Rank> {
        let mut best: Option<Rank> = None;
        let mut rank = self.ranks.first().copied();
        while let Some(found) = rank.filter(|rank| best.is_none() || rank.level <= last_level) {
            if best.is_none_or(|best| (found.served, found.first) < (best.served, best.first)) {
                best = Some(found);
            }
            rank = self.first_after(found.level);
        }
        best
    }

    fn first_after(&self, level: i64) -> Option<Rank> {
        let last = Turn { level, round: u64::MAX, id: RequestId(u64::MAX), priority: i32::MAX, flow: FlowId(u32::MAX) };
        let last = Rank { level, served: u64::MAX, first: last };
        self.ranks.range((Bound::Excluded(last), Bound::Unbounded)).next().copied()
    }

    fn rank(&self, id: FlowId) -> Option<Rank> {
        let flow = &self.flows[id.0 as usize];
        flow.waiting.first().map(|first| Rank { level: first.level, served: flow.served, first: *first })
    }

    fn take_rank(&mut self, id: FlowId) -> Option<Rank> {
        let rank = self.rank(id)?;
        self.ranks.remove(&rank);
        Some(rank)
    }

    fn put_rank(&mut self, id: FlowId) {
        self.ranks.extend(self.rank(id));
    }

    fn uncount(&mut self, priority: i32) {
        if let Some(n) = self.priorities.get_mut(&priority) {
            *n -= 1;
            if *n == 0 {
                self.priorities.remove(&priority);
            }
        }
    }

    /// Those who wait without having had a turn.
    pub(super) fn n_waiting(&self) -> usize {
        self.n_waiting
    }

    /// Those who wait to go on.
    pub(super) fn parked(&self) -> impl ExactSizeIterator<Item = RequestId> {
        self.parked.iter().map(|turn| turn.id)
    }

    /// Whether somebody waits for a first turn, and for another.
    pub(super) fn holds(&self, turn: &Turn) -> (bool, bool) {
        (self.flows[turn.flow.0 as usize].waiting.contains(turn), self.parked.contains(turn))
    }

    /// All that holds between two calls.
    ///
    /// # Panics
    /// When something does not.
    pub(super) fn check(&self, n_requests: usize) {
        let mut priorities: BTreeMap<i32, u32> = BTreeMap::new();
        for turn in self.flows.iter().flat_map(|flow| &flow.waiting).chain(&self.parked) {
            *priorities.entry(turn.priority).or_default() += 1;
        }
        assert_eq!(priorities, self.priorities, "who waits is counted under its priority");
        let ranks: BTreeSet<Rank> = (0..self.flows.len() as u32).filter_map(|id| self.rank(FlowId(id))).collect();
        assert_eq!(ranks, self.ranks, "a flow that waits stands in line with what it was served");
        assert_eq!(self.flows.iter().map(|flow| flow.waiting.len()).sum::<usize>(), self.n_waiting);
        assert_eq!(self.flows.iter().map(|flow| flow.n_requests as usize).sum::<usize>(), n_requests);
        assert_eq!(self.ids.len() + self.free.len(), self.flows.len(), "every flow has a name or is free");
        let n_idle = self.ids.values().filter(|id| self.flows[id.0 as usize].n_requests == 0).count();
        assert!(n_idle == self.away.len() && n_idle <= MAX_AWAY, "flows without requests are few");
    }
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
