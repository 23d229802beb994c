//! How a request ends, and what stays of its sequence.

use super::event::{Event, FinishReason, Finished, PressureReason, Timings, Usage};
use super::ids::{RequestId, SeqId, Token};
use super::op::Op;
use super::running::{End, Live, Place};
use super::scheduler::Scheduler;
use super::sequences::Cached;
use super::time::Time;
use crate::error::Error;
use std::sync::Arc;

impl Scheduler {
    /// The one end of a request: its text is flushed, its sampler closed, its sequence cached or removed.
    pub(super) fn finish(&mut self, now: Time, id: RequestId, end: End) {
        if reusable(&end) {
            self.hand_over(now, id);
        }
        let Some(live) = self.live.remove(&id) else { return };
        self.line.remove(live.turn);
        self.line.refund(live.turn.flow, u64::from(live.n_prepaid));
        self.line.leave(live.turn.flow);
        self.starting.retain(|other| *other != id);
        self.forget_deadlines(&live.request, live.submitted_at);
        if live.has_sampler {
            self.ops.push(Op::Close(id));
        }
        if let Place::Running { slot, seq } = live.place {
            self.slots[slot.0 as usize] = None;
            self.sequences.release(seq);
            if reusable(&end) {
                self.ops.extend(live.rest_of_draft());
                let is_whole = !matches!(end, Ok(FinishReason::Cancelled) | Err(_));
                self.retain(now, &live, seq, is_whole);
            } else {
                self.ops.push(Op::Remove(seq));
            }
        }
        self.tell_end(now, id, live, end);
    }

    fn tell_end(&mut self, now: Time, id: RequestId, mut live: Live, end: End) {
        if let Some((text, tokens)) = live.output.flush() {
            let told = live.take_told(tokens.len());
            self.events.push_back(Event::Chunk { request: id, text, tokens, told });
        }
        self.count_end(&end);
        let usage = Usage {
            prompt_tokens: live.n_prompt(),
            generated_tokens: live.n_generated(),
            prefix_cache_tokens: live.prefix_cache_tokens,
            draft_tokens: live.drafting.n_drafted,
            accepted_tokens: live.drafting.n_accepted,
        };
        self.events.push_back(Event::Finished(Box::new(Finished {
            request: id,
            end,
            stopped_by: live.stopped_by.take(),
            usage,
            timings: timings(now, &live),
            seq: live.last_seq,
            mode: live.request.mode,
            session: live.request.session,
            prefix_source: live.prefix_source,
            prefix_reason: live.prefix_reason,
            n_prefilled: live.n_prefilled,
            prompt_told: live.prompt_told,
        })));
    }

    pub(super) fn count_end(&mut self, end: &End) {
        self.totals.n_finished += 1;
        match end {
            Ok(FinishReason::Cancelled) => self.totals.n_cancelled += 1,
            Err(_) => self.totals.n_failed += 1,
            Ok(
                FinishReason::Eog
                | FinishReason::Stop
                | FinishReason::MaxTokens
                | FinishReason::ContextFull
                | FinishReason::Embedded,
            ) => {}
        }
    }

    /// What becomes of the sequence of a request that ended: a cached prefix, if it may and nothing holds it already.
    /// Only a whole answer is what its session goes on from.
    fn retain(&mut self, now: Time, live: &Live, seq: SeqId, is_whole: bool) {
        let tokens: Arc<[Token]> = live.tokens[..live.n_computed as usize].into();
        if !live.request.keeps() || tokens.is_empty() || !self.sequences.caches() {
            self.ops.push(Op::Remove(seq));
            return;
        }
        let session = live.request.session.clone();
        let scope = live.request.scope.clone();
        let new =
            Cached { tokens, scope, session, last_used: now, pos_min: live.pos_min, n_saved: 0, n_moved: 0, rent: 0 };
        if is_whole {
            self.note_session(now, new.scope.as_ref(), new.session.as_ref(), &new.tokens);
        }
        let (holder, subsumed) = self.sequences.around(&new);
        if let Some(holder) = holder {
            if let Some(cached) = self.sequences.cached_mut(holder) {
                cached.last_used = now;
                cached.session = live.request.session.clone().or_else(|| cached.session.take());
            }
            self.ops.push(Op::Remove(seq));
            return;
        }
        for id in subsumed {
            self.drop_cached(id);
        }
        while !self.sequences.has_cache_room() {
            let Some(victim) = self.sequences.victim(None) else { break };
            self.evict(victim, PressureReason::Sequences);
        }
        self.keep(seq, new);
    }

    /// Move a sequence to an id for cached ones, where the memory has such ids; else keep it where it is.
    fn keep(&mut self, seq: SeqId, cached: Cached) {
        if !self.sequences.has_cache_ids() {
            self.sequences.keep(seq, cached);
            return;
        }
        let len = cached.tokens.len() as u32;
        if let Some(to) = self.sequences.free_cache_id() {
            self.ops.push(Op::Copy { from: seq, to, len });
            self.sequences.keep(to, cached);
        }
        self.ops.push(Op::Remove(seq));
    }
}

/// Whether what a request computed can be trusted after its end.
fn reusable(end: &End) -> bool {
    end.as_ref().err().is_none_or(|error| !matches!(error, Error::Inference(_)) && !error.is_loss())
}

fn timings(now: Time, live: &Live) -> Timings {
    let started = live.started_at.unwrap_or(now);
    let first = live.first_token_at.unwrap_or(now);
    Timings {
        queue: started - live.submitted_at,
        ttft: first - live.submitted_at,
        total: now - live.submitted_at,
        prefill: first - started,
        decode: live.last_token_at.unwrap_or(first) - first,
    }
}
