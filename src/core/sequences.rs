//! The sequences of the KV cache: whose they are, what they hold, which prefix of them a prompt can reuse.
//!
//! A sequence and a slot are two things: a sequence can outlive its request as a cached prefix.

use super::cells::CellAccount;
use super::ids::{RequestId, SeqId, Token};
use super::memory::MemoryKind;
use super::prefix::PrefixIndex;
use super::request::Request;
use super::time::Time;
use super::work::Limits;
use crate::options::Key;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A sequence without a request: a prefix for later prompts.
#[derive(Debug)]
pub(super) struct Cached {
    /// The tokens whose cells it holds.
    pub(super) tokens: Arc<[Token]>,
    /// Only requests of an equal scope may reuse it.
    pub(super) scope: Option<Key>,
    /// The conversation that left it.
    pub(super) session: Option<Key>,
    /// For least recent use.
    pub(super) last_used: Time,
    /// First position still there; above 0 once a sliding window has moved on.
    pub(super) pos_min: u32,
    /// Tokens that were saved to RAM ahead of need; they need not be there any more.
    pub(super) n_saved: u32,
    /// Tokens of it that were saved in order to let it go.
    pub(super) n_moved: u32,
    /// What each of its cells has cost the running requests since it was used. Unit: ns.
    pub(super) rent: u64,
}

/// What holds a sequence id.
#[derive(Debug)]
pub(super) enum Holder {
    /// A running request; its tokens are with the request.
    Request(RequestId),
    /// Nobody: it is kept for its prefix.
    Cached(Cached),
}

/// The table of sequences, with the account of their cells.
#[derive(Debug)]
pub(super) struct Sequences {
    limits: Limits,
    n_cached_max: u32,
    table: BTreeMap<SeqId, Holder>,
    /// Cached sequences by their tokens, and running ones by their prompts.
    index: PrefixIndex<SeqId>,
    /// The scopes of those in the index.
    scopes: BTreeMap<SeqId, Option<Key>>,
    pub(super) cells: CellAccount,
}

impl Sequences {
    pub(super) fn new(limits: Limits, n_cache_seqs: Option<u32>) -> Self {
        let n_cached_max = n_cache_seqs.unwrap_or(u32::MAX);
        Self {
            limits,
            n_cached_max,
            table: BTreeMap::new(),
            index: PrefixIndex::default(),
            scopes: BTreeMap::new(),
            cells: CellAccount::default(),
        }
    }

    /// Whether cached sequences have ids of their own, apart from those that compute.
    pub(super) fn has_cache_ids(&self) -> bool {
        self.limits.n_seq_ids > self.limits.n_seq_max
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SeqId, &Holder)> {
        self.table.iter().map(|(id, holder)| (*id, holder))
    }

    pub(super) fn holder(&self, seq: SeqId) -> Option<&Holder> {
        self.table.get(&seq)
    }

    pub(super) fn cached(&self) -> impl Iterator<Item = (SeqId, &Cached)> {
        self.table.iter().filter_map(|(id, holder)| match holder {
            Holder::Cached(cached) => Some((*id, cached)),
            Holder::Request(_) => None,
        })
    }

    pub(super) fn running(&self) -> impl Iterator<Item = SeqId> {
        self.table.iter().filter_map(|(id, holder)| match holder {
            Holder::Request(_) => Some(*id),
            Holder::Cached(_) => None,
        })
    }

    /// The lowest id that can be computed and that nobody holds.
    pub(super) fn free_computed_id(&self) -> Option<SeqId> {
        (0..self.limits.n_seq_max).map(SeqId).find(|id| !self.table.contains_key(id))
    }

    /// The lowest id for a cached sequence that nobody holds.
    pub(super) fn free_cache_id(&self) -> Option<SeqId> {
        (self.limits.n_seq_max..self.limits.n_seq_ids).map(SeqId).find(|id| !self.table.contains_key(id))
    }

    pub(super) fn n_cached(&self) -> u32 {
        self.cached().count() as u32
    }

    /// Whether another sequence may be cached without dropping one.
    pub(super) fn has_cache_room(&self) -> bool {
        self.n_cached() < self.n_cached_max && (!self.has_cache_ids() || self.free_cache_id().is_some())
    }

    /// Whether what is cached may have to go soon.
    pub(super) fn is_short(&self) -> bool {
        let no_id = !self.has_cache_ids() && self.free_computed_id().is_none();
        no_id || (self.limits.is_pool && self.cells.n_used() > self.limits.n_ctx / 2)
    }

    /// The backend copied positions: shared in a pool, cells of its own elsewhere.
    pub(super) fn copy_cells(&mut self, from: SeqId, to: SeqId, len: u32) {
        if self.limits.is_pool {
            self.cells.copy(from, to, len);
        } else {
            self.cells.extend(to, len);
        }
    }

    /// Whether sequences may be cached at all.
    pub(super) fn caches(&self) -> bool {
        self.n_cached_max > 0
    }

    /// A request runs on a sequence, which others can fork as far as it is computed. What was cached there is its own.
    pub(super) fn hold(&mut self, seq: SeqId, request: &Request) {
        self.release(seq);
        self.table.insert(seq, Holder::Request(request.id));
        if request.cache_prompt {
            self.insert(seq, request.scope.clone(), Arc::clone(&request.prompt));
        }
    }

    /// Keep a sequence without a request.
    pub(super) fn keep(&mut self, seq: SeqId, cached: Cached) {
        self.insert(seq, cached.scope.clone(), Arc::clone(&cached.tokens));
        self.table.insert(seq, Holder::Cached(cached));
    }

    pub(super) fn release(&mut self, seq: SeqId) {
        self.table.remove(&seq);
        if let Some(scope) = self.scopes.remove(&seq) {
            self.index.remove(scope.as_ref(), seq);
        }
    }

    fn insert(&mut self, seq: SeqId, scope: Option<Key>, tokens: Arc<[Token]>) {
        self.index.insert(scope.as_ref(), seq, tokens);
        self.scopes.insert(seq, scope);
    }

    /// All cached sequences, to be changed.
    pub(super) fn all_cached_mut(&mut self) -> impl Iterator<Item = &mut Cached> {
        self.table.values_mut().filter_map(|holder| match holder {
            Holder::Cached(cached) => Some(cached),
            Holder::Request(_) => None,
        })
    }

    pub(super) fn cached_mut(&mut self, seq: SeqId) -> Option<&mut Cached> {
        match self.table.get_mut(&seq) {
            Some(Holder::Cached(cached)) => Some(cached),
            Some(Holder::Request(_)) | None => None,
        }
    }

    /// Cells in use, in the unit of the memory: a recurrent one has a cell for each sequence.
    pub(super) fn n_cells_used(&self) -> u32 {
        match self.limits.memory {
            MemoryKind::Recurrent => self.cells.n_sequences(),
            MemoryKind::Full | MemoryKind::SlidingWindow(_) | MemoryKind::Hybrid => self.cells.n_used(),
        }
    }

    /// Of those in use, what running requests hold.
    pub(super) fn n_cells_running(&self) -> u32 {
        match self.limits.memory {
            MemoryKind::Recurrent => self.running().filter(|seq| self.cells.len(*seq) > 0).count() as u32,
            MemoryKind::Full | MemoryKind::SlidingWindow(_) | MemoryKind::Hybrid => {
                self.cells.n_held_by(self.running())
            }
        }
    }

    /// Cells that there are.
    pub(super) fn n_cells(&self) -> u32 {
        match self.limits.memory {
            MemoryKind::Recurrent => self.limits.n_seq_max,
            MemoryKind::Full | MemoryKind::SlidingWindow(_) | MemoryKind::Hybrid => self.limits.n_ctx,
        }
    }

    /// Tokens of a cached sequence.
    pub(super) fn n_cached_tokens(&self, seq: SeqId) -> u32 {
        match self.holder(seq) {
            Some(Holder::Cached(cached)) => cached.tokens.len() as u32,
            Some(Holder::Request(_)) | None => 0,
        }
    }

    /// The least recently used cached sequence.
    pub(super) fn oldest_cached(&self, spared: Option<SeqId>) -> Option<SeqId> {
        let candidates = self.cached().filter(|(seq, _)| Some(*seq) != spared);
        candidates.min_by_key(|(seq, cached)| (cached.last_used, *seq)).map(|(seq, _)| seq)
    }

    /// The least recently used cached sequence whose end frees cells; failing that, the least recently used one.
    pub(super) fn victim(&self, spared: Option<SeqId>) -> Option<SeqId> {
        let frees = |seq: SeqId| Some(seq) != spared && self.cells.n_exclusive(seq) > 0;
        let candidates = self.cached().filter(|(seq, _)| frees(*seq));
        let oldest = candidates.min_by_key(|(seq, cached)| (cached.last_used, *seq)).map(|(seq, _)| seq);
        oldest.or_else(|| self.oldest_cached(spared))
    }

    /// The sequences that may give a request a prefix, with how many tokens of theirs it begins with, most first. Of a
    /// running one only its prompt is looked at.
    pub(super) fn matches(
        &self,
        scope: Option<&Key>,
        tokens: &[Token],
    ) -> impl Iterator<Item = (SeqId, &Holder, usize)> {
        self.index.matches(scope, tokens).map(|(seq, len)| (seq, &self.table[&seq], len))
    }

    /// Cached sequences of the scope around a new one: one that gives all of its tokens, and those that it gives all of.
    pub(super) fn around(&self, new: &Cached) -> (Option<SeqId>, Vec<SeqId>) {
        let (mut holder, mut subsumed) = (None, Vec::new());
        for (seq, held, len) in self.matches(new.scope.as_ref(), &new.tokens) {
            let Holder::Cached(cached) = held else { continue };
            if len == new.tokens.len() && self.usable(cached, len) {
                holder = holder.or(Some(seq));
            } else if len == cached.tokens.len() && self.usable(new, len) {
                subsumed.push(seq);
            }
        }
        (holder, subsumed)
    }

    /// The sequence that a session left last.
    pub(super) fn session_sequence(&self, request: &Request) -> Option<(SeqId, &Cached)> {
        let session = request.session.as_ref()?;
        self.cached()
            .filter(|(_, cached)| cached.scope == request.scope && cached.session.as_ref() == Some(session))
            .max_by_key(|(seq, cached)| (cached.last_used, *seq))
    }

    /// The index names what the table holds.
    pub(super) fn check(&self) {
        self.cells.check();
        self.index.check();
        let is_cached = |holder: &Holder| matches!(holder, Holder::Cached(_));
        for (seq, holder) in self.iter() {
            assert!(!is_cached(holder) || self.scopes.contains_key(&seq), "cached sequence {seq} is in the index");
        }
        assert!(self.scopes.keys().all(|seq| self.table.contains_key(seq)), "the index names sequences that are there");
    }

    /// Whether the memory can keep just the first `len` tokens of a cached sequence.
    pub(super) fn usable(&self, cached: &Cached, len: usize) -> bool {
        self.limits.memory.can_cut(cached.pos_min, cached.tokens.len() as u32, len as u32)
    }

    /// How many of the first `len` tokens of a running sequence can be had now: it holds positions `first..n_held`.
    pub(super) fn n_usable(&self, first: u32, n_held: u32, len: u32) -> u32 {
        let len = len.min(n_held);
        if self.limits.memory.can_cut(first, n_held, len) { len } else { 0 }
    }
}
