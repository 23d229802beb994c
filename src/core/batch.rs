//! The next forward pass: shared out by the strategy, fitted into the KV cells that are left.

use super::event::{Event, FinishReason, PressureReason};
use super::ids::{RequestId, SeqId};
use super::op::Op;
use super::ram::Most;
use super::running::{Live, Place};
use super::scheduler::Scheduler;
use super::strategy;
use super::time::Time;
use super::work::{Grant, Row, StrategyRow, StrategyView, Work};
use crate::options::{BatchStrategy, StrategyOption};
use std::collections::BTreeMap;

impl Scheduler {
    /// A pass over the running requests; nothing where ops have to come first, or nobody runs.
    pub(super) fn plan_pass(&mut self, now: Time) -> Option<Work> {
        while self.running_ids().next().is_some() {
            let mut view = self.view();
            if view.requests.is_empty() {
                // Those who were awaited are gone.
                self.end_waits(now);
                if !self.ops.is_empty() {
                    return None;
                }
                self.tell_starts();
                view = self.view();
            }
            if view.requests.is_empty() && self.is_pending() {
                return None;
            }
            let grants = match self.options.batch_strategy {
                StrategyOption::Builtin(built_in) => self.paced(now, built_in, &view),
                StrategyOption::Callable(_) => match self.custom_grants.take() {
                    None => return Some(Work::Strategy(view)),
                    Some(answer) => self.custom_or_default(now, &view, answer),
                },
            };
            let grants = self.fit_cells(now, grants);
            if !self.ops.is_empty() {
                return None;
            }
            let rows = self.rows(&self.fit_outputs(grants));
            if !rows.is_empty() {
                let rows = self.add_drafts(now, rows);
                self.load = self.load_of_rows(&rows);
                if self.man_for(&self.load.clone()) {
                    return None;
                }
                self.forecast = self.costs.forecast(&self.load);
                return Some(Work::Decode(rows));
            }
        }
        None
    }

    /// Whether somebody's own sampler is still to draw.
    pub(super) fn is_pending(&self) -> bool {
        self.live.values().any(|live| live.is_pending)
    }

    fn view(&self) -> StrategyView {
        let computes = |id: &RequestId| self.live[id].awaits.is_none() && !self.live[id].is_pending;
        let mut running: Vec<_> =
            self.running_ids().filter(computes).map(|id| (self.live[&id].admitted_no, id)).collect();
        running.sort_unstable();
        let requests = running.into_iter().filter_map(|(_, id)| {
            let live = &self.live[&id];
            Some(StrategyRow {
                request: id,
                seq: live.seq()?,
                decoding: live.is_decoding(),
                n_remaining: self.n_until_stop(live),
                n_computed: live.n_computed,
                priority: live.request.priority,
                n_left_out: live.n_left_out,
            })
        });
        StrategyView {
            requests: requests.collect(),
            budget: self.max_rows().min(self.row_cap.unwrap_or(u32::MAX)),
            chunk_size: self.options.chunk_size,
            queue_depth: self.queue_depth(),
        }
    }

    /// A custom strategy's answer, which no bound trims; or the default's where it is late, raised or breaks a rule.
    fn custom_or_default(&mut self, now: Time, view: &StrategyView, answer: Result<Vec<Grant>, String>) -> Vec<Grant> {
        let answer = answer.and_then(|grants| strategy::validate(view, &grants).map(|()| grants));
        answer.unwrap_or_else(|reason| {
            self.events.push_back(Event::StrategyFailed { reason });
            self.paced(now, BatchStrategy::DecodeMaximal, view)
        })
    }

    /// Make room for the rows: evict cached sequences, then give fewer rows to prompts, then park who came last.
    /// What was freed is seen at the next plan; the grants are then of no use.
    fn fit_cells(&mut self, now: Time, mut grants: Vec<Grant>) -> Vec<Grant> {
        if !self.limits.is_pool {
            return grants;
        }
        let n_free = self.limits.n_ctx - self.sequences.cells.n_used();
        let n_rows: u32 = grants.iter().map(|grant| grant.n_rows).sum();
        if n_rows <= n_free || self.evict_for(n_rows - n_free, None) {
            return grants;
        }
        let n_decode = grants.iter().filter(|grant| self.live[&grant.request].is_decoding()).count() as u32;
        if n_decode > n_free || n_free == 0 {
            self.yield_one(now);
            return Vec::new();
        }
        let mut n_left = n_free - n_decode;
        for grant in grants.iter_mut().filter(|grant| !self.live[&grant.request].is_decoding()) {
            grant.n_rows = grant.n_rows.min(n_left);
            n_left -= grant.n_rows;
        }
        grants
    }

    /// Give fewer rows to prompts whose every token is scored: only so many rows can have their logits looked at.
    fn fit_outputs(&self, mut grants: Vec<Grant>) -> Vec<Grant> {
        let scores = |grant: &Grant| self.live[&grant.request].first_to_score();
        let n_others = grants.iter().filter(|grant| scores(grant).is_none()).count() as u32;
        let mut n_left = self.limits.n_outputs.saturating_sub(n_others);
        for grant in &mut grants {
            let Some(first) = scores(grant) else { continue };
            let n_silent = first.saturating_sub(self.live[&grant.request].n_computed);
            grant.n_rows = grant.n_rows.min(n_silent + n_left);
            n_left -= grant.n_rows.saturating_sub(n_silent);
        }
        grants
    }

    /// Drop least recently used cached sequences for `n_cells`; whether any was there to drop.
    pub(super) fn evict_for(&mut self, n_cells: u32, spared: Option<SeqId>) -> bool {
        let mut n_freed = 0;
        while n_freed < n_cells {
            let Some(victim) = self.sequences.victim(spared) else { break };
            n_freed += self.sequences.cells.n_exclusive(victim).max(1);
            self.evict(victim, PressureReason::Cells);
        }
        n_freed > 0
    }

    /// Drop one cached sequence for room, and keep what it holds in RAM.
    pub(super) fn evict(&mut self, victim: SeqId, reason: PressureReason) {
        self.save_cached(victim);
        self.freeing += self.sequences.cells.n_exclusive(victim);
        self.drop_cached(victim);
        self.pressure.reason = reason;
        self.pressure.purged.push(victim);
        self.totals.n_evicted += 1;
    }

    /// No cell is left for the running requests: one gives up its own. One that is alone has filled its context.
    pub(super) fn yield_one(&mut self, now: Time) {
        match self.who_yields() {
            Some((id, true)) => self.finish(now, id, Ok(FinishReason::ContextFull)),
            Some((id, false)) => self.park(now, id),
            None => {}
        }
    }

    /// Take a request out of the KV cache. Its tokens stay; what the RAM tier has no room for is computed again when it
    /// resumes.
    fn park(&mut self, now: Time, id: RequestId) {
        if let Some(seq) = self.live.get(&id).and_then(Live::seq) {
            self.save_running(now, id, seq, Most::ALL);
        }
        let Some(live) = self.live.get_mut(&id) else { return };
        let Place::Running { slot, seq } = live.place else { return };
        live.place = Place::Parked { since: now };
        live.n_computed = 0;
        live.awaits = None;
        let (n_tokens, turn) = (live.n_tokens(), live.turn);
        self.slots[slot.0 as usize] = None;
        self.line.park(turn);
        self.sequences.release(seq);
        self.ops.push(Op::Remove(seq));
        self.pressure.n_parked += 1;
        self.totals.n_parked += 1;
        self.events.push_back(Event::Parked { request: id, seq, n_tokens });
    }

    /// The rows that the grants stand for, by sequence: llama.cpp's split memories want ascending ids together.
    fn rows(&self, grants: &[Grant]) -> Vec<Row> {
        let granted: BTreeMap<RequestId, u32> = grants.iter().map(|grant| (grant.request, grant.n_rows)).collect();
        let mut running: Vec<(SeqId, RequestId)> =
            granted.keys().filter_map(|id| Some((self.live[id].seq()?, *id))).collect();
        running.sort_unstable();
        let mut rows = Vec::with_capacity(grants.iter().map(|grant| grant.n_rows as usize).sum());
        for (seq, request) in running {
            let live = &self.live[&request];
            let (first, n_prompt) = (live.first_to_score(), live.n_prompt());
            for pos in live.n_computed..live.n_computed + granted[&request] {
                let draws = pos + 1 == live.n_tokens() && live.request.max_tokens > 0;
                let scores = first.is_some_and(|first| pos >= first && pos + 1 < n_prompt);
                rows.push(Row { request, seq, pos, token: live.tokens[pos as usize], draws, scores });
            }
        }
        rows
    }
}
