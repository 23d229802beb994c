//! The disk tier: blocks of the RAM tier that a folder keeps too, where they outlive the engine.
//!
//! It stands below RAM and touches nothing else. Blocks are stored ahead of need, a little before each pass and more while
//! nobody is there, and at the latest before they leave RAM; they are loaded into RAM before a request that begins with
//! them gets its slot, beside running streams in slices, one before each pass.

use super::blocks::{Blocks, Place, Room};
use super::event::{Tier, TierOp};
use super::ids::{BlobId, RequestId, Token};
use super::op::{Op, OpResult};
use super::ram::LATE_BUSY_BYTES;
use super::scheduler::Scheduler;
use super::time::Time;
use crate::options::Key;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// What is read before a pass, at least one block: while somebody waits for a token, while somebody's prompt is read, and
/// in one step while nobody runs. Unit: bytes.
const LOAD_DECODING: u64 = 8 << 20;
const LOAD_STEP: u64 = 256 << 20;
/// What is written ahead of need, at least one block: in one step while nobody is there, and before a pass. Unit: bytes.
const AHEAD_IDLE: u64 = 16 << 20;
const AHEAD_BUSY: u64 = 1;
/// What is moved as a whole beside streams at most, where there are no blocks. Unit: bytes.
const WHOLE_BUSY: u64 = 64 << 20;
/// Blocks that were used, from which on the folder is told of them, whoever is there.
const MANY_USED: usize = 1024;
/// What a file takes beside its state, at most, apart from its tokens and its scope. Unit: bytes.
const HEADER_BYTES: u64 = 512;

/// What a folder held when it was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskEntry {
    /// Its number.
    pub id: BlobId,
    /// What it stands on.
    pub parent: Option<BlobId>,
    /// Who may reuse it.
    pub scope: Option<Key>,
    /// What it is the state of.
    pub tokens: Arc<[Token]>,
    /// What its file takes. Unit: bytes.
    pub n_bytes: u64,
    /// Its place in the order of use: the least recent has 0, and no two have the same.
    pub rank: u32,
}

/// The blocks on disk, and those of RAM that are to follow.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) blocks: Blocks,
    /// Blocks that came into RAM, and may not be on disk yet: oldest first.
    unstored: VecDeque<BlobId>,
    /// The block whose turn it was last, and how many of those that it stands on were on disk by then.
    stuck: Option<(BlobId, usize)>,
    /// Blocks that were used since the folder was told.
    used: BTreeSet<BlobId>,
    /// Whether the engine is about to end: what is left is stored now or never.
    is_leaving: bool,
    /// What was read and written since the last pass. Unit: bytes.
    n_loaded: u64,
    n_stored: u64,
}

impl Disk {
    pub(super) fn new(block: u32, budget: u64) -> Self {
        let (unstored, used) = (VecDeque::new(), BTreeSet::new());
        let blocks = Blocks::new(block, budget);
        Self { blocks, unstored, stuck: None, used, is_leaving: false, n_loaded: 0, n_stored: 0 }
    }

    pub(super) fn is_on(&self) -> bool {
        self.blocks.is_on()
    }

    /// A block was saved to RAM.
    pub(super) fn note_saved(&mut self, blob: BlobId) {
        if self.is_on() {
            self.unstored.push_back(blob);
        }
    }

    /// What is reused, from wherever, is not what goes first from the disk.
    pub(super) fn note_use(&mut self, scope: Option<&Key>, tokens: &[Token], now: Time) {
        if !self.is_on() {
            return;
        }
        let mut path = self.blocks.path(scope, tokens);
        let rest = &tokens[path.len() * self.blocks.block() as usize..];
        // Of the last block, or of a whole sequence, perhaps only a part.
        let last = match self.blocks.block() {
            0 => self.blocks.matches(scope, tokens).find(|(.., len)| *len as usize == tokens.len()).map(|(id, ..)| id),
            _ => self.blocks.part(scope, &path, rest).map(|(id, _)| id),
        };
        path.extend(last);
        self.blocks.touch(&path, now);
        // Those before it go after it.
        self.used.extend(path.last());
    }

    /// What was in RAM is lost, and so is what of it was to follow.
    pub(super) fn forget_ram(&mut self) {
        self.unstored.clear();
        self.stuck = None;
    }

    pub(super) fn pass_done(&mut self) {
        (self.n_loaded, self.n_stored) = (0, 0);
    }
}

impl Scheduler {
    /// Take in what a folder holds, before the first request. What is laid out otherwise than here is discarded.
    pub fn adopt_disk(&mut self, mut entries: Vec<DiskEntry>) {
        if !self.disk.is_on() {
            return;
        }
        // Who stands on another has a higher number.
        entries.sort_by_key(|entry| entry.id);
        for DiskEntry { id, parent, scope, tokens, n_bytes, rank } in entries {
            let blocks = &mut self.disk.blocks;
            let (block, len) = (blocks.block(), tokens.len() as u32);
            let fits = if block == 0 {
                parent.is_none()
            } else {
                len <= block && parent.is_none_or(|parent| blocks.len_of(parent) == block)
            };
            let room = Room { n_bytes, drop_until: None };
            if fits && len > 0 && blocks.place(parent, scope.as_ref(), &tokens, room) == Place::Free {
                blocks.add_as(id, parent, scope.as_ref(), &tokens, Time(u64::from(rank)), n_bytes);
            } else {
                self.ops.push(Op::Discard(id));
            }
        }
    }

    /// Whether there is a folder.
    pub fn has_disk(&self) -> bool {
        self.disk.is_on()
    }

    /// The engine is about to end: store all that is cached, also what had no place in RAM before.
    pub fn leave(&mut self) {
        if self.disk.is_on() && !self.disk.is_leaving {
            self.disk.is_leaving = true;
            for cached in self.sequences.all_cached_mut() {
                cached.n_saved = 0;
            }
        }
    }

    /// How old what is in RAM must be to go for a sequence that is saved ahead: with a folder below nothing is lost.
    pub(super) fn may_go_for(&self, last_used: Time) -> Option<Time> {
        if self.disk.is_leaving { Some(Time::NEVER) } else { Some(last_used).filter(|_| self.disk.is_on()) }
    }

    /// Before a request gets its slot, take into RAM what only the disk has of its beginning, where that is more than it
    /// would begin with. True if it waits for that.
    pub(super) fn load_from_disk(&mut self, now: Time, id: RequestId, n_there: u32) -> bool {
        let asking = &self.live[&id];
        if !self.disk.is_on() || !asking.request.cache_prompt {
            return false;
        }
        let (scope, tokens) = (asking.request.scope.as_ref(), asking.findable());
        let (line, n_on_disk) = self.best_of(&self.disk.blocks, scope, tokens);
        let n_in_ram = self.n_in_ram(scope, tokens);
        // Each load brings more into RAM, or it was the last one.
        let was_last = asking.loaded_at.is_some_and(|before| n_in_ram <= before);
        if !self.is_worth(n_on_disk, n_there.max(n_in_ram)) || was_last {
            return false;
        }
        if self.limits.block == 0 && self.is_decoding() && self.disk.blocks.bytes_of(&line) > WHOLE_BUSY {
            return false;
        }
        let most = if self.is_decoding() { LOAD_DECODING } else { LOAD_STEP };
        let left = if self.running_ids().next().is_some() { most.saturating_sub(self.disk.n_loaded) } else { most };
        if left == 0 {
            return true;
        }
        let (scope, tokens) = (scope.cloned(), tokens.to_vec());
        let n_loaded = self.load_missing(now, scope.as_ref(), &tokens, left);
        if let Some(asking) = self.live.get_mut(&id)
            && n_loaded > 0
        {
            asking.loaded_at = Some(n_in_ram);
        }
        n_loaded > 0
    }

    /// Load what the disk has of these tokens and RAM has not, so many bytes and at least one block; how many blocks.
    pub(super) fn load_missing(&mut self, now: Time, scope: Option<&Key>, tokens: &[Token], most_bytes: u64) -> usize {
        let (line, n_on_disk) = self.best_of(&self.disk.blocks, scope, tokens);
        let (there, n_in_ram) = self.best_of(&self.ram, scope, tokens);
        if n_on_disk <= n_in_ram {
            return 0;
        }
        self.disk.blocks.touch(&line, now);
        let n_common = there.len().min(n_in_ram.checked_div(self.ram.block()).unwrap_or(0) as usize);
        self.push_loads(now, scope, &line[n_common..], &there[..n_common], most_bytes)
    }

    /// Load blocks behind those in RAM, so many bytes and at least one; how many.
    fn push_loads(
        &mut self,
        now: Time,
        scope: Option<&Key>,
        line: &[BlobId],
        there: &[BlobId],
        most_bytes: u64,
    ) -> usize {
        let (mut n_loaded, mut n_bytes, mut parent) = (0, 0, there.last().copied());
        let mut from = there.len() as u32 * self.ram.block();
        for entry in line {
            if n_bytes >= most_bytes {
                break;
            }
            let Some(block) = self.disk.blocks.get(*entry) else { break };
            let (tokens, room) =
                (Arc::clone(&block.tokens), Room { n_bytes: block.n_bytes, drop_until: Some(Time::NEVER) });
            let Some(blob) = self.take_in(Tier::Ram, now, parent, scope, &tokens, room) else { break };
            let len = tokens.len() as u32;
            self.ops.push(Op::Load { entry: *entry, blob, from, len });
            n_bytes += room.n_bytes;
            (parent, from, n_loaded) = (Some(blob), from + len, n_loaded + 1);
        }
        self.disk.n_loaded += n_bytes;
        n_loaded
    }

    /// Store a little of what is not on disk yet: what leaves RAM then takes no time, and what an engine leaves behind is
    /// there for the next one.
    pub(super) fn store_ahead(&mut self) {
        let is_idle = self.is_vacant();
        if !self.disk.is_on() || !(is_idle || self.disk.n_stored == 0) {
            return;
        }
        if self.disk.used.len() >= if is_idle { 1 } else { MANY_USED } {
            let used = std::mem::take(&mut self.disk.used).into_iter();
            let mut used: Vec<_> = used.filter_map(|id| Some((self.disk.blocks.get(id)?.last_used, id))).collect();
            used.sort_unstable();
            self.ops.push(Op::Touch(used.into_iter().map(|(_, id)| id).collect()));
        }
        let most = if is_idle { AHEAD_IDLE } else { AHEAD_BUSY };
        let mut n_bytes = 0;
        while n_bytes < most
            && let Some(blob) = self.disk.unstored.pop_front()
        {
            let (n_stored, n_there, is_all) = self.store(blob, most - n_bytes);
            n_bytes += n_stored;
            // What could not be stored last time is not tried for ever.
            let advances = self.disk.stuck.is_none_or(|(other, before)| other != blob || n_there > before);
            if !is_all && advances {
                self.disk.stuck = Some((blob, n_there));
                self.disk.unstored.push_front(blob);
            }
        }
    }

    /// Store a block that leaves RAM. Beside others what is too much at once is given up.
    pub(super) fn store_late(&mut self, blob: BlobId) {
        let most = if self.is_decoding() { LATE_BUSY_BYTES } else { LOAD_STEP };
        let is_alone = self.running_ids().next().is_none();
        let left = if is_alone { u64::MAX } else { most.saturating_sub(self.disk.n_stored) };
        if self.disk.is_on() && left > 0 {
            self.store(blob, left);
        }
    }

    /// Store a block of RAM, behind those that it stands on: so many bytes, and at least one block. How many bytes, how
    /// many of them were there, and whether all that can be is on disk then.
    fn store(&mut self, blob: BlobId, most_bytes: u64) -> (u64, usize, bool) {
        let (mut n_bytes, mut n_there, mut from, mut parent) = (0, 0, 0, None);
        let is_whole = self.limits.block == 0 && self.is_decoding();
        for blob in self.ram.line(blob) {
            let Some(block) = self.ram.get(blob) else { break };
            let (scope, tokens, used) = (block.scope.clone(), Arc::clone(&block.tokens), block.last_used);
            let n_state = block.n_bytes;
            if let Some(there) = self.disk.blocks.child(parent, scope.as_ref(), &tokens) {
                self.disk.blocks.touch(&[there], used);
                (parent, from, n_there) = (Some(there), from + tokens.len() as u32, n_there + 1);
                continue;
            }
            if n_bytes >= most_bytes {
                return (n_bytes, n_there, false);
            }
            if is_whole && n_state > WHOLE_BUSY {
                return (n_bytes, n_there, true);
            }
            let beside =
                HEADER_BYTES + 4 * tokens.len() as u64 + scope.as_ref().map_or(0, |scope| scope.0.len() as u64);
            let room = Room { n_bytes: n_state + beside, drop_until: Some(used) };
            let Some(entry) = self.take_in(Tier::Disk, used, parent, scope.as_ref(), &tokens, room) else { break };
            n_bytes += room.n_bytes;
            self.disk.n_stored += room.n_bytes;
            let len = tokens.len() as u32;
            self.ops.push(Op::Store { blob, entry, parent, scope, from, tokens });
            (parent, from) = (Some(entry), from + len);
        }
        (n_bytes, n_there, true)
    }

    pub(super) fn apply_store(&mut self, entry: BlobId, len: u32, result: OpResult) {
        match result.into_saved() {
            Ok(n_bytes) => {
                self.keep_block(Tier::Disk, entry, n_bytes);
                self.tally.add(Tier::Disk, TierOp::Save, len, n_bytes);
            }
            Err((reason, _)) => {
                self.tally.fail(Tier::Disk, len, reason);
                self.lose(Tier::Disk, entry);
            }
        }
    }

    pub(super) fn apply_load(&mut self, entry: BlobId, blob: BlobId, len: u32, result: OpResult) {
        match result.into_saved() {
            Ok(n_bytes) => {
                self.keep_block(Tier::Ram, blob, n_bytes);
                self.tally.add(Tier::Disk, TierOp::Restore, len, n_bytes);
            }
            Err((reason, is_lost)) => {
                self.lose(Tier::Ram, blob);
                self.tally.fail(Tier::Disk, len, reason);
                if is_lost {
                    self.lose(Tier::Disk, entry);
                }
            }
        }
    }
}
