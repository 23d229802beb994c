//! The simulated KV cells, one by one: what the core's account of spans is held against.

use super::extend_hash;
use crate::core::{Limits, MemoryKind, Row, SeqId};
use std::collections::{BTreeMap, BTreeSet};

/// One cell: who shares it, and what the tokens up to it hash to.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    n_holders: u32,
    hash: u64,
}

/// What a sequence holds.
#[derive(Clone, Debug, Default)]
struct Sequence {
    cells: Vec<usize>,
    /// The first position that is there; those before it have left the window, although the simulation keeps their cells.
    first: u32,
}

/// What was saved of a sequence.
#[derive(Clone, Debug)]
pub(super) struct Saved {
    hashes: Vec<u64>,
    first: u32,
}

impl Saved {
    pub(super) fn len(&self) -> u32 {
        self.hashes.len() as u32
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let words = std::iter::once(u64::from(self.first)).chain(self.hashes.iter().copied());
        words.flat_map(u64::to_le_bytes).collect()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let first = u32::try_from(words.next()?).ok()?;
        rest.is_empty().then(|| Self { hashes: words.collect(), first })
    }
}

#[derive(Debug)]
pub(super) struct Cells {
    all: Vec<Cell>,
    free: BTreeSet<usize>,
    sequences: BTreeMap<SeqId, Sequence>,
    n_ctx_seq: u32,
    memory: MemoryKind,
    is_pool: bool,
}

impl Cells {
    pub(super) fn new(limits: &Limits) -> Self {
        // Without a pool each sequence has its own, as long as it may get.
        let n = if limits.is_pool { limits.n_ctx } else { limits.n_ctx_seq * limits.n_seq_max };
        Self {
            all: vec![Cell::default(); n as usize],
            free: (0..n as usize).collect(),
            sequences: BTreeMap::new(),
            n_ctx_seq: limits.n_ctx_seq,
            memory: limits.memory,
            is_pool: limits.is_pool,
        }
    }

    pub(super) fn n_used(&self) -> u32 {
        (self.all.len() - self.free.len()) as u32
    }

    /// Cells up to the highest one in use.
    pub(super) fn span(&self) -> u32 {
        self.all.iter().rposition(|cell| cell.n_holders > 0).map_or(0, |top| top as u32 + 1)
    }

    /// Move cells from the top into holes below, so many at most; whether any was moved.
    pub(super) fn compact(&mut self, n_cells: u32) -> bool {
        let mut n_moved = 0;
        while n_moved < n_cells {
            let top = self.span() as usize;
            let hole = self.all.iter().position(|cell| cell.n_holders == 0).filter(|hole| *hole + 1 < top);
            let Some(hole) = hole else { break };
            self.all.swap(hole, top - 1);
            self.free.remove(&hole);
            self.free.insert(top - 1);
            for at in self.sequences.values_mut().flat_map(|held| &mut held.cells).filter(|at| **at == top - 1) {
                *at = hole;
            }
            n_moved += 1;
        }
        n_moved > 0
    }

    /// Sequences that hold anything.
    pub(super) fn n_sequences(&self) -> u32 {
        self.sequences.len() as u32
    }

    pub(super) fn len(&self, seq: SeqId) -> u32 {
        self.sequences.get(&seq).map_or(0, |held| held.cells.len()) as u32
    }

    /// The first position that a sequence still has.
    pub(super) fn first(&self, seq: SeqId) -> u32 {
        self.sequences.get(&seq).map_or(0, |held| held.first)
    }

    pub(super) fn sequences(&self) -> Vec<SeqId> {
        self.sequences.keys().copied().collect()
    }

    pub(super) fn hash_at(&self, seq: SeqId, pos: u32) -> u64 {
        self.all[self.sequences[&seq].cells[pos as usize]].hash
    }

    pub(super) fn have_room_for(&self, rows: &[Row]) -> bool {
        if self.is_pool {
            return rows.len() <= self.free.len();
        }
        rows.iter().all(|row| row.pos < self.n_ctx_seq)
    }

    pub(super) fn append(&mut self, rows: &[Row]) {
        for row in rows {
            let before = self.sequences.get(&row.seq).and_then(|held| held.cells.last());
            let before = before.map_or(0, |at| self.all[*at].hash);
            self.push(row.seq, extend_hash(before, row.token));
        }
    }

    fn push(&mut self, seq: SeqId, hash: u64) {
        let at = self.free.pop_first().expect("room was checked");
        self.all[at] = Cell { n_holders: 1, hash };
        let held = self.sequences.entry(seq).or_default();
        held.cells.push(at);
        held.first = held.first.max(self.memory.first_copied(held.cells.len() as u32));
    }

    /// Whether a token at this position finds its window.
    pub(super) fn sees_window(&self, seq: SeqId, pos: u32) -> bool {
        self.memory.is_recurrent() || self.memory.can_cut(self.first(seq), u32::MAX, pos)
    }

    /// Whether a sequence can go on after its first `len` positions.
    pub(super) fn can_cut(&self, seq: SeqId, len: u32) -> bool {
        self.memory.can_cut(self.first(seq), self.len(seq), len)
    }

    /// Whether there is room for a copy.
    pub(super) fn can_copy(&self, len: u32) -> bool {
        self.is_pool || len as usize <= self.free.len()
    }

    pub(super) fn copy(&mut self, from: SeqId, to: SeqId, len: u32) {
        let held = self.sequences.get(&from).cloned().unwrap_or_default();
        let first = held.first;
        for at in held.cells.into_iter().take(len as usize) {
            if self.is_pool {
                self.all[at].n_holders += 1;
                self.sequences.entry(to).or_default().cells.push(at);
            } else {
                self.push(to, self.all[at].hash);
            }
        }
        if let Some(held) = self.sequences.get_mut(&to) {
            held.first = first;
        }
    }

    pub(super) fn trim(&mut self, seq: SeqId, len: u32) {
        let Some(held) = self.sequences.get_mut(&seq) else { return };
        if len as usize >= held.cells.len() {
            return;
        }
        for at in held.cells.split_off(len as usize) {
            self.all[at].n_holders -= 1;
            if self.all[at].n_holders == 0 {
                self.free.insert(at);
            }
        }
        if len == 0 {
            self.sequences.remove(&seq);
        }
    }

    /// What so many positions hold.
    pub(super) fn save(&self, seq: SeqId, from: u32, n: u32) -> Saved {
        let path = &self.sequences[&seq].cells[from as usize..(from + n) as usize];
        Saved { hashes: path.iter().map(|at| self.all[*at].hash).collect(), first: self.first(seq) }
    }

    /// Append cells that hold this; whether there was room.
    pub(super) fn restore(&mut self, seq: SeqId, saved: &Saved) -> bool {
        if saved.hashes.len() > self.free.len() {
            return false;
        }
        for hash in &saved.hashes {
            self.push(seq, *hash);
        }
        if let Some(held) = self.sequences.get_mut(&seq) {
            held.first = held.first.max(saved.first);
        }
        true
    }
}
