//! Admission: who gets a slot, and with which prefix.

use super::donors::{Prefix, n_to_compute};
use super::event::{Event, PressureReason};
use super::ids::{RequestId, SeqId, SlotId, Token};
use super::op::Op;
use super::prefix::common_prefix;
use super::request::Request;
use super::running::{Live, Place};
use super::scheduler::Scheduler;
use super::sequences::Holder;
use super::time::Time;
use crate::error::{Error, QueueBound};

/// Cells kept for the next tokens of each running request, so that who comes in is not parked again at once.
const HEADROOM: u32 = 32;

impl Scheduler {
    /// Whether a prompt can be had at all.
    pub(super) fn admissible(&self, request: &Request) -> Result<(), Error> {
        if !self.limits.generates {
            return Err(Error::Unsupported("this model generates no text: it only computes embeddings".into()));
        }
        let n_prompt_tokens = request.prompt.len() as u32;
        if n_prompt_tokens == 0 {
            return Err(Error::EmptyPrompt);
        }
        self.known_tokens(&request.prompt)?;
        // One cell is for the answer, where one is asked for.
        let n_needed = n_prompt_tokens.saturating_add(u32::from(request.max_tokens > 0));
        if n_needed > self.limits.n_ctx_seq {
            return Err(Error::ContextFull { n_prompt_tokens, n_ctx: self.limits.n_ctx_seq });
        }
        Ok(())
    }

    pub(super) fn known_tokens(&self, tokens: &[Token]) -> Result<(), Error> {
        let n_vocab = self.limits.n_vocab;
        match tokens.iter().find(|t| u32::try_from(**t).map_or(true, |t| t >= n_vocab)) {
            Some(bad) => Err(Error::Prompt(format!("token {bad} is not in the vocabulary of {n_vocab} tokens"))),
            None => Ok(()),
        }
    }

    /// Whether the queue's bounds leave room for a request.
    pub(super) fn has_room(&self, request: &Request) -> Result<(), Error> {
        let (max_queue, max_queue_per_scope) = (self.options.max_queue, self.options.max_queue_per_scope);
        let is_full = |limit: u32, n: u64| limit > 0 && n >= u64::from(limit) + u64::from(self.options.n_parallel);
        if is_full(max_queue, self.n_live()) {
            return Err(Error::QueueFull { bound: QueueBound::All, limit: max_queue });
        }
        let n_in_flow = self.line.n_requests(request.flow.as_ref()) + self.embeds.n_requests(request.flow.as_ref());
        if is_full(max_queue_per_scope, n_in_flow.into()) {
            return Err(Error::QueueFull { bound: QueueBound::Scope, limit: max_queue_per_scope });
        }
        Ok(())
    }

    /// Give free slots to those whose turn it is (`line.rs`). Nobody overtakes: a request that does not fit yet keeps those
    /// behind it waiting, or a stream of small ones would starve it. Its flow, which is served nothing meanwhile, stays first.
    ///
    /// While room is being made for those who run, nobody comes in: who was just parked would take the room at once.
    pub(super) fn admit(&mut self, now: Time) {
        if (self.pressure.n_parked > 0 || self.pressure.n_splits > 0) && self.running_ids().next().is_some() {
            return;
        }
        while let Some(slot) = self.free_slot() {
            let Some(id) = self.line.next(now).map(|turn| turn.id) else { return };
            let prefix = self.prefix_for(id);
            if !self.fits(id, prefix) || self.load_from_disk(now, id, prefix.len()) {
                return;
            }
            self.start(now, id, slot, prefix);
        }
    }

    /// Who gives up its cells where they run short, and whether it is alone: of the least urgent who run, and there of the
    /// flow that has most of them, the one that was admitted last. So the oldest of the most urgent always advances.
    pub(super) fn who_yields(&self) -> Option<(RequestId, bool)> {
        // Who awaits another's prefix holds no cells.
        let holders: Vec<&Live> =
            self.running_ids().map(|id| &self.live[&id]).filter(|live| live.awaits.is_none()).collect();
        let least_urgent = holders.iter().map(|live| live.request.priority).max()?;
        let among = || holders.iter().filter(|live| live.request.priority == least_urgent);
        let n_of_flow = |live: &Live| among().filter(|other| other.turn.flow == live.turn.flow).count();
        let victim = among().max_by_key(|live| (n_of_flow(live), live.admitted_no))?;
        Some((victim.request.id, holders.len() == 1))
    }

    /// Whether the cells of a request, and those that the running ones will need soon, can be had by evicting nothing
    /// but cached sequences. A request that runs alone always fits: longer prompts were refused at submission.
    pub(super) fn fits(&self, id: RequestId, prefix: Prefix) -> bool {
        if !self.limits.is_pool || self.running_ids().next().is_none() {
            return true;
        }
        let live = &self.live[&id];
        let needed = live.n_tokens() - prefix.n_shared(self.ram.block()) + headroom(live);
        let promised: u32 =
            self.running_ids().map(|id| &self.live[&id]).map(|live| n_to_compute(live) + headroom(live)).sum();
        let kept = self.sequences.running().chain(prefix.seq());
        needed + promised + self.sequences.cells.n_held_by(kept) <= self.limits.n_ctx
    }

    fn start(&mut self, now: Time, id: RequestId, slot: SlotId, prefix: Prefix) {
        self.tell_instability(id, prefix.len());
        let seq = self.take_sequence(prefix);
        self.sequences.hold(seq, &self.live[&id].request);
        self.slots[slot.0 as usize] = Some(id);
        self.n_admitted += 1;
        let n_admitted = self.n_admitted;
        let live = self.live.get_mut(&id).expect("who is in line is alive");
        if !live.has_sampler {
            live.has_sampler = true;
            self.ops.push(Op::Open {
                request: id,
                sampling: live.request.sampling.clone(),
                prompt: live.request.prompt.clone(),
                stop_tokens: live.request.stop.tokens.clone(),
            });
        }
        match live.place {
            Place::Parked { since } => {
                live.parked_for = Some(now - since);
                // What it computes again is not its flow's fault: nothing is charged.
            }
            Place::Waiting => {
                live.started_at = Some(now);
                live.admitted_no = n_admitted;
                live.n_prepaid = live.n_tokens() - prefix.len();
                self.line.serve(live.turn.flow, live.n_prepaid.into());
            }
            Place::Running { .. } => panic!("request {id} is started twice"),
        }
        self.line.remove(live.turn);
        live.place = Place::Running { slot, seq };
        live.last_seq = Some(seq);
        match prefix {
            Prefix::There(found) if found.seq == seq => self.begin_with(now, id, found.len, found.source()),
            Prefix::There(_) | Prefix::Ram { .. } | Prefix::Awaited(_) | Prefix::Nothing => {
                self.give(now, id, seq, prefix);
            }
        }
    }

    /// A sequence id for a request that begins with this prefix: the prefix's own where nobody loses by that, else one
    /// that is free, else that of what was used least recently.
    fn take_sequence(&mut self, prefix: Prefix) -> SeqId {
        let donor = match prefix {
            Prefix::There(found) if matches!(self.sequences.holder(found.seq), Some(Holder::Cached(_))) => Some(found),
            Prefix::There(_) | Prefix::Ram { .. } | Prefix::Awaited(_) | Prefix::Nothing => None,
        };
        if !self.sequences.has_cache_ids()
            && let Some(found) = donor
            && found.len == self.sequences.n_cached_tokens(found.seq)
        {
            return found.seq;
        }
        if let Some(seq) = self.sequences.free_computed_id() {
            return seq;
        }
        let spared = donor.map(|found| found.seq);
        if let Some(seq) = self.sequences.oldest_cached(spared) {
            self.evict(seq, PressureReason::Sequences);
            return seq;
        }
        // It is the only one: it loses its tail.
        let found = donor.expect("an id is free or holds a cached sequence");
        self.save_cached(found.seq);
        self.ops.push(Op::Trim { seq: found.seq, len: found.len });
        found.seq
    }

    /// A session whose prompt departs early from its own history is told: something rewrites earlier turns. A common
    /// beginning with other conversations, such as a system prompt, never is.
    fn tell_instability(&mut self, id: RequestId, n_found: u32) {
        let live = &self.live[&id];
        if !live.request.cache_prompt || live.place != Place::Waiting {
            return;
        }
        let Some((seq, cached)) = self.sequences.session_sequence(&live.request) else { return };
        let matched = common_prefix(&cached.tokens, &live.tokens);
        let n_cached = cached.tokens.len();
        let rewritten = n_cached >= 64 && matched * 10 > n_cached && matched * 2 < n_cached;
        if rewritten && n_found as usize <= matched {
            self.events.push_back(Event::PrefixInstability {
                seq,
                matched_tokens: matched as u32,
                cached_tokens: n_cached as u32,
            });
        }
    }
}

fn headroom(live: &Live) -> u32 {
    live.request.max_tokens.saturating_sub(live.n_generated()).min(HEADROOM)
}
