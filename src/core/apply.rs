//! What came of the work: tokens drawn, prefixes refused, passes that failed.

use super::event::{Event, FinishReason, PrefixSource, PressureReason, StopCause};
use super::ids::{RequestId, SeqId};
use super::line::GENERATED;
use super::op::{Op, OpResult};
use super::running::Place;
use super::scheduler::{Pressure, Scheduler};
use super::sequences::Holder;
use super::time::Time;
use super::turns::MOST_LEFT_OUT;
use super::work::{DecodeOutcome, Drawn, PassStatus, Row, RowOutcome, SeqPositions};
use crate::error::Error;
use std::collections::BTreeMap;
use std::time::Duration;

/// Failed passes in a row after which a request that was in them fails.
const MAX_FAILURES: u32 = 2;

impl Scheduler {
    pub(super) fn apply_prepare(&mut self, now: Time, ops: Vec<Op>, results: Vec<OpResult>) {
        assert_eq!(ops.len(), results.len(), "one result for each op");
        for (op, result) in ops.into_iter().zip(results) {
            match op {
                Op::Open { request, .. } => self.apply_open(now, request, result),
                Op::Close(_) | Op::Forget(_) | Op::Discard(_) | Op::Touch(_) | Op::Threads(_) => {}
                Op::Compact { .. } => self.residency.compacted(result == OpResult::Done),
                Op::Copy { from, to, len } => {
                    if result == OpResult::Done && self.sequences.cells.len(from) >= len {
                        self.sequences.copy_cells(from, to, len);
                    } else {
                        self.forget_prefix(to);
                    }
                }
                Op::Trim { seq, len } => match result {
                    OpResult::Done => self.sequences.cells.trim(seq, len),
                    OpResult::Refused(_)
                    | OpResult::Lost(_)
                    | OpResult::Saved { .. }
                    | OpResult::Restored { .. }
                    | OpResult::Exported(_) => {
                        self.forget_prefix(seq);
                    }
                },
                Op::Remove(seq) => self.sequences.cells.trim(seq, 0),
                Op::Save { len, blob, .. } | Op::Import { len, blob, .. } => self.apply_save(blob, len, &result),
                Op::Store { entry, tokens, .. } => self.apply_store(entry, tokens.len() as u32, result),
                Op::Load { entry, blob, len, .. } => self.apply_load(entry, blob, len, result),
                Op::Export { transfer, tokens, blobs } => self.apply_export(transfer, &tokens, &blobs, result),
                Op::Restore { seq, from, blobs } => self.apply_restore(seq, from, &blobs, &result),
            }
        }
        (self.reserved, self.freeing) = (0, 0);
        self.tell_loaded();
        self.tell_tiers();
        self.tell_starts();
    }

    /// Tell who got a slot, once it is known which prefix they really have.
    pub(super) fn tell_starts(&mut self) {
        for id in std::mem::take(&mut self.starting) {
            self.tell_start(id);
        }
    }

    fn apply_open(&mut self, now: Time, request: RequestId, result: OpResult) {
        let OpResult::Refused(reason) = result else { return };
        if let Some(live) = self.live.get_mut(&request) {
            live.has_sampler = false;
        }
        self.end(now, request, Err(Error::Inference(reason)));
    }

    /// A prefix could not be had: the sequence starts from nothing.
    fn forget_prefix(&mut self, seq: SeqId) {
        match self.sequences.holder(seq) {
            Some(Holder::Request(id)) => {
                if let Some(live) = self.live.get_mut(id) {
                    live.n_computed = 0;
                    live.found = PrefixSource::None;
                    live.was_refused();
                }
            }
            Some(Holder::Cached(_)) => {
                self.sequences.release(seq);
            }
            None => {}
        }
        self.ops.push(Op::Remove(seq));
    }

    fn tell_start(&mut self, id: RequestId) {
        let Some(live) = self.live.get_mut(&id) else { return };
        let Place::Running { seq, .. } = live.place else { return };
        if let Some(parked) = live.parked_for.take().filter(|_| live.is_told) {
            let prefix_cache_tokens = live.n_computed;
            self.events.push_back(Event::Resumed { request: id, seq, prefix_cache_tokens, parked });
            return;
        }
        live.is_told = true;
        live.prefix_source = live.found;
        live.prefix_cache_tokens = live.n_computed;
        self.totals.n_prefix_cache_tokens += u64::from(live.n_computed);
        self.events.push_back(Event::Started {
            request: id,
            seq: Some(seq),
            prompt_tokens: live.n_prompt(),
            prefix_cache_tokens: live.prefix_cache_tokens,
            prefix_source: live.prefix_source,
            prefix_reason: live.prefix_reason,
            queue: live.started_at.map_or(Duration::ZERO, |at| at - live.submitted_at),
            mode: live.request.mode,
            session: live.request.session.clone(),
        });
    }

    pub(super) fn apply_decode(&mut self, now: Time, rows: &[Row], outcome: DecodeOutcome) {
        match outcome.status {
            PassStatus::Done => self.pass_done(now, rows, outcome),
            PassStatus::KvFull => self.pass_full(now, rows),
            PassStatus::Failed { code, reason } => self.pass_failed(now, rows, &outcome.positions, code, &reason),
        }
    }

    fn pass_done(&mut self, now: Time, rows: &[Row], outcome: DecodeOutcome) {
        let (took, forecast) = (outcome.eval + outcome.sample, self.forecast.take());
        self.costs.learn(&self.load, took);
        self.threads.note(now, &self.load, took, outcome.idle, &mut self.costs);
        self.passed_at = now;
        let n_draft = self.n_drafted(rows);
        let n_decode = self.advance(now, rows);
        self.note_positions(&outcome.positions);
        for scored in outcome.scored {
            let live = self.live.get_mut(&scored.request);
            if let Some(slot) = live.and_then(|live| live.prompt_told.get_mut(scored.pos as usize)) {
                *slot = Some(scored.told);
            }
        }
        for row in outcome.rows {
            self.apply_row(now, row);
        }
        self.finish_prompt_only(now, rows);
        self.pay_rent(n_decode + n_draft, outcome.span);
        self.row_cap = None;
        self.saved_ahead = false;
        self.disk.pass_done();
        self.totals.n_ticks += 1;
        self.tell_pressure();
        self.events.push_back(Event::Tick {
            batch_size: rows.len() as u32,
            decode_tokens: n_decode,
            draft_tokens: n_draft,
            prefill_tokens: rows.len() as u32 - n_decode - n_draft,
            active_slots: self.running_ids().count() as u32,
            queue_depth: self.queue_depth(),
            eval: outcome.eval,
            sample: outcome.sample,
            forecast,
        });
    }

    /// Tell what was done for room since the last pass that succeeded.
    fn tell_pressure(&mut self) {
        let Pressure { reason, purged, n_splits, n_parked } = std::mem::take(&mut self.pressure);
        if !purged.is_empty() || n_splits > 0 || n_parked > 0 {
            self.events.push_back(Event::KvPressure {
                reason,
                purged_seq_ids: purged,
                batch_splits: n_splits,
                n_parked,
            });
        }
    }

    /// Count the rows as computed; how many of them were decode rows.
    fn advance(&mut self, now: Time, rows: &[Row]) -> u32 {
        let mut n_decode = 0;
        let mut reads = false;
        for (request, n_rows) in rows_by_request(rows) {
            let Some(live) = self.live.get_mut(&request) else { continue };
            let Place::Running { seq, .. } = live.place else { continue };
            if live.is_decoding() {
                n_decode += 1;
                self.last_served = Some(request);
            } else {
                reads = true;
                live.n_left_out = 0;
                live.n_prefilled += n_rows;
                live.n_prepaid = live.n_prepaid.saturating_sub(n_rows);
                self.totals.n_prefill_tokens += u64::from(n_rows);
            }
            // Behind the token that is known come those of a draft: what is drawn says whether they hold.
            let n_known = n_rows.min(live.n_remaining());
            live.n_computed += n_known;
            live.drafting.n_open = n_rows - n_known;
            live.n_failures = 0;
            live.progressed_at = now;
            self.sequences.cells.extend(seq, n_rows);
            self.save_checkpoint(now, request);
        }
        self.leave_out(now, rows, reads);
        n_decode
    }

    /// Prompts without a row in a pass. While others are read they do not stall: their turn comes, unless a strategy
    /// of the caller's own forgets them.
    fn leave_out(&mut self, now: Time, rows: &[Row], reads: bool) {
        let most = MOST_LEFT_OUT.max(self.options.n_parallel);
        for id in self.slots.iter().flatten() {
            let Some(live) = self.live.get_mut(id).filter(|live| !live.is_decoding() && live.awaits.is_none()) else {
                continue;
            };
            let Some(seq) = live.seq().filter(|_| !live.is_pending) else { continue };
            if rows.binary_search_by_key(&seq, |row| row.seq).is_err() {
                live.n_left_out += 1;
                if reads && live.n_left_out <= most {
                    live.progressed_at = now;
                }
            }
        }
    }

    /// The tokens that a request's rows drew.
    fn apply_row(&mut self, now: Time, row: RowOutcome) {
        let id = row.request;
        match row.drawn {
            Err(error) => self.end(now, id, Err(error)),
            Ok(drawn) => {
                if let Some(live) = self.live.get_mut(&id).filter(|_| drawn.is_empty()) {
                    live.is_pending = true;
                }
                self.note_drawn(id, drawn.len());
                for (at, token) in drawn.into_iter().enumerate() {
                    if self.live.get(&id).is_none_or(|live| live.doomed.is_some()) {
                        return;
                    }
                    if at > 0 {
                        self.accept_draft(id);
                    }
                    self.take_token(now, id, token);
                }
                self.trim_draft(id);
            }
        }
    }

    /// A sampler of the caller's own has drawn, or failed. One that nobody waits for any more is ignored.
    pub fn supply(&mut self, now: Time, id: RequestId, drawn: Result<Drawn, Error>) {
        let Some(live) = self.live.get_mut(&id).filter(|live| live.is_pending) else { return };
        live.is_pending = false;
        live.progressed_at = now;
        self.apply_row(now, RowOutcome { request: id, drawn: drawn.map(|drawn| vec![drawn]) });
    }

    fn take_token(&mut self, now: Time, id: RequestId, drawn: Drawn) {
        let n_ctx_seq = self.limits.n_ctx_seq;
        let Some(live) = self.live.get_mut(&id) else { return };
        let before = live.last_token_at.replace(now);
        if before.is_none() {
            live.first_token_at = Some(now);
            self.events.push_back(Event::Token { request: id, is_first: true, wait: now - live.submitted_at });
        }
        let is_stop_token = live.request.stop.tokens.contains(&drawn.token);
        if is_stop_token {
            live.stopped_by = Some(StopCause::Token(drawn.token));
        }
        if is_stop_token && !live.request.stop.include {
            return self.end(now, id, Ok(FinishReason::Stop));
        }
        if drawn.is_eog && !is_stop_token {
            return self.end(now, id, Ok(FinishReason::Eog));
        }
        if let Some(before) = before {
            self.events.push_back(Event::Token { request: id, is_first: false, wait: now - before });
        }
        live.tokens.push(drawn.token);
        live.drafting.meet(drawn.token);
        live.told.extend(drawn.told.map(|told| *told));
        self.totals.n_generated_tokens += 1;
        self.line.charge(live.turn.flow, GENERATED);
        let may_stop = live.n_generated() > live.request.sampling.min_tokens;
        let (piece, stopped) = live.output.push(&live.request.stop, may_stop, drawn.token, &drawn.piece);
        if let Some((text, tokens)) = piece {
            let told = live.take_told(tokens.len());
            self.events.push_back(Event::Chunk { request: id, text, tokens, told });
        }
        if let Some(which) = stopped {
            live.stopped_by = Some(StopCause::Text(live.request.stop.strings[which].clone()));
        }
        if live.stopped_by.is_some() {
            self.end(now, id, Ok(FinishReason::Stop));
        } else if drawn.is_last {
            self.end(now, id, Ok(FinishReason::Eog));
        } else if live.n_generated() >= live.request.max_tokens {
            self.end(now, id, Ok(FinishReason::MaxTokens));
        } else if live.n_tokens() > n_ctx_seq {
            self.end(now, id, Ok(FinishReason::ContextFull));
        }
    }

    /// Requests that asked for no token end with their prompt.
    fn finish_prompt_only(&mut self, now: Time, rows: &[Row]) {
        for (request, _) in rows_by_request(rows) {
            let over = self.live.get(&request).is_some_and(|l| l.request.max_tokens == 0 && l.n_remaining() == 0);
            if over {
                self.end(now, request, Ok(FinishReason::MaxTokens));
            }
        }
    }

    /// A memory that drops positions by itself says what is left.
    fn note_positions(&mut self, positions: &[SeqPositions]) {
        for at in positions {
            let pos_min = at.held.map_or(0, |(first, _)| first);
            let request = match self.sequences.holder(at.seq) {
                Some(Holder::Request(id)) => Some(*id),
                Some(Holder::Cached(_)) | None => None,
            };
            if let Some(live) = request.and_then(|id| self.live.get_mut(&id)) {
                live.pos_min = pos_min;
            } else if let Some(cached) = self.sequences.cached_mut(at.seq) {
                cached.pos_min = pos_min;
            }
        }
    }

    /// The backend has no room although the account has: go without drafts, else evict, else halve the pass, else let one yield.
    fn pass_full(&mut self, now: Time, rows: &[Row]) {
        self.pressure.reason = PressureReason::Backend;
        let n_draft = self.n_drafted(rows);
        if n_draft > 0 {
            self.row_cap = Some(rows.len() as u32 - n_draft);
        } else if let Some(victim) = self.sequences.victim(None) {
            self.evict(victim, PressureReason::Backend);
        } else if rows.len() > 1 {
            self.row_cap = Some(rows.len() as u32 / 2);
            self.pressure.n_splits += 1;
        } else {
            self.yield_one(now);
        }
    }

    /// Go back to what the backend really holds; who was in two failed passes in a row fails.
    fn pass_failed(&mut self, now: Time, rows: &[Row], positions: &[SeqPositions], code: i32, reason: &str) {
        const ABORTED: i32 = 2;
        for (request, _) in rows_by_request(rows) {
            let Some(live) = self.live.get_mut(&request) else { continue };
            let Place::Running { seq, .. } = live.place else { continue };
            if code != ABORTED {
                live.n_failures += 1;
            }
            let held = positions.iter().find(|at| at.seq == seq).and_then(|at| at.held);
            let n_held = held.map_or(0, |(_, last)| last + 1);
            // A recurrent state says nothing reliable of its position after a failure; elsewhere what was to be looked at
            // is computed again for its logits, which are lost.
            let n_looked_at = live.findable().len() as u32;
            let n_kept = if self.limits.memory.is_recurrent() { 0 } else { n_held.min(n_looked_at) };
            live.n_computed = n_kept;
            let failed = live.n_failures >= MAX_FAILURES;
            self.sequences.cells.set_len(seq, n_held);
            if n_kept == 0 {
                self.ops.push(Op::Remove(seq));
            } else if n_kept < n_held {
                self.ops.push(Op::Trim { seq, len: n_kept });
            }
            if failed {
                self.end(now, request, Err(Error::Inference(format!("{reason} (llama_decode returned {code})"))));
            }
        }
    }
}

/// How many rows each request has in a pass, in the order of the rows.
fn rows_by_request(rows: &[Row]) -> BTreeMap<RequestId, u32> {
    let mut counts = BTreeMap::new();
    for row in rows {
        *counts.entry(row.request).or_default() += 1;
    }
    counts
}
