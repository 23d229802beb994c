//! The simulated KV cells, one by one: what the core's account of spans is held against.

use super::extend_hash;
use crate::core::{Row, SeqId};
use std::collections::BTreeMap;

/// One cell: who shares it, and what the tokens up to it hash to.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    n_holders: u32,
    hash: u64,
}

#[derive(Debug)]
pub(super) struct Cells {
    all: Vec<Cell>,
    free: Vec<usize>,
    sequences: BTreeMap<SeqId, Vec<usize>>,
    n_ctx_seq: u32,
    unified: bool,
}

impl Cells {
    pub(super) fn new(n_ctx: u32, n_ctx_seq: u32, unified: bool) -> Self {
        Self {
            all: vec![Cell::default(); n_ctx as usize],
            free: (0..n_ctx as usize).rev().collect(),
            sequences: BTreeMap::new(),
            n_ctx_seq,
            unified,
        }
    }

    pub(super) fn n_used(&self) -> u32 {
        (self.all.len() - self.free.len()) as u32
    }

    pub(super) fn len(&self, seq: SeqId) -> u32 {
        self.sequences.get(&seq).map_or(0, Vec::len) as u32
    }

    pub(super) fn sequences(&self) -> Vec<SeqId> {
        self.sequences.keys().copied().collect()
    }

    pub(super) fn hash_at(&self, seq: SeqId, pos: u32) -> u64 {
        self.all[self.sequences[&seq][pos as usize]].hash
    }

    pub(super) fn have_room_for(&self, rows: &[Row]) -> bool {
        if self.unified {
            return rows.len() <= self.free.len();
        }
        rows.iter().all(|row| row.pos < self.n_ctx_seq)
    }

    pub(super) fn append(&mut self, rows: &[Row]) {
        for row in rows {
            let path = self.sequences.entry(row.seq).or_default();
            let before = path.last().map_or(0, |at| self.all[*at].hash);
            let at = self.free.pop().expect("room was checked");
            self.all[at] = Cell { n_holders: 1, hash: extend_hash(before, row.token) };
            path.push(at);
        }
    }

    pub(super) fn copy(&mut self, from: SeqId, to: SeqId, len: u32) {
        let shared: Vec<usize> =
            self.sequences.get(&from).map_or(&[][..], Vec::as_slice).iter().take(len as usize).copied().collect();
        for at in &shared {
            self.all[*at].n_holders += 1;
        }
        if !shared.is_empty() {
            self.sequences.insert(to, shared);
        }
    }

    pub(super) fn trim(&mut self, seq: SeqId, len: u32) {
        let Some(path) = self.sequences.get_mut(&seq) else { return };
        if len as usize >= path.len() {
            return;
        }
        for at in path.split_off(len as usize) {
            self.all[at].n_holders -= 1;
            if self.all[at].n_holders == 0 {
                self.free.push(at);
            }
        }
        if len == 0 {
            self.sequences.remove(&seq);
        }
    }

    /// What a block of cells holds.
    pub(super) fn block(&self, seq: SeqId, from: u32, n: u32) -> Vec<u64> {
        let path = &self.sequences[&seq][from as usize..(from + n) as usize];
        path.iter().map(|at| self.all[*at].hash).collect()
    }

    /// Append cells that hold this; whether there was room.
    pub(super) fn append_block(&mut self, seq: SeqId, block: &[u64]) -> bool {
        if block.len() > self.free.len() {
            return false;
        }
        for hash in block {
            let at = self.free.pop().expect("room was checked");
            self.all[at] = Cell { n_holders: 1, hash: *hash };
            self.sequences.entry(seq).or_default().push(at);
        }
        true
    }
}
