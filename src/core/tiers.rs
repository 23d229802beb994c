//! What the cache tiers below the KV cells do alike: blocks find a place, stay, go, and it is told.

use super::blocks::{Blocks, Place, Room};
use super::event::{Event, Tier, TierOp};
use super::ids::{BlobId, Token};
use super::memory::MemoryKind;
use super::op::Op;
use super::scheduler::Scheduler;
use super::time::Time;
use crate::options::Key;
use std::collections::BTreeMap;

/// What happened in the tiers since it was told last.
#[derive(Debug, Default)]
pub(super) struct Tally(BTreeMap<(Tier, TierOp), Sum>);

#[derive(Debug, Default)]
struct Sum {
    n_tokens: u32,
    n_bytes: u64,
    reason: Option<String>,
}

impl Tally {
    pub(super) fn add(&mut self, tier: Tier, op: TierOp, n_tokens: u32, n_bytes: u64) {
        let sum = self.0.entry((tier, op)).or_default();
        sum.n_tokens += n_tokens;
        sum.n_bytes += n_bytes;
    }

    pub(super) fn fail(&mut self, tier: Tier, n_tokens: u32, reason: String) {
        let sum = self.0.entry((tier, TierOp::Fail)).or_default();
        sum.n_tokens += n_tokens;
        // What follows from the first one says less.
        sum.reason.get_or_insert(reason);
    }
}

impl Tier {
    /// Drop one of its blocks.
    fn drop_op(self, block: BlobId) -> Op {
        match self {
            Self::Ram => Op::Forget(block),
            Self::Disk => Op::Discard(block),
        }
    }
}

impl Scheduler {
    fn blocks(&self, tier: Tier) -> &Blocks {
        match tier {
            Tier::Ram => &self.ram,
            Tier::Disk => &self.disk.blocks,
        }
    }

    fn blocks_mut(&mut self, tier: Tier) -> &mut Blocks {
        match tier {
            Tier::Ram => &mut self.ram,
            Tier::Disk => &mut self.disk.blocks,
        }
    }

    /// The blocks of a tier that give most of these tokens, from the first, and how many they give: what they hold behind
    /// those has to be cut off.
    pub(super) fn best_of(&self, tier: &Blocks, scope: Option<&Key>, tokens: &[Token]) -> (Vec<BlobId>, u32) {
        if tier.block() > 0 {
            let mut path = tier.path(scope, tokens);
            let n_whole = path.len() as u32 * tier.block();
            let part = tier.part(scope, &path, &tokens[n_whole as usize..]);
            path.extend(part.map(|(blob, _)| blob));
            return (path, n_whole + part.map_or(0, |(_, len)| len));
        }
        let memory = self.limits.memory;
        let can = |n_held, len| len > 0 && memory.can_cut(memory.first_copied(n_held), n_held, len);
        let mut found = tier.matches(scope, tokens).filter(|(_, n_held, len)| can(*n_held, *len));
        found.next().map_or((Vec::new(), 0), |(blob, _, len)| (vec![blob], len))
    }

    /// A place in a tier, and what has to go for it.
    pub(super) fn take_in(
        &mut self,
        tier: Tier,
        now: Time,
        parent: Option<BlobId>,
        scope: Option<&Key>,
        tokens: &[Token],
        room: Room,
    ) -> Option<BlobId> {
        loop {
            match self.blocks(tier).place(parent, scope, tokens, room) {
                Place::Free => return Some(self.blocks_mut(tier).add(parent, scope, tokens, now, room.n_bytes)),
                Place::Taken(old) => self.make_go(tier, old),
                Place::None => return None,
            }
        }
    }

    /// A block goes for another, nothing standing on it. What leaves RAM may go on to the disk.
    fn make_go(&mut self, tier: Tier, old: BlobId) {
        if tier == Tier::Ram {
            self.store_late(old);
        }
        let (n_tokens, n_bytes) = (self.blocks(tier).len_of(old), self.blocks(tier).bytes_of(&[old]));
        self.tally.add(tier, TierOp::Evict, n_tokens, n_bytes);
        self.blocks_mut(tier).remove(old);
        self.ops.push(tier.drop_op(old));
    }

    /// A block is in its tier, and takes so many bytes; whether it may stay. What is of no use beside it goes: of full
    /// attention the longer one gives all that the shorter ones do.
    pub(super) fn keep_block(&mut self, tier: Tier, block: BlobId, n_bytes: u64) -> bool {
        let gone = self.blocks_mut(tier).set_bytes(block, n_bytes);
        let stays = gone.is_empty();
        self.ops.extend(gone.into_iter().map(|block| tier.drop_op(block)));
        if stays && self.limits.memory == MemoryKind::Full {
            for other in self.blocks(tier).subsumed(block) {
                self.lose(tier, other);
            }
        }
        stays
    }

    /// A block is of no use, and neither is what stands on it.
    pub(super) fn lose(&mut self, tier: Tier, block: BlobId) {
        let gone = self.blocks_mut(tier).forget(block);
        self.ops.extend(gone.into_iter().map(|block| tier.drop_op(block)));
    }

    pub(super) fn tell_tiers(&mut self) {
        for ((tier, op), Sum { n_tokens, n_bytes, reason }) in std::mem::take(&mut self.tally).0 {
            let (total_bytes, n_entries) = (self.blocks(tier).n_bytes(), self.blocks(tier).n_blocks());
            self.events.push_back(Event::TierChanged { tier, op, n_bytes, n_tokens, total_bytes, n_entries, reason });
        }
    }
}
