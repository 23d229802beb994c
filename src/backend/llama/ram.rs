//! The bytes of the RAM tier: blocks of a sequence, copied out of the KV buffer and into it again.
//!
//! llama.cpp saves and restores whole sequences. A block is a part of one: it is shared with a temporary sequence, and
//! that is saved; restored into the temporary sequence, it is shared with the one that it belongs to, positions kept.

use super::context::Context;
use super::ffi::{self, guarded};
use super::machine::available_memory;
use super::ops::{Rules, remove};
use crate::core::{BlobId, OpResult, SeqId};
use std::collections::BTreeMap;

/// Positions of a block.
pub(super) const BLOCK: u32 = 64;
/// Of the memory that is free at load, the tier takes this part at most where the options do not say, and never more
/// than this.
const SHARE: u64 = 8;
const MOST_BYTES: u64 = 8 << 30;

struct Blob {
    from: u32,
    state: Box<[u8]>,
}

/// The saved blocks, and the sequence through which they pass.
pub(super) struct Blobs {
    saved: BTreeMap<BlobId, Blob>,
    passage: SeqId,
    /// Cells of the buffer.
    n_cells: u32,
}

impl Blobs {
    /// No block yet. `passage` can be computed, and nobody else uses it.
    pub(super) const fn new(passage: SeqId, n_cells: u32) -> Self {
        Self { saved: BTreeMap::new(), passage, n_cells }
    }

    /// Copy one block of a sequence.
    pub(super) fn save(
        &mut self,
        context: &mut Context,
        rules: Rules,
        seq: SeqId,
        from: u32,
        blob: BlobId,
    ) -> OpResult {
        let holds = rules.held(context, seq).is_some_and(|(first, last)| first <= from && last + 1 >= from + BLOCK);
        if !holds {
            return OpResult::Refused(format!("sequence {seq} does not hold {BLOCK} positions from {from}"));
        }
        let state = share(context, seq, self.passage, from).and_then(|()| get(context, self.passage));
        let emptied = remove(context, self.passage, -1);
        match state.and_then(|state| emptied.map(|()| state)) {
            Ok(state) => {
                let n_bytes = state.len() as u64;
                self.saved.insert(blob, Blob { from, state });
                OpResult::Saved { n_bytes }
            }
            Err(reason) => OpResult::Refused(reason),
        }
    }

    /// Append blocks to a sequence that holds `from` positions.
    pub(super) fn restore(
        &self,
        context: &mut Context,
        rules: Rules,
        seq: SeqId,
        from: u32,
        blobs: &[BlobId],
    ) -> OpResult {
        let mut at = from;
        for (n_blobs, id) in (0..).zip(blobs) {
            let n_held = rules.held(context, seq).map_or(0, |(_, last)| last + 1);
            let n_used = context.used_cells(seq).unwrap_or(self.n_cells);
            if n_held != at || n_used + BLOCK > self.n_cells {
                return OpResult::Restored { n_blobs, lost: false };
            }
            let Some(blob) = self.saved.get(id).filter(|blob| blob.from == at) else {
                return OpResult::Restored { n_blobs, lost: true };
            };
            let arrived = set(context, self.passage, &blob.state)
                .and_then(|()| share(context, self.passage, seq, at))
                .and_then(|()| remove(context, self.passage, -1));
            if arrived.is_err() || rules.held(context, seq) != Some((0, at + BLOCK - 1)) {
                let _ = remove(context, self.passage, -1);
                let _ = rules.trim(context, seq, at);
                return OpResult::Restored { n_blobs, lost: true };
            }
            at += BLOCK;
        }
        OpResult::Restored { n_blobs: blobs.len() as u32, lost: false }
    }

    /// Give a block's memory back.
    pub(super) fn forget(&mut self, blob: BlobId) {
        self.saved.remove(&blob);
    }
}

/// What a block takes at most, from what one position takes.
pub(super) fn block_bytes(context: &mut Context, one_position: SeqId) -> u64 {
    size(context, one_position).map_or(0, |n| n as u64 * u64::from(BLOCK))
}

/// What all blocks may take where the options do not say.
pub(super) fn default_bytes() -> u64 {
    available_memory().map_or(0, |free| (free / SHARE).min(MOST_BYTES))
}

/// Let `to` share one block of `from`.
fn share(context: &mut Context, from: SeqId, to: SeqId, at: u32) -> Result<(), String> {
    let (from, to, first, end) = (from.0 as i32, to.0 as i32, at as i32, (at + BLOCK) as i32);
    // SAFETY: the context is alive and has a memory; both ids are below its limit and in one buffer.
    guarded(|err, cap| unsafe { ffi::lb_seq_cp(context.as_ptr(), from, to, first, end, err, cap) }).map(drop)
}

fn size(context: &mut Context, seq: SeqId) -> Result<usize, String> {
    let mut n = 0;
    let nothing = std::ptr::null_mut();
    // SAFETY: the context is alive; without a buffer the size alone is asked.
    guarded(|err, cap| unsafe { ffi::lb_state_get(context.as_ptr(), seq.0 as i32, nothing, 0, &raw mut n, err, cap) })?;
    if n > 0 { Ok(n) } else { Err(format!("the state of sequence {seq} has no size")) }
}

fn get(context: &mut Context, seq: SeqId) -> Result<Box<[u8]>, String> {
    let mut state = vec![0; size(context, seq)?].into_boxed_slice();
    let mut n = 0;
    // SAFETY: the context is alive, and the buffer is as long as it says.
    guarded(|err, cap| unsafe {
        let (buffer, len) = (state.as_mut_ptr(), state.len());
        ffi::lb_state_get(context.as_ptr(), seq.0 as i32, buffer, len, &raw mut n, err, cap)
    })?;
    if n == state.len() { Ok(state) } else { Err(format!("the state of sequence {seq} could not be saved")) }
}

fn set(context: &mut Context, seq: SeqId, state: &[u8]) -> Result<(), String> {
    let mut n = 0;
    // SAFETY: the context is alive, and the buffer is as long as it says; it was written by the same context.
    guarded(|err, cap| unsafe {
        ffi::lb_state_set(context.as_ptr(), seq.0 as i32, state.as_ptr(), state.len(), &raw mut n, err, cap)
    })?;
    if n == state.len() { Ok(()) } else { Err("a saved state was refused".into()) }
}
