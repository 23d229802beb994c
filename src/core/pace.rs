//! How much of prompts a pass reads beside streams: so much that the gap between two tokens of a stream stays within
//! `max_itl_ms`, by what passes are known to cost.

use super::cost::Load;
use super::running::Live;
use super::scheduler::Scheduler;
use super::strategy;
use super::time::Time;
use super::turns;
use super::work::{Grant, Row, StrategyView};
use crate::options::BatchStrategy;
use std::time::Duration;

/// Rows that prompts get however dear they are: they must come to an end.
const LEAST_ROWS: u32 = 4;
/// A pass with prompts may take so many times one that only decodes, whatever the bound.
const LEAST_BOUND: f64 = 1.5;

impl Scheduler {
    /// Share out a pass by a built-in strategy, within the bound that streams have.
    pub(super) fn paced(&self, now: Time, built_in: BatchStrategy, view: &StrategyView) -> Vec<Grant> {
        let share = |n_prompt_rows| strategy::share(built_in, view, self.last_served, n_prompt_rows);
        let whole = share(view.budget);
        let Some(bound) = self.bound(now, view) else { return whole };
        let fits = |grants: &[Grant]| self.costs.at_most(&self.load_of(grants)).is_none_or(|most| most <= bound);
        let n_whole = self.load_of(&whole).n_prefill;
        let least = LEAST_ROWS.max(turns::n_due(view));
        if n_whole <= least || fits(&whole) {
            return whole;
        }
        // As many rows as fit: `few` does or is owed, `many` does not.
        let (mut few, mut many) = (least, n_whole);
        while many - few > 1 {
            let half = u32::midpoint(few, many);
            if fits(&share(half)) {
                few = half;
            } else {
                many = half;
            }
        }
        share(few)
    }

    /// How long a pass may take, where streams wait for it that prompts would slow. What was done since the last pass
    /// counts: streams wait for their next token, whatever it is that they wait for.
    fn bound(&self, now: Time, view: &StrategyView) -> Option<Duration> {
        if self.options.max_itl.is_zero() || view.requests.iter().all(|row| row.decoding) {
            return None;
        }
        let mut streams = Load::default();
        for row in view.requests.iter().filter(|row| row.decoding) {
            streams.decode(row.n_computed);
        }
        if streams.n_decode == 0 {
            return None;
        }
        let left = self.options.max_itl.saturating_sub(now - self.passed_at);
        Some(left.max(self.costs.forecast(&streams)?.mul_f64(LEAST_BOUND)))
    }

    fn load_of(&self, grants: &[Grant]) -> Load {
        let mut load = Load::default();
        for grant in grants {
            let live = &self.live[&grant.request];
            if live.is_decoding() {
                load.decode(live.n_computed);
            } else {
                load.prefill(live.n_computed, grant.n_rows);
            }
        }
        load
    }

    /// What a pass with these rows computes. They are sorted by sequence, and not applied yet.
    pub(super) fn load_of_rows(&self, rows: &[Row]) -> Load {
        let mut load = Load::default();
        for chunk in rows.chunk_by(|a, b| a.request == b.request) {
            if self.live.get(&chunk[0].request).is_some_and(Live::is_decoding) {
                // Those of drafts too: each draws.
                for row in chunk {
                    load.decode(row.pos);
                }
            } else {
                load.prefill(chunk[0].pos, chunk.len() as u32);
            }
        }
        load
    }
}
