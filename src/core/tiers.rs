//! What moves between the KV cells and the RAM tier: blocks are saved before their cells are given up, and restored
//! instead of being computed again.

use super::donors::Match;
use super::event::{Event, PrefixSource, RamOp};
use super::ids::{BlobId, RequestId, SeqId, Token};
use super::scheduler::Scheduler;
use super::sequences::Holder;
use super::time::Time;
use super::work::{Op, OpResult};
use crate::options::Key;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Blocks that are saved ahead of need in one turn, while nobody waits for a token, and while somebody does.
const AHEAD_IDLE: u32 = 4;
const AHEAD_BUSY: u32 = 1;
/// Blocks of one cached sequence that are saved at its eviction while somebody waits for a token: the rest is given up.
const LATE_BUSY: u32 = 32;

/// What happened in the RAM tier since it was told last: tokens and bytes.
#[derive(Debug, Default)]
pub(super) struct RamTally(BTreeMap<RamOp, (u32, u64)>);

impl RamTally {
    fn add(&mut self, op: RamOp, n_tokens: u32, n_bytes: u64) {
        let sum = self.0.entry(op).or_default();
        *sum = (sum.0 + n_tokens, sum.1 + n_bytes);
    }
}

/// How much may be saved.
#[derive(Clone, Copy)]
struct Most {
    n_blocks: u32,
    /// Whether older blocks may go for it.
    may_drop: bool,
}

impl Scheduler {
    /// Save the first blocks of a sequence that are not in RAM yet, `most` of them; how many tokens are there then.
    ///
    /// What still has its cells drives nothing out of RAM: that would be lost, and this is not.
    fn save(&mut self, now: Time, seq: SeqId, scope: Option<&Key>, tokens: &[Token], most: Most) -> u32 {
        let block = self.ram.block() as usize;
        if block == 0 {
            return 0;
        }
        let mut path = self.ram.path(scope, tokens);
        self.ram.touch(&path, now);
        let n_there = path.len();
        for (at, tokens) in tokens.chunks_exact(block).enumerate().skip(n_there).take(most.n_blocks as usize) {
            let bytes = self.ram.n_bytes();
            let (dropped, added) = self.ram.add(path.last().copied(), scope, tokens, now, most.may_drop);
            if !dropped.is_empty() {
                self.ram_tally.add(RamOp::Evict, (dropped.len() * block) as u32, bytes - self.ram.n_bytes());
                self.ops.extend(dropped.into_iter().map(Op::Forget));
            }
            let Some(blob) = added else { break };
            self.ops.push(Op::Save { seq, from: (at * block) as u32, blob });
            path.push(blob);
        }
        (path.len() * block) as u32
    }

    /// Save what a cached sequence holds, before it goes.
    pub(super) fn save_cached(&mut self, now: Time, seq: SeqId) {
        if let Some(Holder::Cached(cached)) = self.sequences.holder(seq) {
            let (scope, tokens) = (cached.scope.clone(), Arc::clone(&cached.tokens));
            let n_blocks = if self.is_decoding() { LATE_BUSY } else { u32::MAX };
            self.save(now, seq, scope.as_ref(), &tokens, Most { n_blocks, may_drop: true });
        }
    }

    /// Whether somebody waits for the next token.
    fn is_decoding(&self) -> bool {
        self.running_ids().any(|id| self.live[&id].is_decoding())
    }

    /// Save what a running request has computed, before its cells go.
    pub(super) fn save_running(&mut self, now: Time, id: RequestId, seq: SeqId) {
        let live = &self.live[&id];
        if live.request.cache_prompt {
            let (scope, tokens) = (live.request.scope.clone(), live.tokens[..live.n_computed as usize].to_vec());
            self.save(now, seq, scope.as_ref(), &tokens, Most { n_blocks: u32::MAX, may_drop: true });
        }
    }

    /// While cells run short, save a little of what will be evicted next, once before each pass and as long as nobody is
    /// there: an eviction that has nothing left to save takes no time.
    pub(super) fn save_ahead(&mut self, now: Time) {
        let short = self.sequences.cells.n_used() > self.limits.n_ctx / 2;
        let is_turn = !self.saved_ahead || self.live.is_empty();
        if !is_turn || !self.ram.is_on() || !short {
            return;
        }
        self.saved_ahead = true;
        let block = self.ram.block();
        let next = self.sequences.cached().filter(|(_, c)| c.n_saved + block <= c.tokens.len() as u32);
        let Some((seq, cached)) = next.min_by_key(|(seq, c)| (c.last_used, *seq)) else { return };
        let (scope, tokens) = (cached.scope.clone(), Arc::clone(&cached.tokens));
        let n_blocks = if self.is_decoding() { AHEAD_BUSY } else { AHEAD_IDLE };
        let n_saved = self.save(now, seq, scope.as_ref(), &tokens, Most { n_blocks, may_drop: false });
        if let Some(cached) = self.sequences.cached_mut(seq) {
            // What finds no place now is not tried again.
            cached.n_saved = if n_saved > cached.n_saved { n_saved } else { u32::MAX - block };
        }
    }

    /// Tokens of these that the RAM tier holds, from the first.
    pub(super) fn n_in_ram(&self, scope: Option<&Key>, tokens: &[Token]) -> u32 {
        self.ram.path(scope, tokens).len() as u32 * self.ram.block()
    }

    /// Give an empty sequence the first `len` tokens of its request from the RAM tier, behind what another holds of them.
    pub(super) fn restore(&mut self, now: Time, id: RequestId, to: SeqId, base: Option<Match>, len: u32) {
        let block = self.ram.block();
        let live = &self.live[&id];
        let path = self.ram.path(live.request.scope.as_ref(), &live.tokens[..len as usize]);
        let n_shared = base.map_or(0, |base| base.len / block);
        let base = base.filter(|_| n_shared > 0).map(|base| Match { len: n_shared * block, ..base });
        if let Some(base) = base {
            self.adopt(now, base, to);
        }
        let blobs = path[n_shared as usize..].to_vec();
        self.ram.touch(&path, now);
        self.ram.pin(&blobs);
        self.reserved += blobs.len() as u32 * block;
        let n_missing = (self.sequences.cells.n_used() + self.reserved).saturating_sub(self.limits.n_ctx);
        if n_missing > 0 {
            self.evict_for(now, n_missing, base.map(|base| base.seq));
        }
        self.ops.push(Op::Restore { seq: to, from: n_shared * block, blobs });
        self.begin_with(now, id, len, PrefixSource::Ram);
    }

    pub(super) fn apply_save(&mut self, blob: BlobId, result: &OpResult) {
        if let OpResult::Saved { n_bytes } = result {
            self.ram.set_bytes(blob, *n_bytes);
            self.ram_tally.add(RamOp::Save, self.ram.block(), *n_bytes);
        } else {
            self.lose(blob);
        }
    }

    pub(super) fn apply_restore(&mut self, seq: SeqId, from: u32, blobs: &[BlobId], result: &OpResult) {
        let (n_restored, lost) = match result {
            OpResult::Restored { n_blobs, lost } => (*n_blobs as usize, *lost),
            OpResult::Done | OpResult::Refused(_) | OpResult::Saved { .. } => (0, false),
        };
        self.ram.unpin(blobs);
        let n_tokens = n_restored as u32 * self.ram.block();
        assert!(n_restored == 0 || self.sequences.cells.len(seq) == from, "blocks follow what a sequence holds");
        self.sequences.cells.extend(seq, n_tokens);
        self.reserved = self.reserved.saturating_sub(blobs.len() as u32 * self.ram.block());
        if n_restored > 0 {
            self.ram_tally.add(RamOp::Restore, n_tokens, self.ram.bytes_of(&blobs[..n_restored]));
        }
        if let Some(live) = self.holder_mut(seq)
            && n_restored < blobs.len()
        {
            live.n_computed = live.n_computed.min(from + n_tokens);
            if live.n_computed == 0 {
                live.found = PrefixSource::None;
            }
        }
        if lost && let Some(next) = blobs.get(n_restored) {
            self.lose(*next);
        }
    }

    /// A block is of no use, and neither is what stands on it.
    fn lose(&mut self, blob: BlobId) {
        let gone = self.ram.forget(blob);
        self.ops.extend(gone.into_iter().map(Op::Forget));
    }

    pub(super) fn tell_ram(&mut self) {
        for (op, (n_tokens, n_bytes)) in std::mem::take(&mut self.ram_tally).0 {
            self.events.push_back(Event::RamCache {
                op,
                n_bytes,
                n_tokens,
                total_bytes: self.ram.n_bytes(),
                n_entries: self.ram.n_blocks(),
            });
        }
    }
}
