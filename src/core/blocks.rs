//! Blocks of KV state that the backend keeps outside the cells: the index and the account of a cache tier.
//!
//! Where the memory has blocks, those of a fixed length form a tree for each scope: a block stands under the one before
//! it, so that what two conversations have in common is kept once. A block's key is a hash chained over all tokens before
//! it, as in vLLM's prefix caching; unlike there, a hit is compared token by token, so that a collision is a miss and
//! nothing else; a last block may be shorter, and one that matches in part is of use too. Elsewhere a block is a whole
//! sequence: it stands on nothing, and an index over the tokens finds it.

use super::ids::{BlobId, Token};
use super::mix::{GOLDEN, mix};
use super::prefix::{PrefixIndex, common_prefix};
use super::time::Time;
use crate::options::Key;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Tokens of a block that are worth restoring it for.
pub(super) const MIN_PART: u32 = 8;

/// One block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) scope: Option<Key>,
    pub(super) tokens: Arc<[Token]>,
    pub(super) n_bytes: u64,
    pub(super) last_used: Time,
    parent: Option<BlobId>,
    hash: u64,
    /// How many blocks come before it.
    depth: u32,
    n_children: u32,
}

/// What a block may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// At most, as far as is known before it is saved. Unit: bytes.
    pub(super) n_bytes: u64,
    /// Others may go for it that were last used then or before.
    pub(super) drop_until: Option<Time>,
}

/// How a block finds its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It is there.
    Free,
    /// This one has to go first.
    Taken(BlobId),
    /// It stays out.
    None,
}

/// The blocks of one tier. Their bytes are the backend's.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// Tokens of a block; 0 where blocks are whole sequences.
    block: usize,
    budget: u64,
    n_bytes: u64,
    by_id: BTreeMap<BlobId, Block>,
    by_hash: BTreeMap<u64, BlobId>,
    /// Blocks by the hash of what stands before them.
    behind: BTreeMap<u64, BTreeSet<BlobId>>,
    /// Whole sequences by their tokens.
    whole: PrefixIndex<BlobId>,
    /// Blocks without a block behind them: least recently used first, and of those the deepest.
    leaves: BTreeSet<(Time, Reverse<u32>, BlobId)>,
    /// Blocks that are about to be restored: they stay until that is done.
    pinned: BTreeMap<BlobId, u32>,
    next: u64,
}

impl Blocks {
    pub(super) fn new(block: u32, budget: u64) -> Self {
        Self { block: block as usize, budget, ..Self::default() }
    }

    /// Whether it may hold anything.
    pub(super) fn is_on(&self) -> bool {
        self.budget > 0
    }

    /// Tokens of a block; 0 where blocks are whole sequences.
    pub(super) fn block(&self) -> u32 {
        self.block as u32
    }

    pub(super) fn n_blocks(&self) -> u32 {
        self.by_id.len() as u32
    }

    pub(super) fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// What some blocks take together.
    pub(super) fn bytes_of(&self, blocks: &[BlobId]) -> u64 {
        blocks.iter().filter_map(|id| self.by_id.get(id)).map(|block| block.n_bytes).sum()
    }

    /// The blocks that these tokens begin with, in order.
    pub(super) fn path(&self, scope: Option<&Key>, tokens: &[Token]) -> Vec<BlobId> {
        let mut path = Vec::new();
        if self.by_id.is_empty() || self.block == 0 {
            return path;
        }
        let mut hash = seed(scope);
        for tokens in tokens.chunks_exact(self.block) {
            hash = chain(hash, tokens);
            let Some(found) = self.find(hash, path.last().copied(), scope, tokens) else { break };
            path.push(found);
        }
        path
    }

    /// Of the blocks behind a path, the one that goes on most like these tokens, and how long it does.
    pub(super) fn part(&self, scope: Option<&Key>, path: &[BlobId], rest: &[Token]) -> Option<(BlobId, u32)> {
        let parent = path.last().copied();
        let behind = self.behind.get(&self.hash_behind(parent, scope))?.iter().map(|id| (*id, &self.by_id[id]));
        let of_path = behind.filter(|(_, block)| block.parent == parent && block.scope.as_ref() == scope);
        let common = of_path.map(|(id, block)| (id, common_prefix(&block.tokens, rest) as u32));
        common.max_by_key(|(id, len)| (*len, *id)).filter(|(_, len)| *len >= MIN_PART)
    }

    /// Shorter blocks that another has all of, standing where it stands.
    fn shorter(&self, before: u64, new: BlobId) -> Vec<BlobId> {
        let Some(behind) = self.behind.get(&before) else { return Vec::new() };
        let block = &self.by_id[&new];
        let is_part =
            |other: &Block| other.tokens.len() < block.tokens.len() && block.tokens.starts_with(&other.tokens);
        let alike = |other: &Block| other.parent == block.parent && other.scope == block.scope && other.n_children == 0;
        let found = behind.iter().filter(|id| alike(&self.by_id[id]) && is_part(&self.by_id[id]));
        found.copied().filter(|id| !self.pinned.contains_key(id)).collect()
    }

    /// Tokens of a block that is there.
    pub(super) fn len_of(&self, id: BlobId) -> u32 {
        self.by_id.get(&id).map_or(0, |block| block.tokens.len() as u32)
    }

    /// Blocks of which another has all, those about to be restored excepted.
    pub(super) fn subsumed(&self, id: BlobId) -> Vec<BlobId> {
        let Some(block) = self.by_id.get(&id) else { return Vec::new() };
        if self.block > 0 {
            return self.shorter(self.hash_behind(block.parent, block.scope.as_ref()), id);
        }
        let found = self.matches(block.scope.as_ref(), &block.tokens).filter(|(_, n_held, len)| n_held == len);
        found.map(|(other, ..)| other).filter(|other| *other != id && !self.pinned.contains_key(other)).collect()
    }

    /// The whole sequences of a scope, with how many tokens they have, and how many of these they begin with: most first.
    pub(super) fn matches(&self, scope: Option<&Key>, tokens: &[Token]) -> impl Iterator<Item = (BlobId, u32, u32)> {
        let found = self.whole.matches(scope, tokens);
        found.map(|(id, len)| (id, self.by_id[&id].tokens.len() as u32, len as u32))
    }

    fn find(&self, hash: u64, parent: Option<BlobId>, scope: Option<&Key>, tokens: &[Token]) -> Option<BlobId> {
        let id = *self.by_hash.get(&hash)?;
        let block = &self.by_id[&id];
        let same = block.parent == parent && *block.tokens == *tokens && block.scope.as_ref() == scope;
        same.then_some(id)
    }

    /// The hash that blocks behind this one, or at the beginning of a scope, are chained to.
    fn hash_behind(&self, parent: Option<BlobId>, scope: Option<&Key>) -> u64 {
        parent.map_or_else(|| seed(scope), |id| self.by_id[&id].hash)
    }

    /// The block that holds these tokens behind another, or at the beginning of a scope.
    pub(super) fn child(&self, parent: Option<BlobId>, scope: Option<&Key>, tokens: &[Token]) -> Option<BlobId> {
        self.find(chain(self.hash_behind(parent, scope), tokens), parent, scope, tokens)
    }

    /// A block and all that it stands on, from the first; nothing for one that is not there.
    pub(super) fn line(&self, id: BlobId) -> Vec<BlobId> {
        let up = |id: &BlobId| self.by_id.get(id).and_then(|block| block.parent);
        let mut line: Vec<BlobId> =
            std::iter::successors(Some(id).filter(|id| self.by_id.contains_key(id)), up).collect();
        line.reverse();
        line
    }

    pub(super) fn get(&self, id: BlobId) -> Option<&Block> {
        self.by_id.get(&id)
    }

    /// Note that blocks were used.
    pub(super) fn touch(&mut self, path: &[BlobId], now: Time) {
        for id in path {
            self.change(*id, |block| block.last_used = block.last_used.max(now));
        }
    }

    /// Keep blocks until they are unpinned.
    pub(super) fn pin(&mut self, blocks: &[BlobId]) {
        for id in blocks {
            *self.pinned.entry(*id).or_default() += 1;
        }
    }

    pub(super) fn unpin(&mut self, blocks: &[BlobId]) {
        for id in blocks {
            if let Some(n) = self.pinned.get_mut(id) {
                *n -= 1;
                if *n == 0 {
                    self.pinned.remove(id);
                }
            }
        }
    }

    /// Whether a block behind `parent` finds room, and what has to go for it: what was used least recently, nothing that
    /// it stands on.
    pub(super) fn place(
        &self,
        parent: Option<BlobId>,
        scope: Option<&Key>,
        tokens: &[Token],
        Room { n_bytes, drop_until }: Room,
    ) -> Place {
        let hash = chain(self.hash_behind(parent, scope), tokens);
        if self.by_hash.contains_key(&hash) || n_bytes > self.budget {
            return Place::None;
        }
        if self.n_bytes + n_bytes <= self.budget {
            return Place::Free;
        }
        // Of the blocks that it would stand on only the last can be without another behind it.
        let may_go = |id: &BlobId| Some(*id) != parent && !self.pinned.contains_key(id);
        let old = self.leaves.iter().take_while(|(used, ..)| drop_until.is_some_and(|until| *used <= until));
        old.map(|(.., id)| *id).find(may_go).map_or(Place::None, Place::Taken)
    }

    /// Take in a block of at most so many bytes behind `parent`, where its place is free.
    pub(super) fn add(
        &mut self,
        parent: Option<BlobId>,
        scope: Option<&Key>,
        tokens: &[Token],
        now: Time,
        n_bytes: u64,
    ) -> BlobId {
        let id = BlobId(self.next);
        self.add_as(id, parent, scope, tokens, now, n_bytes);
        id
    }

    /// The same, under a number that no other had before.
    pub(super) fn add_as(
        &mut self,
        id: BlobId,
        parent: Option<BlobId>,
        scope: Option<&Key>,
        tokens: &[Token],
        now: Time,
        n_bytes: u64,
    ) {
        let before = self.hash_behind(parent, scope);
        let depth = parent.map_or(0, |id| self.by_id[&id].depth + 1);
        let hash = chain(before, tokens);
        self.next = self.next.max(id.0 + 1);
        if let Some(parent) = parent {
            self.change(parent, |block| block.n_children += 1);
        }
        let block = Block {
            parent,
            hash,
            scope: scope.cloned(),
            tokens: tokens.into(),
            depth,
            n_bytes,
            n_children: 0,
            last_used: now,
        };
        self.n_bytes += block.n_bytes;
        self.leaves.insert(leaf(id, &block));
        self.by_hash.insert(hash, id);
        self.behind.entry(before).or_default().insert(id);
        if self.block == 0 {
            self.whole.insert(scope, id, Arc::clone(&block.tokens));
        }
        self.by_id.insert(id, block);
    }

    /// It is known what a block takes. Should that be more than was allowed for, what has to go for it.
    pub(super) fn set_bytes(&mut self, id: BlobId, n_bytes: u64) -> Vec<BlobId> {
        let Some(block) = self.by_id.get_mut(&id) else { return Vec::new() };
        self.n_bytes = self.n_bytes - block.n_bytes + n_bytes;
        block.n_bytes = n_bytes;
        if self.n_bytes > self.budget { self.forget(id) } else { Vec::new() }
    }

    /// A block is not there, or of no use: it goes, with all that stand on it. All that went.
    pub(super) fn forget(&mut self, id: BlobId) -> Vec<BlobId> {
        if !self.by_id.contains_key(&id) {
            return Vec::new();
        }
        let mut gone = vec![id];
        let mut at = 0;
        while let Some(parent) = gone.get(at).copied() {
            let behind = self.behind.get(&self.by_id[&parent].hash).into_iter().flatten().copied();
            gone.extend(behind.filter(|id| self.by_id[id].parent == Some(parent)));
            at += 1;
        }
        for id in gone.iter().rev() {
            self.remove(*id);
        }
        gone
    }

    /// Take out a block that nothing stands on.
    pub(super) fn remove(&mut self, id: BlobId) {
        let Some(block) = self.by_id.remove(&id) else { return };
        self.leaves.remove(&leaf(id, &block));
        self.by_hash.remove(&block.hash);
        let before = self.hash_behind(block.parent, block.scope.as_ref());
        if let Some(behind) = self.behind.get_mut(&before) {
            behind.remove(&id);
            if behind.is_empty() {
                self.behind.remove(&before);
            }
        }
        self.whole.remove(block.scope.as_ref(), id);
        self.n_bytes -= block.n_bytes;
        if let Some(parent) = block.parent {
            self.change(parent, |block| block.n_children -= 1);
        }
    }

    /// Change a block, and keep the order of the leaves.
    fn change(&mut self, id: BlobId, change: impl FnOnce(&mut Block)) {
        let Some(block) = self.by_id.get_mut(&id) else { return };
        self.leaves.remove(&leaf(id, block));
        change(block);
        if block.n_children == 0 {
            self.leaves.insert(leaf(id, block));
        }
    }

    /// Tree, order and account, against their definitions.
    pub(super) fn check(&self) {
        assert!(self.n_bytes <= self.budget, "a tier is over its budget");
        self.whole.check();
        assert_eq!(self.by_id.values().map(|block| block.n_bytes).sum::<u64>(), self.n_bytes, "bytes of the blocks");
        assert_eq!(self.by_hash.len(), self.by_id.len(), "each block has its hash");
        assert_eq!(
            self.behind.values().map(BTreeSet::len).sum::<usize>(),
            self.by_id.len(),
            "each block has its place"
        );
        let mut n_behind: BTreeMap<BlobId, u32> = BTreeMap::new();
        for parent in self.by_id.values().filter_map(|block| block.parent) {
            *n_behind.entry(parent).or_default() += 1;
        }
        for (id, block) in &self.by_id {
            let n_children = n_behind.get(id).copied().unwrap_or_default();
            assert_eq!(block.n_children, n_children, "blocks behind a block");
            assert_eq!(self.leaves.contains(&leaf(*id, block)), n_children == 0, "leaves");
            assert!(block.parent.is_none_or(|parent| self.by_id.contains_key(&parent)), "a block stands on another");
        }
        assert_eq!(self.leaves.len(), self.by_id.values().filter(|block| block.n_children == 0).count());
    }
}

fn leaf(id: BlobId, block: &Block) -> (Time, Reverse<u32>, BlobId) {
    (block.last_used, Reverse(block.depth), id)
}

fn seed(scope: Option<&Key>) -> u64 {
    scope.map_or(0, |scope| scope.0.bytes().fold(1, |hash, byte| step(hash ^ u64::from(byte))))
}

fn chain(before: u64, tokens: &[Token]) -> u64 {
    tokens.iter().fold(step(before), |hash, token| step(hash ^ u64::from(token.unsigned_abs())))
}

const fn step(x: u64) -> u64 {
    mix(x.wrapping_add(GOLDEN))
}
