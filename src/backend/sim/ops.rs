//! What is done to sequences, samplers and saved states, as llama.cpp's rules have it.

use super::cells::Saved;
use super::disk::Stored;
use super::sampler::Sampler;
use super::{Fault, SimBackend};
use crate::core::{BlobId, Op, OpResult, RequestId, SamplingParams, SeqId, Token};
use serde_bytes::ByteBuf;
use std::sync::Arc;

impl SimBackend {
    pub(super) fn apply_op(&mut self, op: &Op) -> OpResult {
        match op {
            Op::Open { request, sampling, prompt, stop_tokens } => self.open(*request, sampling, prompt, stop_tokens),
            Op::Close(request) => {
                assert!(self.samplers.remove(request).is_some(), "request {request} has no sampler to close");
                OpResult::Done
            }
            Op::Copy { from, to, len } => self.copy(*from, *to, *len),
            Op::Trim { seq, len } => self.trim(*seq, *len),
            Op::Remove(seq) => {
                self.assert_known(*seq);
                self.cells.trim(*seq, 0);
                OpResult::Done
            }
            Op::Save { seq, from, len, blob } => self.save(*seq, *from, *len, *blob),
            Op::Restore { seq, from, blobs } => self.restore(*seq, *from, blobs),
            Op::Compact { n_cells } => {
                assert!(self.limits.block > 0, "the cells of this memory stay where they are");
                let moved = self.cells.compact(*n_cells);
                if moved { OpResult::Done } else { OpResult::Refused("there are no holes".into()) }
            }
            Op::Export { blobs, .. } => {
                let bytes = |blob| self.blobs.get(blob).map(Saved::to_bytes).map(ByteBuf::from);
                OpResult::Exported(blobs.iter().map(bytes).collect())
            }
            Op::Import { blob, len, state, .. } => match Saved::from_bytes(state).filter(|saved| saved.len() == *len) {
                Some(saved) => {
                    self.blobs.insert(*blob, saved);
                    OpResult::Saved { n_bytes: state.len() as u64 }
                }
                None => OpResult::Refused("this is no state".into()),
            },
            Op::Forget(blob) => {
                self.blobs.remove(blob);
                OpResult::Done
            }
            Op::Store { blob, entry, parent, scope, from, tokens } => {
                let strikes = self.strikes(|fault| *fault == Fault::RefuseStore, |rates| rates.refuse_store);
                let refused = || OpResult::Refused("injected: store refused".into());
                let Some(saved) = self.blobs.get(blob).filter(|_| !strikes).cloned() else { return refused() };
                let n_bytes = self.limits.state.bytes(self.limits.memory, saved.len());
                let (scope, tokens) = (scope.clone(), Arc::clone(tokens));
                let new = Stored { saved, parent: *parent, scope, from: *from, tokens, n_bytes };
                if self.disk.store(*entry, new) { OpResult::Saved { n_bytes } } else { refused() }
            }
            Op::Load { entry, blob, from, len } => {
                let strikes = self.strikes(|fault| *fault == Fault::RefuseLoad, |rates| rates.refuse_load);
                let Some((saved, n_bytes)) = self.disk.load(*entry, *from, *len).filter(|_| !strikes) else {
                    return OpResult::Lost("injected: load refused".into());
                };
                let twice = self.blobs.insert(*blob, saved);
                assert!(twice.is_none(), "block {blob} is loaded twice");
                OpResult::Saved { n_bytes }
            }
            Op::Touch(_) => OpResult::Done,
            Op::Threads(n) => {
                assert!((1..=self.limits.n_threads).contains(n), "{n} threads");
                self.n_threads = *n;
                OpResult::Done
            }
            Op::Discard(entry) => {
                self.disk.discard(*entry);
                OpResult::Done
            }
        }
    }

    fn save(&mut self, seq: SeqId, from: u32, len: u32, blob: BlobId) -> OpResult {
        self.assert_known(seq);
        let n_held = self.cells.len(seq);
        if self.limits.block > 0 {
            assert!(len > 0 && len <= self.limits.block, "a block has a length at most");
        } else {
            assert_eq!(from, 0, "only whole sequences can be saved");
        }
        let is_whole = self.limits.block > 0 || len == n_held;
        if self.strikes(|fault| *fault == Fault::RefuseSave, |rates| rates.refuse_save)
            || n_held < from + len
            || !is_whole
        {
            return OpResult::Refused("injected: save refused".into());
        }
        let twice = self.blobs.insert(blob, self.cells.save(seq, from, len));
        assert!(twice.is_none(), "block {blob} is saved twice");
        OpResult::Saved { n_bytes: self.limits.state.bytes(self.limits.memory, len) }
    }

    fn restore(&mut self, seq: SeqId, from: u32, blobs: &[BlobId]) -> OpResult {
        self.assert_known(seq);
        let mut n_tokens = 0;
        if self.cells.len(seq) != from {
            return OpResult::Restored { n_blobs: 0, n_tokens, lost: false };
        }
        for (n_blobs, blob) in (0..).zip(blobs) {
            let strikes = self.strikes(|fault| *fault == Fault::RefuseRestore, |rates| rates.refuse_restore);
            let Some(saved) = self.blobs.get(blob).filter(|_| !strikes) else {
                return OpResult::Restored { n_blobs, n_tokens, lost: true };
            };
            if !self.cells.restore(seq, saved) {
                return OpResult::Restored { n_blobs, n_tokens, lost: false };
            }
            n_tokens += saved.len();
        }
        OpResult::Restored { n_blobs: blobs.len() as u32, n_tokens, lost: false }
    }

    fn open(
        &mut self,
        request: RequestId,
        sampling: &SamplingParams,
        prompt: &Arc<[Token]>,
        stop_tokens: &[Token],
    ) -> OpResult {
        if self.strikes(|fault| *fault == Fault::RefuseOpen, |rates| rates.refuse_open) {
            return OpResult::Refused("injected: no sampler".into());
        }
        let sampler = match Sampler::new(&self.config, sampling, prompt, stop_tokens) {
            Ok(sampler) => sampler,
            Err(error) => return OpResult::Refused(error.to_string()),
        };
        assert!(self.samplers.insert(request, sampler).is_none(), "request {request} has two samplers");
        OpResult::Done
    }

    fn copy(&mut self, from: SeqId, to: SeqId, len: u32) -> OpResult {
        self.assert_known(from);
        self.assert_known(to);
        assert_eq!(self.cells.len(to), 0, "a copy into a sequence that is not empty");
        if self.strikes(|fault| *fault == Fault::RefuseCopy, |rates| rates.refuse_copy) {
            return OpResult::Refused("injected: copy refused".into());
        }
        if !self.cells.can_cut(from, len) || !self.cells.can_copy(len) {
            return OpResult::Refused(format!("{len} positions of sequence {from} cannot be copied"));
        }
        self.cells.copy(from, to, len);
        OpResult::Done
    }

    fn trim(&mut self, seq: SeqId, len: u32) -> OpResult {
        self.assert_known(seq);
        if 0 < len && len < self.cells.len(seq) && !self.cells.can_cut(seq, len) {
            return OpResult::Refused(format!("sequence {seq} cannot go back to {len} positions"));
        }
        if self.strikes(|fault| *fault == Fault::RefuseTrim, |rates| rates.refuse_trim) {
            return OpResult::Refused("injected: trim refused".into());
        }
        self.cells.trim(seq, len);
        OpResult::Done
    }

    pub(super) fn assert_known(&self, seq: SeqId) {
        assert!(seq.0 < self.limits.n_seq_ids, "sequence {seq} is out of range: llama.cpp would abort");
    }
}
