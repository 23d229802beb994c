//! The bytes of the RAM tier: blocks of a sequence, or all of it, copied out of the memory and into it again.
//!
//! llama.cpp saves and restores whole sequences. A block is a part of one: it is shared with a temporary sequence, and
//! that is saved; restored into the temporary sequence, it is shared with the one that it belongs to, positions kept.

use super::context::Context;
use super::ffi::{self, guarded};
use super::machine::available_memory;
use super::ops::{Rules, remove};
use super::state::{get, holds_each_once, set};
use crate::core::{BlobId, OpResult, SeqId};
use std::collections::BTreeMap;

/// Positions of a block.
pub(super) const BLOCK: u32 = 64;
/// Of the memory that is free at load, the tier takes this part at most where the options do not say, and never more
/// than this.
const SHARE: u64 = 8;
const MOST_BYTES: u64 = 8 << 30;

/// The allocator keeps what is freed; after so much it is told to give it back. Unit: bytes.
const TRIM_BYTES: usize = 64 << 20;

struct Blob {
    from: u32,
    len: u32,
    state: Box<[u8]>,
}

/// The saved blocks, and the sequence through which they pass where they are parts of one.
pub(super) struct Blobs {
    saved: BTreeMap<BlobId, Blob>,
    /// It can be computed, and nobody else uses it. None where whole sequences are saved.
    passage: Option<SeqId>,
    /// Cells of the buffer, where sequences share one.
    n_cells: u32,
    /// Bytes that were freed since the heap was trimmed.
    n_freed: usize,
    /// Whether states are laid out as [`holds_each_once`] reads them.
    is_layout_known: bool,
}

impl Blobs {
    /// No block yet. Sequence `one` holds one position.
    pub(super) fn new(context: &mut Context, passage: Option<SeqId>, one: SeqId, n_cells: u32) -> Self {
        let is_layout_known = passage.is_some_and(|passage| {
            let state = share(context, one, passage, 0, 1).and_then(|()| get(context, passage));
            remove(context, passage, -1).is_ok() && state.is_ok_and(|state| holds_each_once(&state, 0, 1))
        });
        Self { saved: BTreeMap::new(), passage, n_cells, n_freed: 0, is_layout_known }
    }

    /// The sequence through which parts of others pass.
    pub(super) const fn passage(&self) -> Option<SeqId> {
        self.passage
    }

    /// Copy positions `from..from + len` of a sequence: a block, or all that it holds.
    pub(super) fn save(
        &mut self,
        context: &mut Context,
        rules: Rules,
        seq: SeqId,
        (from, len): (u32, u32),
        blob: BlobId,
    ) -> OpResult {
        let held = rules.held(context, seq);
        let state = match (self.passage, held) {
            (Some(passage), Some((first, last))) if first <= from && last + 1 >= from + len => {
                let state = share(context, seq, passage, from, len).and_then(|()| get(context, passage));
                remove(context, passage, -1).and(state)
            }
            (None, Some((_, last))) if from == 0 && last + 1 == len => get(context, seq),
            (Some(_) | None, _) => Err(format!("sequence {seq} does not hold {len} positions from {from}: {held:?}")),
        };
        match state {
            Ok(state) => {
                let n_bytes = state.len() as u64;
                self.saved.insert(blob, Blob { from, len, state });
                OpResult::Saved { n_bytes }
            }
            Err(reason) => OpResult::Refused(reason),
        }
    }

    /// Append blocks to a sequence that holds `from` positions, or give an empty one a whole state.
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
            let came = |lost| OpResult::Restored { n_blobs, n_tokens: at - from, lost };
            let n_held = rules.held(context, seq).map_or(0, |(_, last)| last + 1);
            let Some(blob) = self.saved.get(id).filter(|blob| blob.from == at) else { return came(true) };
            if n_held != at || !self.has_room(context, rules, seq, blob.len) {
                return came(false);
            }
            let arrived = self.arrive(context, seq, blob);
            let holds = rules.held(context, seq).is_some_and(|(_, last)| last + 1 == at + blob.len);
            if arrived.is_err() || !holds {
                let _ = if at == 0 { rules.remove(context, seq) } else { rules.trim(context, seq, at) };
                return came(true);
            }
            at += blob.len;
        }
        OpResult::Restored { n_blobs: blobs.len() as u32, n_tokens: at - from, lost: false }
    }

    fn has_room(&self, context: &Context, rules: Rules, seq: SeqId, len: u32) -> bool {
        !rules.unified || context.used_cells(seq).is_none_or(|n_used| n_used + len <= self.n_cells)
    }

    fn arrive(&self, context: &mut Context, seq: SeqId, blob: &Blob) -> Result<(), String> {
        let Some(passage) = self.passage else { return set(context, seq, &blob.state) };
        let arrived = set(context, passage, &blob.state);
        let arrived = arrived.and_then(|()| share(context, passage, seq, blob.from, blob.len));
        remove(context, passage, -1).and(arrived)
    }

    /// The bytes of a block.
    pub(super) fn state(&self, blob: BlobId) -> Option<&[u8]> {
        self.saved.get(&blob).map(|blob| &*blob.state)
    }

    /// Take a block that was given out once.
    pub(super) fn take_in(&mut self, blob: BlobId, (from, len): (u32, u32), state: &[u8]) -> OpResult {
        if self.is_layout_known && !holds_each_once(state, from, len) {
            return OpResult::Refused("the state is not that of these positions".into());
        }
        self.saved.insert(blob, Blob { from, len, state: state.into() });
        OpResult::Saved { n_bytes: state.len() as u64 }
    }

    /// Give a block's memory back: not at each one to the system, but before that notices.
    pub(super) fn forget(&mut self, blob: BlobId) {
        self.n_freed += self.saved.remove(&blob).map_or(0, |blob| blob.state.len());
        if self.n_freed >= TRIM_BYTES {
            self.n_freed = 0;
            // SAFETY: it touches nothing that is in use.
            unsafe { ffi::lb_trim_heap() };
        }
    }
}

/// What all blocks may take where the options do not say.
pub(super) fn default_bytes() -> u64 {
    available_memory().map_or(0, |free| (free / SHARE).min(MOST_BYTES))
}

/// Let `to` share positions `at..at + len` of `from`.
pub(super) fn share(context: &mut Context, from: SeqId, to: SeqId, at: u32, len: u32) -> Result<(), String> {
    let (from, to, first, end) = (from.0 as i32, to.0 as i32, at as i32, (at + len) as i32);
    // SAFETY: the context is alive and has a memory; both ids are below its limit and in one buffer.
    guarded(|err, cap| unsafe { ffi::lb_seq_cp(context.as_ptr(), from, to, first, end, err, cap) }).map(drop)
}
