//! What moves between the KV cells and the RAM tier: blocks are saved before their cells are given up, and restored
//! instead of being computed again.

use super::blocks::{MIN_PART, Room};
use super::donors::Match;
use super::event::{PrefixSource, Tier, TierOp};
use super::ids::{BlobId, RequestId, SeqId, Token};
use super::op::{Op, OpResult};
use super::scheduler::Scheduler;
use super::sequences::Holder;
use super::time::Time;
use crate::options::Key;
use std::sync::Arc;

/// Blocks that are saved ahead of need in one turn, while nobody waits for a token, and while somebody does.
const AHEAD_IDLE: u32 = 4;
const AHEAD_BUSY: u32 = 1;
/// Blocks of one cached sequence that are saved at its eviction while somebody waits for a token: the rest is given up.
const LATE_BUSY: u32 = 32;
/// The same, where only whole sequences can be saved. Unit: bytes.
const AHEAD_BUSY_BYTES: u64 = 16 << 20;
pub(super) const LATE_BUSY_BYTES: u64 = 64 << 20;
/// Positions of a whole sequence that are worth saving.
const MIN_WHOLE: u32 = 32;

/// Instead of how much of a sequence was saved: there was no room for more.
const NO_PLACE: u32 = u32::MAX;

/// How much may be saved.
#[derive(Clone, Copy)]
pub(super) struct Most {
    n_blocks: u32,
    /// Of a whole sequence. Unit: bytes.
    n_bytes: u64,
    /// Blocks may go for it that were last used then or before.
    drop_until: Option<Time>,
}

impl Most {
    pub(super) const ALL: Self = Self { n_blocks: u32::MAX, n_bytes: u64::MAX, drop_until: Some(Time::NEVER) };
}

impl Scheduler {
    /// Save the first tokens of a sequence that are not in RAM yet, as much as may be; how many tokens are there then.
    ///
    /// What still has its cells drives nothing out of RAM that was used later: that would be lost, and this is not.
    pub(super) fn save(&mut self, now: Time, seq: SeqId, scope: Option<&Key>, tokens: &[Token], most: Most) -> u32 {
        if !self.ram.is_on() {
            0
        } else if self.ram.block() > 0 {
            self.save_blocks(now, seq, scope, tokens, most)
        } else {
            self.save_whole(now, seq, scope, tokens, most)
        }
    }

    fn save_blocks(&mut self, now: Time, seq: SeqId, scope: Option<&Key>, tokens: &[Token], most: Most) -> u32 {
        let block = self.ram.block();
        let mut path = self.ram.path(scope, tokens);
        self.ram.touch(&path, now);
        let n_there = path.len();
        let room = Room { n_bytes: self.limits.state.bytes(self.limits.memory, block), drop_until: most.drop_until };
        let blocks = tokens.chunks_exact(block as usize).enumerate();
        for (at, tokens) in blocks.skip(n_there).take(most.n_blocks as usize) {
            let Some(blob) = self.take_in(Tier::Ram, now, path.last().copied(), scope, tokens, room) else { break };
            self.ops.push(Op::Save { seq, from: at as u32 * block, len: block, blob });
            path.push(blob);
        }
        let from = path.len() as u32 * block;
        from + self.save_rest(now, seq, scope, &tokens[from as usize..], &path, room)
    }

    /// Save what is behind the last whole block, where that is all there is; how many tokens of it are there then.
    fn save_rest(
        &mut self,
        now: Time,
        seq: SeqId,
        scope: Option<&Key>,
        rest: &[Token],
        path: &[BlobId],
        room: Room,
    ) -> u32 {
        let (len, block) = (rest.len() as u32, self.ram.block());
        if !(MIN_PART..block).contains(&len) {
            return 0;
        }
        if let Some((blob, n_there)) = self.ram.part(scope, path, rest)
            && n_there == len
        {
            self.ram.touch(&[blob], now);
            return len;
        }
        let Some(blob) = self.take_in(Tier::Ram, now, path.last().copied(), scope, rest, room) else { return 0 };
        self.ops.push(Op::Save { seq, from: path.len() as u32 * block, len, blob });
        len
    }

    /// Save all that a sequence holds, which is these tokens.
    fn save_whole(&mut self, now: Time, seq: SeqId, scope: Option<&Key>, tokens: &[Token], most: Most) -> u32 {
        let len = tokens.len() as u32;
        let (there, n_there) = self.best_of(&self.ram, scope, tokens);
        if n_there == len {
            self.ram.touch(&there, now);
            return len;
        }
        let n_bytes = self.limits.state.bytes(self.limits.memory, len);
        if len >= MIN_WHOLE && n_bytes <= most.n_bytes {
            let room = Room { n_bytes, drop_until: most.drop_until };
            if let Some(blob) = self.take_in(Tier::Ram, now, None, scope, tokens, room) {
                self.ops.push(Op::Save { seq, from: 0, len, blob });
                return len;
            }
        }
        0
    }

    /// Save what a cached sequence holds, before it goes.
    pub(super) fn save_cached(&mut self, seq: SeqId) {
        if let Some(Holder::Cached(cached)) = self.sequences.holder(seq) {
            let (scope, tokens, last_used) = (cached.scope.clone(), Arc::clone(&cached.tokens), cached.last_used);
            let most = Most { n_blocks: LATE_BUSY, n_bytes: LATE_BUSY_BYTES, ..Most::ALL };
            let most = if self.is_decoding() { most } else { Most::ALL };
            self.save(last_used, seq, scope.as_ref(), &tokens, most);
        }
    }

    /// Whether somebody waits for the next token.
    pub(super) fn is_decoding(&self) -> bool {
        self.running_ids().any(|id| self.live[&id].is_decoding())
    }

    /// Save what a running request has computed, as much as may be: before its cells go, or where it will be continued
    /// from.
    pub(super) fn save_running(&mut self, now: Time, id: RequestId, seq: SeqId, most: Most) {
        let live = &self.live[&id];
        if live.request.keeps() {
            let (scope, tokens) = (live.request.scope.clone(), live.tokens[..live.n_computed as usize].to_vec());
            self.save(now, seq, scope.as_ref(), &tokens, most);
        }
    }

    /// What may be saved at once beside other streams: those must not feel it.
    pub(super) fn beside(&self, id: RequestId) -> Most {
        let others = self.running_ids().any(|other| other != id && self.live[&other].is_decoding());
        if others { Most { n_bytes: LATE_BUSY_BYTES, ..Most::ALL } } else { Most::ALL }
    }

    /// While cells or sequences run short, save a little of what will be evicted next, once before each pass and as long
    /// as nobody is there: an eviction that has nothing left to save takes no time.
    pub(super) fn save_ahead(&mut self) {
        // What is to be on disk when the engine ends has to be in RAM before.
        let is_wanted = self.sequences.is_short() || self.disk.is_on();
        let is_turn = !self.saved_ahead || self.is_vacant();
        if !is_turn || !self.ram.is_on() || !is_wanted {
            return;
        }
        self.saved_ahead = true;
        let next = self.sequences.cached().filter(|(_, c)| c.n_saved < self.n_savable(c.tokens.len() as u32));
        let Some((seq, cached)) = next.min_by_key(|(seq, c)| (c.last_used, *seq)) else { return };
        // With a folder below, what is dropped from RAM is not lost.
        let drop_until = self.may_go_for(cached.last_used);
        let (n_saved, n_savable) = self.save_slice(seq, drop_until);
        if let Some(cached) = self.sequences.cached_mut(seq) {
            // What finds no place now is not tried again.
            let grew = n_saved > cached.n_saved || n_saved >= n_savable;
            cached.n_saved = if grew { n_saved } else { NO_PLACE };
        }
    }

    /// Tokens of a sequence of this length that can be saved.
    fn n_savable(&self, len: u32) -> u32 {
        let rest = len.checked_rem(self.ram.block()).unwrap_or(0);
        if rest < MIN_PART { len - rest } else { len }
    }

    /// Save a little of a cached sequence, into free room or in place of what was last used then or before; how much of it is
    /// saved then, of how much.
    pub(super) fn save_slice(&mut self, seq: SeqId, drop_until: Option<Time>) -> (u32, u32) {
        let Some(Holder::Cached(cached)) = self.sequences.holder(seq) else { return (0, 0) };
        let (scope, tokens, last_used) = (cached.scope.clone(), Arc::clone(&cached.tokens), cached.last_used);
        let busy = Most { n_blocks: AHEAD_BUSY, n_bytes: AHEAD_BUSY_BYTES, drop_until };
        let most = if self.is_decoding() { busy } else { Most { n_blocks: AHEAD_IDLE, n_bytes: u64::MAX, ..busy } };
        // To be saved is no use: the order of going stays that of use.
        let n_saved = self.save(last_used, seq, scope.as_ref(), &tokens, most);
        (n_saved, self.n_savable(tokens.len() as u32))
    }

    /// Tokens of these that the RAM tier can give, from the first.
    pub(super) fn n_in_ram(&self, scope: Option<&Key>, tokens: &[Token]) -> u32 {
        self.best_of(&self.ram, scope, tokens).1
    }

    /// Give an empty sequence the first `len` tokens of its request from the RAM tier, behind what another holds of them.
    pub(super) fn restore(&mut self, now: Time, id: RequestId, to: SeqId, base: Option<Match>, len: u32) {
        let block = self.ram.block();
        if block == 0 {
            return self.restore_whole(now, id, to, len);
        }
        let live = &self.live[&id];
        let (scope, tokens) = (live.request.scope.as_ref(), &live.tokens[..len as usize]);
        let (path, _) = self.best_of(&self.ram, scope, tokens);
        let n_shared = base.map_or(0, |base| base.len / block);
        let base = base.filter(|_| n_shared > 0).map(|base| Match { len: n_shared * block, ..base });
        if let Some(base) = base {
            self.adopt(now, base, to);
        }
        let blobs = path[n_shared as usize..].to_vec();
        self.ram.touch(&path, now);
        let n_cells: u32 = blobs.iter().map(|blob| self.ram.len_of(*blob)).sum();
        self.push_restore(Op::Restore { seq: to, from: n_shared * block, blobs }, n_cells, base);
        if len < n_shared * block + n_cells {
            self.ops.push(Op::Trim { seq: to, len });
        }
        self.begin_with(now, id, len, self.ram_source(id));
    }

    fn restore_whole(&mut self, now: Time, id: RequestId, to: SeqId, len: u32) {
        let live = &self.live[&id];
        let (scope, tokens) = (live.request.scope.as_ref(), &live.tokens[..len as usize]);
        let (found, len) = self.best_of(&self.ram, scope, tokens);
        let Some(blob) = found.first().copied() else { return self.begin_with(now, id, 0, PrefixSource::None) };
        self.ram.touch(&[blob], now);
        let n_held = self.ram.len_of(blob);
        self.push_restore(Op::Restore { seq: to, from: 0, blobs: vec![blob] }, n_held, None);
        if len < n_held {
            self.ops.push(Op::Trim { seq: to, len });
        }
        self.begin_with(now, id, len, self.ram_source(id));
    }

    fn ram_source(&self, id: RequestId) -> PrefixSource {
        if self.live[&id].loaded_at.is_some() { PrefixSource::Disk } else { PrefixSource::Ram }
    }

    /// Restore blocks, which takes so many cells, and keep them until that is done.
    fn push_restore(&mut self, op: Op, n_cells: u32, base: Option<Match>) {
        let Op::Restore { blobs, .. } = &op else { return };
        self.ram.pin(blobs);
        self.reserved += n_cells;
        let n_missing =
            (self.sequences.cells.n_used() + self.reserved).saturating_sub(self.limits.n_ctx + self.freeing);
        if self.limits.is_pool && n_missing > 0 {
            self.evict_for(n_missing, base.map(|base| base.seq));
        }
        self.ops.push(op);
    }

    pub(super) fn apply_save(&mut self, blob: BlobId, len: u32, result: &OpResult) {
        let OpResult::Saved { n_bytes } = result else { return self.lose(Tier::Ram, blob) };
        if self.keep_block(Tier::Ram, blob, *n_bytes) {
            self.tally.add(Tier::Ram, TierOp::Save, len, *n_bytes);
            self.disk.note_saved(blob);
        }
    }

    pub(super) fn apply_restore(&mut self, seq: SeqId, from: u32, blobs: &[BlobId], result: &OpResult) {
        let (n_restored, n_tokens, lost) = match result {
            OpResult::Restored { n_blobs, n_tokens, lost } => (*n_blobs as usize, *n_tokens, *lost),
            OpResult::Done
            | OpResult::Refused(_)
            | OpResult::Lost(_)
            | OpResult::Saved { .. }
            | OpResult::Exported(_) => (0, 0, false),
        };
        self.ram.unpin(blobs);
        assert!(n_restored == 0 || self.sequences.cells.len(seq) == from, "blocks follow what a sequence holds");
        self.sequences.cells.extend(seq, n_tokens);
        if n_restored > 0 {
            let n_bytes = self.ram.bytes_of(&blobs[..n_restored]);
            self.tally.add(Tier::Ram, TierOp::Restore, n_tokens, n_bytes);
        }
        if let Some(live) = self.holder_mut(seq)
            && n_restored < blobs.len()
        {
            live.n_computed = live.n_computed.min(from + n_tokens);
            live.was_refused();
            if live.n_computed == 0 {
                live.found = PrefixSource::None;
            }
        }
        if lost && let Some(next) = blobs.get(n_restored) {
            self.lose(Tier::Ram, *next);
        }
    }
}
