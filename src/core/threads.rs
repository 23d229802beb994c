//! How many threads compute a pass: fewer while other work wants the cores, more again when they are free.
//!
//! The threads of a pass wait for each other some hundred times. One that has to share its core holds up all of them, so
//! that beside a busy process fewer threads can be several times as fast. How many are best differs between passes of few
//! rows, which compute little between two waits, and those of many: each kind has a count of its own.
//!
//! That passes have become longer than is known of them is told by a CUSUM test (Page, 1954). Then another count is tried
//! for a few passes, and the better one stays. More threads are tried when cores were idle of late, or by time where that
//! is not known; each trial that fails makes the next one come later.

use super::cost::{Costs, Load};
use super::op::Op;
use super::scheduler::Scheduler;
use super::time::Time;
use std::time::Duration;

/// Rows of a large pass.
const MANY_ROWS: u32 = 32;
/// How much longer a pass may take than it is known to take at most without being suspicious.
const ALLOWANCE: f64 = 1.1;
/// What passes took too long in all, in passes, before fewer threads are tried.
const SUSPICION: f64 = 1.0;
const MOST_SUSPICION: f64 = 64.0;
/// Part that a pass which is as it should be takes from what trials that failed have added.
const FORGIVENESS: f64 = 0.01;
/// Passes of a trial, unless the first of them is this much better or worse than those before it.
const N_TRIAL: u32 = 3;
const CLEAR: f64 = 1.3;
/// What a count must be better by.
const GAIN: f64 = 0.97;
/// Part of each pass in what is known of the lengths of late.
const MEMORY: f64 = 1.0 / 8.0;
/// Idle cores for which one more thread is tried.
const IDLE: f32 = 0.5;
/// Time without a trial of more threads after one that failed, or after there were too many: at first, and at most where
/// idle cores are told and where they are not.
const FIRST_REST: Duration = Duration::from_millis(500);
const MOST_REST: Duration = Duration::from_secs(16);
const MOST_BLIND_REST: Duration = Duration::from_secs(256);
/// Time that is spent in small passes before fewer threads are tried without any suspicion: the best count may never have been
/// seen. Each further time comes after this many times as long.
const FIRST_CURIOSITY: Duration = Duration::from_millis(500);
const CURIOSITY_GROWTH: u32 = 8;

/// Threads of all passes.
#[derive(Debug)]
pub(super) struct Threads {
    /// 0 where they are not the core's to say.
    most: u32,
    /// What the backend was told last.
    set: u32,
    small: Crew,
    large: Crew,
}

/// Threads of one kind of pass.
#[derive(Debug)]
struct Crew {
    n: u32,
    /// What passes cost before one was suspicious.
    calm: Costs,
    /// How long passes took of late, and should have taken. Unit: ns, decayed.
    took: f64,
    expected: f64,
    /// The test's sum, and what it may reach.
    excess: f64,
    patience: f64,
    rest: Duration,
    rest_until: Time,
    /// Time to spend before the next trial out of curiosity; none without curiosity.
    curious_in: Option<Duration>,
    curiosity: Duration,
    trial: Option<Trial>,
}

/// Another count, for a few passes.
#[derive(Debug)]
struct Trial {
    from: u32,
    /// Length over expectation at the count before.
    before: f64,
    took: f64,
    expected: f64,
    n_passes: u32,
    /// What passes cost there.
    costs: Costs,
    /// Whether passes had become longer, so that even fewer are tried where these do not help.
    is_suspected: bool,
}

impl Threads {
    pub(super) fn new(most: u32) -> Self {
        let curious = (most > 1).then_some(FIRST_CURIOSITY);
        Self { most, set: most, small: Crew::new(most, curious), large: Crew::new(most, None) }
    }

    /// The backend is another one, whose passes have as many threads as they may.
    pub(super) fn begin_anew(&mut self, most: u32) {
        if most == self.most {
            self.set = most;
        } else {
            *self = Self::new(most);
        }
    }

    /// Threads of passes of few and of many rows; 0 where they are not the core's to say.
    pub(super) fn counts(&self) -> (u32, u32) {
        (self.small.n, self.large.n)
    }

    /// What the backend has to be told, if anything, before a pass with so many threads.
    fn change(&mut self, n: u32) -> Option<Op> {
        (std::mem::replace(&mut self.set, n) != n).then_some(Op::Threads(n))
    }

    /// A pass was done, and has been learned from.
    pub(super) fn note(&mut self, now: Time, load: &Load, took: Duration, idle: Option<f32>, costs: &mut Costs) {
        if self.most > 1 && !took.is_zero() {
            let crew = if is_large(load) { &mut self.large } else { &mut self.small };
            crew.note(&Seen { now, took: took.as_nanos() as f64, load, idle, most: self.most }, costs);
        }
    }
}

fn is_large(load: &Load) -> bool {
    load.n_decode + load.n_prefill >= MANY_ROWS
}

impl Scheduler {
    /// Have the next pass computed by as many threads as are best for it; whether the backend is to be told first.
    pub(super) fn man_for(&mut self, load: &Load) -> bool {
        let crew = if is_large(load) { &self.threads.large } else { &self.threads.small };
        self.man(crew.n)
    }

    /// The same for a pass over texts, of which nothing is learned.
    pub(super) fn man_fully(&mut self) -> bool {
        self.man(self.threads.most)
    }

    fn man(&mut self, n_threads: u32) -> bool {
        let change = self.threads.change(n_threads);
        let is_change = change.is_some();
        self.ops.extend(change);
        is_change
    }
}

/// What a pass showed.
struct Seen<'a> {
    now: Time,
    took: f64,
    load: &'a Load,
    idle: Option<f32>,
    most: u32,
}

impl Crew {
    fn new(n: u32, curious_in: Option<Duration>) -> Self {
        Self {
            n,
            calm: Costs::default(),
            took: 0.0,
            expected: 0.0,
            excess: 0.0,
            patience: SUSPICION,
            rest: FIRST_REST,
            rest_until: Time::default(),
            curious_in,
            curiosity: FIRST_CURIOSITY,
            trial: None,
        }
    }

    fn note(&mut self, seen: &Seen<'_>, costs: &mut Costs) {
        let nanos = |length: Option<Duration>| length.map_or(0.0, |length| length.as_nanos() as f64);
        let (expected, at_most) = (nanos(self.calm.forecast(seen.load)), nanos(self.calm.at_most(seen.load)));
        if expected <= 0.0 {
            self.calm = *costs;
            return;
        }
        if let Some(trial) = &mut self.trial {
            trial.took += seen.took;
            trial.expected += expected;
            trial.n_passes += 1;
            return self.judge(seen, costs);
        }
        self.took += seen.took - self.took * MEMORY;
        self.expected += expected - self.expected * MEMORY;
        self.excess = (self.excess + seen.took / at_most - ALLOWANCE).max(0.0);
        if self.excess == 0.0 {
            self.calm = *costs;
            self.patience = (self.patience * (1.0 - FORGIVENESS)).max(SUSPICION);
            self.rest = self.rest.mul_f64(1.0 - FORGIVENESS).max(FIRST_REST);
        }
        if let Some(n) = self.other_count(seen) {
            self.try_out(n, costs);
        } else if self.excess > self.patience {
            // There is no smaller count: this is how long passes take now.
            self.settle();
        }
    }

    /// Which count is to be tried now, if any.
    fn other_count(&mut self, seen: &Seen<'_>) -> Option<u32> {
        let fewer = self.n - (self.n / 4).max(1).min(self.n - 1);
        let is_idle = seen.idle.is_none_or(|idle| idle >= IDLE);
        if self.excess > self.patience {
            return (self.n > 1).then_some(fewer);
        }
        if self.n < seen.most && is_idle && seen.now >= self.rest_until {
            let n_idle = seen.idle.map_or(1, |idle| idle.round() as u32);
            return Some(seen.most.min(self.n + n_idle.max(1)));
        }
        let left = self.curious_in.as_mut()?;
        *left = left.saturating_sub(Duration::from_nanos(seen.took as u64));
        if !left.is_zero() || self.n == 1 {
            return None;
        }
        self.curiosity = self.curiosity.saturating_mul(CURIOSITY_GROWTH);
        *left = self.curiosity;
        Some(fewer)
    }

    fn try_out(&mut self, n: u32, costs: &mut Costs) {
        let (before, is_suspected) = (self.took / self.expected, self.excess > self.patience);
        let from = self.n;
        self.trial = Some(Trial { from, before, took: 0.0, expected: 0.0, n_passes: 0, costs: *costs, is_suspected });
        self.n = n;
        costs.doubt_speed();
    }

    /// Whether the count that is tried stays.
    fn judge(&mut self, seen: &Seen<'_>, costs: &mut Costs) {
        let Some(trial) = &mut self.trial else { return };
        let ratio = trial.took / trial.expected / trial.before;
        let is_clear = !(1.0 / CLEAR..=CLEAR).contains(&ratio);
        if trial.n_passes < N_TRIAL && !is_clear {
            return;
        }
        let (from, old_costs) = (trial.from, trial.costs);
        let (is_better, were_fewer) = (ratio < GAIN, from < self.n);
        if !is_better && trial.is_suspected && self.n > 1 {
            // With many neighbours, some thread has to wait for a core until there are far fewer.
            (trial.took, trial.expected, trial.n_passes) = (0.0, 0.0, 0);
            self.n /= 2;
            return costs.doubt_speed();
        }
        if is_better {
            self.patience = SUSPICION;
        } else {
            self.n = from;
            *costs = old_costs;
            costs.doubt_speed();
            self.patience = (self.patience * 2.0).min(MOST_SUSPICION);
        }
        if is_better != were_fewer {
            // It was too many, before or in the trial.
            self.rest_until = seen.now + self.rest;
            let most = if seen.idle.is_some() { MOST_REST } else { MOST_BLIND_REST };
            self.rest = (self.rest * 2).min(most);
        }
        self.settle();
    }

    /// How long passes take now is how it is, and is seen in the next one.
    fn settle(&mut self) {
        self.trial = None;
        self.calm = Costs::default();
        (self.took, self.expected, self.excess) = (0.0, 0.0, 0.0);
    }
}
