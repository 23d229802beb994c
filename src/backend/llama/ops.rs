//! Sequences in the memory of a context: what an op may do is decided here, so that nothing reaches llama.cpp that it
//! would abort on, and a refusal changes nothing.

use super::context::Context;
use super::ffi::{self, guarded};
use super::state::clone_into;
use crate::core::{MemoryKind, OpResult, SeqId};
use llama_cpp_sys_2 as sys;

/// Whether and how sequences can be copied and trimmed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) memory: MemoryKind,
    /// All sequences in one buffer. Between two buffers llama.cpp only queues a copy, which a later removal does not
    /// take back: another request's tokens would appear in the sequence. There the state is copied, at once.
    pub(super) unified: bool,
    /// Whether copies are known to be whole.
    pub(super) copies: bool,
    /// Whether sliding-window cells are scarce.
    pub(super) narrow: bool,
    /// Ids from here on are no sequences.
    pub(super) n_seq_ids: u32,
}

impl Rules {
    /// The positions that a sequence holds: the first and the last.
    pub(super) fn held(self, context: &Context, seq: SeqId) -> Option<(u32, u32)> {
        if seq.0 >= self.n_seq_ids {
            return None;
        }
        // SAFETY: the context is alive and has a memory; the id is below the limit.
        let (first, last) = unsafe {
            let memory = sys::llama_get_memory(context.as_ptr());
            let seq = seq.0 as i32;
            (sys::llama_memory_seq_pos_min(memory, seq), sys::llama_memory_seq_pos_max(memory, seq))
        };
        let last = u32::try_from(last).ok()?;
        match self.memory {
            // A recurrent state stands for all positions up to its own.
            MemoryKind::Recurrent | MemoryKind::Hybrid => Some((0, last)),
            MemoryKind::Full | MemoryKind::SlidingWindow(_) => Some((u32::try_from(first).ok()?, last)),
        }
    }

    /// Let an empty sequence hold the first `len` positions of another.
    pub(super) fn copy(
        self,
        context: &mut Context,
        from: SeqId,
        to: SeqId,
        len: u32,
        buffer: &mut Vec<u8>,
    ) -> OpResult {
        if let Err(reason) = self.may_copy(context, from, to, len) {
            return OpResult::Refused(reason);
        }
        let done = if self.unified {
            self.share(context, from, to, len)
        } else {
            clone_into(context, from, to, buffer).and_then(|()| match self.trim(context, to, len) {
                OpResult::Refused(reason) => Err(reason),
                OpResult::Done
                | OpResult::Lost(_)
                | OpResult::Saved { .. }
                | OpResult::Restored { .. }
                | OpResult::Exported(_) => Ok(()),
            })
        };
        match done {
            Ok(()) => OpResult::Done,
            Err(reason) => {
                let _ = self.remove(context, to);
                OpResult::Refused(reason)
            }
        }
    }

    fn share(self, context: &mut Context, from: SeqId, to: SeqId, len: u32) -> Result<(), String> {
        let end = if self.memory.is_recurrent() { -1 } else { len as i32 };
        let (from, raw) = (from.0 as i32, to.0 as i32);
        // SAFETY: the context is alive; both ids are below the limit and in one buffer.
        guarded(|err, cap| unsafe { ffi::lb_seq_cp(context.as_ptr(), from, raw, 0, end, err, cap) })?;
        if self.narrow { unshare(context, to) } else { Ok(()) }
    }

    fn may_copy(self, context: &Context, from: SeqId, to: SeqId, len: u32) -> Result<(), String> {
        if !self.copies {
            return Err("whether sequences of this memory can be copied is not known".into());
        }
        if from.0 >= self.n_seq_ids || to.0 >= self.n_seq_ids || from == to || len == 0 {
            return Err(format!("{len} positions of sequence {from} cannot be copied to sequence {to}"));
        }
        if self.held(context, to).is_some() {
            return Err(format!("sequence {to} is not empty"));
        }
        match self.held(context, from) {
            Some((first, last)) if last + 1 >= len => self.may_cut(first, last, len),
            Some(_) | None => Err(format!("sequence {from} does not hold {len} positions")),
        }
    }

    /// Whether a sequence that holds `first..=last` can be continued after its first `len` positions.
    fn may_cut(self, first: u32, last: u32, len: u32) -> Result<(), String> {
        if self.memory.can_cut(first, last + 1, len) {
            return Ok(());
        }
        Err(match self.memory {
            MemoryKind::Full | MemoryKind::SlidingWindow(_) => {
                format!("the window before position {len} is gone: {first} is the first")
            }
            MemoryKind::Recurrent | MemoryKind::Hybrid => {
                format!("a recurrent state cannot go back from {} positions to {len}", last + 1)
            }
        })
    }

    /// Forget positions `len..` of a sequence.
    pub(super) fn trim(self, context: &mut Context, seq: SeqId, len: u32) -> OpResult {
        let Some((first, last)) = self.held(context, seq) else { return OpResult::Done };
        if last < len {
            return OpResult::Done;
        }
        if len == 0 {
            return self.remove(context, seq);
        }
        let done = self.may_cut(first, last, len).and_then(|()| remove(context, seq, len as i32));
        done.map_or_else(OpResult::Refused, |()| OpResult::Done)
    }

    /// Forget a sequence.
    pub(super) fn remove(self, context: &mut Context, seq: SeqId) -> OpResult {
        if seq.0 >= self.n_seq_ids {
            return OpResult::Refused(format!("there is no sequence {seq}"));
        }
        remove(context, seq, -1).map_or_else(OpResult::Refused, |()| OpResult::Done)
    }
}

/// Forget positions from `first` on, or all where it is negative.
pub(super) fn remove(context: &mut Context, seq: SeqId, first: i32) -> Result<(), String> {
    cut(context, seq, first, -1)
}

/// Forget positions `first..end`.
pub(super) fn remove_range(context: &mut Context, seq: SeqId, first: u32, end: u32) -> Result<(), String> {
    cut(context, seq, first as i32, end as i32)
}

fn cut(context: &mut Context, seq: SeqId, first: i32, end: i32) -> Result<(), String> {
    let mut done = false;
    // SAFETY: the context is alive and has a memory; callers check the id.
    guarded(|err, cap| unsafe { ffi::lb_seq_rm(context.as_ptr(), seq.0 as i32, first, end, &raw mut done, err, cap) })?;
    if done { Ok(()) } else { Err(format!("the memory of this model cannot cut sequence {seq} at {first}")) }
}

/// Give a forked sequence sliding-window cells of its own: shared ones are never freed.
fn unshare(context: &mut Context, seq: SeqId) -> Result<(), String> {
    // SAFETY: the context is alive and has a memory; the id was checked.
    let (code, _) = guarded(|err, cap| unsafe { ffi::lb_seq_unshare(context.as_ptr(), seq.0 as i32, err, cap) })?;
    if code == 0 { Ok(()) } else { Err("no cells are free for a sliding window of its own".into()) }
}
