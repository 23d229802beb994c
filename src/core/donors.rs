//! Whose prefix a request takes: a cached sequence's, or that of a running one, as far as that has computed it.
//!
//! A request whose prompt begins with what another is about to compute takes a slot and awaits that, instead of computing
//! it twice. Where a sequence can only be continued where it stands, the other pauses there (`stops.rs`).

use super::event::{PrefixReason, PrefixSource};
use super::ids::{RequestId, SeqId, Token};
use super::memory::MemoryKind;
use super::op::Op;
use super::prefix::common_prefix;
use super::running::{Live, Place};
use super::scheduler::Scheduler;
use super::sequences::Holder;
use super::time::Time;

/// Tokens that are worth waiting for; fewer are computed again.
const MIN_AWAITED: u32 = 16;

/// A prefix that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    /// Who holds it.
    pub(super) seq: SeqId,
    /// Tokens of the prompt that it holds.
    pub(super) len: u32,
    /// Whether the prompt's own session left it.
    pub(super) own: bool,
}

impl Match {
    pub(super) fn source(self) -> PrefixSource {
        if self.own { PrefixSource::Own } else { PrefixSource::Donor }
    }
}

/// A prefix that another request is about to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Awaited {
    /// Who computes it.
    pub(super) donor: RequestId,
    /// Tokens of the prompt that it will hold.
    pub(super) len: u32,
}

/// What a request begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefix {
    Nothing,
    There(Match),
    /// In RAM, so many tokens; the first of them perhaps in a sequence.
    Ram {
        base: Option<Match>,
        len: u32,
    },
    Awaited(Awaited),
}

impl Prefix {
    /// Tokens that need not be computed.
    pub(super) fn len(self) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::There(found) => found.len,
            Self::Ram { len, .. } => len,
            Self::Awaited(awaited) => awaited.len,
        }
    }

    /// Those of them that take no cells of the request's own, in blocks of so many.
    pub(super) fn n_shared(self, block: u32) -> u32 {
        match self {
            Self::Ram { .. } if block == 0 => 0,
            Self::Ram { base, .. } => base.map_or(0, |base| base.len / block * block),
            Self::Nothing | Self::There(_) | Self::Awaited(_) => self.len(),
        }
    }

    /// The sequence that it shares cells with.
    pub(super) fn seq(self) -> Option<SeqId> {
        match self {
            Self::There(found) | Self::Ram { base: Some(found), .. } => Some(found.seq),
            Self::Ram { base: None, .. } | Self::Nothing | Self::Awaited(_) => None,
        }
    }
}

impl Scheduler {
    /// The longest prefix that a request can have, its own session's where two are equal. Never the whole of its tokens:
    /// the last one has to be computed for its logits.
    pub(super) fn prefix_for(&self, id: RequestId) -> Prefix {
        let live = &self.live[&id];
        if !live.request.cache_prompt {
            return Prefix::Nothing;
        }
        let tokens = live.findable();
        let (mut best, mut awaited): (Option<Match>, Option<Awaited>) = (None, None);
        for (seq, holder, len) in self.sequences.matches(live.request.scope.as_ref(), tokens) {
            let (there, session) = match holder {
                Holder::Cached(cached) if self.sequences.usable(cached, len) => (len as u32, &cached.session),
                Holder::Cached(_) => continue,
                Holder::Request(donor) => {
                    let donor = &self.live[donor];
                    let len = self.shared_with(donor, tokens, len);
                    if len > donor.n_computed && donor.admitted_no < age(live) && donor.doomed.is_none() {
                        let found = Awaited { donor: donor.request.id, len };
                        awaited = awaited.filter(|other| other.len >= len).or(Some(found));
                    }
                    (self.sequences.n_usable(donor.pos_min, donor.n_computed, len), &donor.request.session)
                }
            };
            let own = session.is_some() && *session == live.request.session;
            let found = Match { seq, len: there, own };
            if there > 0 && best.is_none_or(|best| (found.len, found.own) > (best.len, best.own)) {
                best = Some(found);
            }
        }
        let there = best.map_or(0, |found| found.len);
        let in_ram = self.n_in_ram(live.request.scope.as_ref(), tokens);
        match (awaited, best) {
            (Some(awaited), _) if awaited.len >= there.max(in_ram) + MIN_AWAITED => Prefix::Awaited(awaited),
            (_, base) if self.is_worth(in_ram, there) => Prefix::Ram { base, len: in_ram },
            (_, Some(found)) => Prefix::There(found),
            (_, None) => Prefix::Nothing,
        }
    }

    /// Whether so many tokens in a tier are worth moving to who would begin with so many otherwise.
    pub(super) fn is_worth(&self, in_tier: u32, there: u32) -> bool {
        in_tier > 0 && in_tier >= there + self.ram.block().max(MIN_AWAITED)
    }

    /// How much of a prompt a running request holds or will: more than its prompt, where any part of it can be had, once it
    /// generates what comes next there.
    fn shared_with(&self, donor: &Live, tokens: &[Token], len: usize) -> u32 {
        let goes_on = len == donor.request.prompt.len() && self.limits.memory == MemoryKind::Full;
        let more = if goes_on { common_prefix(&donor.tokens[len..], &tokens[len..]) } else { 0 };
        (len + more) as u32
    }

    /// Give those who await a prefix what is there by now; who can await it no longer begins with what there is.
    pub(super) fn end_waits(&mut self, now: Time) {
        let waits: Vec<RequestId> = self.running_ids().filter(|id| self.live[id].awaits.is_some()).collect();
        for id in waits {
            let live = &self.live[&id];
            let (Some(awaited), Place::Running { seq: to, .. }) = (live.awaits, live.place) else { continue };
            let donor = self.live.get(&awaited.donor).filter(|donor| donor.doomed.is_none());
            let goes_on = donor.is_some_and(|donor| donor.seq().is_some() && donor.n_computed < awaited.len);
            if goes_on {
                continue;
            }
            self.give(now, id, to, self.prefix_for(id));
        }
    }

    /// Give those who await a request that ends what it has computed, before its sequence goes.
    pub(super) fn hand_over(&mut self, now: Time, donor: RequestId) {
        let Some(seq) = self.live.get(&donor).and_then(Live::seq) else { return };
        let n_computed = self.live[&donor].n_computed;
        let own_session = self.live[&donor].request.session.clone();
        let waits: Vec<(RequestId, Awaited)> = self
            .running_ids()
            .filter_map(|id| Some((id, self.live[&id].awaits.filter(|a| a.donor == donor)?)))
            .collect();
        for (id, awaited) in waits {
            let live = &self.live[&id];
            let (Some(to), None) = (live.seq(), &live.doomed) else { continue };
            let own = own_session.is_some() && own_session == live.request.session;
            let len = self.sequences.n_usable(self.live[&donor].pos_min, n_computed, awaited.len);
            if len == awaited.len {
                self.give(now, id, to, Prefix::There(Match { seq, len, own }));
            }
        }
    }

    /// Give a request's empty sequence the prefix that was found, or that it has to await.
    pub(super) fn give(&mut self, now: Time, id: RequestId, to: SeqId, prefix: Prefix) {
        match prefix {
            Prefix::Nothing => self.begin_with(now, id, 0, PrefixSource::None),
            Prefix::There(found) => {
                self.adopt(now, found, to);
                self.begin_with(now, id, found.len, found.source());
            }
            Prefix::Ram { base, len } => self.restore(now, id, to, base, len),
            Prefix::Awaited(awaited) => {
                if let Some(live) = self.live.get_mut(&id) {
                    live.awaits = Some(awaited);
                }
            }
        }
    }

    /// Let an empty sequence share a prefix.
    pub(super) fn adopt(&mut self, now: Time, found: Match, to: SeqId) {
        self.ops.push(Op::Copy { from: found.seq, to, len: found.len });
        if let Some(cached) = self.sequences.cached_mut(found.seq) {
            cached.last_used = now;
            (cached.rent, cached.n_moved) = (0, 0);
        }
    }

    /// It is settled what a request begins with.
    pub(super) fn begin_with(&mut self, now: Time, id: RequestId, len: u32, source: PrefixSource) {
        let reason = self.prefix_reason(id, source);
        let Some(live) = self.live.get_mut(&id) else { return };
        live.prefix_reason = if live.is_told { live.prefix_reason } else { reason };
        live.awaits = None;
        live.loaded_at = None;
        live.n_computed = len;
        self.disk.note_use(live.request.scope.as_ref(), &live.tokens[..len as usize], now);
        live.pos_min = if len == 0 { 0 } else { self.limits.memory.first_copied(len + 1) };
        live.found = source;
        live.progressed_at = now;
        self.starting.push(id);
        self.set_checkpoints(id);
    }

    /// Why a request begins with this, before the backend has its say.
    fn prefix_reason(&self, id: RequestId, source: PrefixSource) -> PrefixReason {
        let live = &self.live[&id];
        match source {
            PrefixSource::Own => PrefixReason::Session,
            PrefixSource::Donor if live.awaits.is_some() => PrefixReason::Awaited,
            PrefixSource::Donor => PrefixReason::Longest,
            PrefixSource::Ram | PrefixSource::Disk => PrefixReason::Saved,
            PrefixSource::None if !live.request.cache_prompt => PrefixReason::Off,
            PrefixSource::None if self.parting(live) > 0 => PrefixReason::OutOfReach,
            PrefixSource::None => PrefixReason::NoMatch,
        }
    }
}

/// Only older requests are awaited, so that no two await each other.
fn age(live: &Live) -> u64 {
    if live.started_at.is_some() { live.admitted_no } else { u64::MAX }
}

/// The account of whether a request's cells can be had needs to know what it will compute.
pub(super) fn n_to_compute(live: &Live) -> u32 {
    live.n_remaining() - live.awaits.map_or(0, |awaited| awaited.len)
}
