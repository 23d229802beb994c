//! A backend without a model: seeded tokens, a latency model, injected faults, and llama.cpp's own rules asserted, so
//! that every test over it is an oracle too.
//!
//! The token drawn from a row is a function of the tokens that the cells of its sequence really hold, of the request's
//! seed and of how many tokens its sampler drew. A wrong copy, trim or position, or a sampler advanced twice, therefore
//! changes the text.

mod cells;
mod config;
mod disk;
mod embed;
mod faults;
mod sampler;
mod tokenizer;

pub use config::{Fault, FaultRates, Latency, SimConfig, load_slowly};
pub use disk::SimDisk;
pub use tokenizer::SimTokenizer;

use super::{Backend, Pick};
use crate::core::mix;
use crate::core::{
    BlobId, DecodeOutcome, Drawn, EmbedOutcome, EmbedPart, Limits, MemoryKind, Op, OpResult, PassStatus, RequestId,
    Row, RowOutcome, SamplingParams, SeqId, SeqPositions, Token,
};
use crate::error::Error;
use cells::{Cells, Saved};
use disk::Stored;
use embed::Reading;
use sampler::Sampler;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The simulated backend.
#[derive(Debug)]
pub struct SimBackend {
    config: SimConfig,
    limits: Limits,
    cells: Cells,
    samplers: BTreeMap<RequestId, Sampler>,
    /// The RAM tier: what the cells of each block held.
    blobs: BTreeMap<BlobId, Saved>,
    /// The disk tier, likewise.
    disk: SimDisk,
    /// The text that takes more passes than one.
    reading: Option<Reading>,
    injected: VecDeque<Fault>,
    random: u64,
    /// Passes so far, for the noise of their lengths: no other chance depends on it.
    n_passes: u64,
    abort: Arc<AtomicBool>,
}

impl SimBackend {
    /// An empty backend.
    pub fn new(config: SimConfig) -> Self {
        let limits = config.limits();
        Self {
            cells: Cells::new(&limits),
            random: config.seed,
            config,
            limits,
            samplers: BTreeMap::new(),
            blobs: BTreeMap::new(),
            disk: SimDisk::default(),
            reading: None,
            injected: VecDeque::new(),
            n_passes: 0,
            abort: Arc::default(),
        }
    }

    /// Let the next op or pass that the fault can hit fail with it.
    pub fn inject(&mut self, fault: Fault) {
        self.injected.push_back(fault);
    }

    /// Cells in use, in the unit of the memory: the truth that the core's account is held against.
    pub fn n_cells_used(&self) -> u32 {
        match self.limits.memory {
            MemoryKind::Recurrent => self.cells.n_sequences(),
            MemoryKind::Full | MemoryKind::SlidingWindow(_) | MemoryKind::Hybrid => self.cells.n_used(),
        }
    }

    /// Cells up to the highest one in use, where that matters.
    pub fn span(&self) -> u32 {
        if self.limits.is_pool { self.cells.span() } else { 0 }
    }

    /// Positions that a sequence holds.
    pub fn seq_len(&self, seq: SeqId) -> u32 {
        self.cells.len(seq)
    }

    /// Requests whose sampler is open.
    pub fn n_samplers(&self) -> usize {
        self.samplers.len()
    }

    /// Blocks in the RAM tier.
    pub fn n_blobs(&self) -> usize {
        self.blobs.len()
    }

    /// The disk tier.
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// Begin anew, with nothing but what is on disk.
    pub fn restart(&mut self) {
        let disk = std::mem::take(&mut self.disk);
        *self = Self { disk, ..Self::new(self.config.clone()) };
    }

    fn apply_op(&mut self, op: &Op) -> OpResult {
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
                OpResult::Exported(blobs.iter().map(|blob| self.blobs.get(blob).map(Saved::to_bytes)).collect())
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

    fn assert_known(&self, seq: SeqId) {
        assert!(seq.0 < self.limits.n_seq_ids, "sequence {seq} is out of range: llama.cpp would abort");
    }

    /// What llama.cpp asserts or refuses, and what the contract asks.
    fn assert_rows(&self, rows: &[Row]) {
        assert!(!rows.is_empty() && rows.len() as u32 <= self.limits.n_batch, "1 to n_batch rows in a pass");
        assert!(rows.is_sorted_by_key(|row| (row.seq, row.pos)), "rows are sorted by sequence and position");
        let n_outputs = rows.iter().filter(|row| row.is_looked_at()).count() as u32;
        assert!(n_outputs <= self.limits.n_outputs, "{n_outputs} rows whose logits are looked at");
        for pair in rows.windows(2).filter(|pair| pair[0].seq == pair[1].seq && pair[0].draws) {
            assert!(pair[1].draws, "request {} draws in the middle of what it computes", pair[0].request);
            assert_eq!(self.limits.memory, MemoryKind::Full, "a draft in a memory that cannot go back");
        }
        let mut next: BTreeMap<SeqId, u32> = BTreeMap::new();
        for row in rows {
            assert!(row.seq.0 < self.limits.n_seq_max, "sequence {} cannot be computed", row.seq);
            assert!(u32::try_from(row.token).is_ok_and(|t| t < self.limits.n_vocab), "token {} is unknown", row.token);
            let pos = next.entry(row.seq).or_insert_with(|| self.cells.len(row.seq));
            assert_eq!(row.pos, *pos, "positions of sequence {} follow each other", row.seq);
            let is_there = self.cells.sees_window(row.seq, row.pos);
            assert!(is_there, "sequence {} lost what position {} looks back on", row.seq, row.pos);
            *pos += 1;
            assert!(!row.draws || self.samplers.contains_key(&row.request), "request {} cannot draw", row.request);
        }
    }

    fn positions(&self, seqs: impl Iterator<Item = SeqId>) -> Vec<SeqPositions> {
        seqs.map(|seq| SeqPositions { seq, held: self.held(seq) }).collect()
    }

    fn held(&self, seq: SeqId) -> Option<(u32, u32)> {
        let len = self.cells.len(seq);
        (len > 0).then(|| (self.cells.first(seq), len - 1))
    }

    fn failed(&self, rows: &[Row], status: PassStatus) -> DecodeOutcome {
        let mut seqs: Vec<SeqId> = rows.iter().map(|row| row.seq).collect();
        seqs.dedup();
        DecodeOutcome {
            status,
            rows: Vec::new(),
            scored: Vec::new(),
            positions: self.positions(seqs.into_iter()),
            span: self.span(),
            eval: self.config.latency.pass(rows.len()),
            sample: Duration::ZERO,
        }
    }
}

impl Backend for SimBackend {
    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn prepare(&mut self, ops: &[Op]) -> Vec<OpResult> {
        ops.iter().map(|op| self.apply_op(op)).collect()
    }

    fn decode(&mut self, rows: &[Row]) -> DecodeOutcome {
        self.assert_rows(rows);
        assert!(!self.strikes(|fault| *fault == Fault::Panic, |_| 0), "injected: the backend panics");
        self.n_passes += 1;
        let eval = self.config.latency.decode(rows, self.config.seed ^ self.n_passes);
        if let Some((status, n_kept)) = self.pass_fault(rows.len()) {
            self.cells.append(&rows[..n_kept]);
            return self.failed(rows, status);
        }
        if !self.cells.have_room_for(rows) {
            return self.failed(rows, PassStatus::KvFull);
        }
        if self.config.real_time && !config::wait(eval, &self.abort) {
            return self.failed(rows, PassStatus::Failed { code: 2, reason: "aborted".into() });
        }
        self.cells.append(rows);
        let drawing = rows.chunk_by(Row::is_drawn_with).filter(|chunk| chunk[0].draws);
        let drawn: Vec<RowOutcome> = drawing.map(|rows| self.draw_all(rows)).collect();
        let scored = rows.iter().filter(|row| row.scores).filter_map(|row| self.score(row)).collect();
        let positions = match self.limits.memory {
            MemoryKind::SlidingWindow(_) => self.positions(self.cells.sequences().into_iter()),
            MemoryKind::Full | MemoryKind::Recurrent | MemoryKind::Hybrid => Vec::new(),
        };
        let span = self.span();
        DecodeOutcome { status: PassStatus::Done, rows: drawn, scored, positions, span, eval, sample: Duration::ZERO }
    }

    fn embed(&mut self, parts: &[EmbedPart]) -> EmbedOutcome {
        self.embed_parts(parts)
    }

    fn offered(&self, request: RequestId) -> Option<(u64, Vec<f32>)> {
        self.samplers.get(&request)?.offered()
    }

    fn settle(&mut self, request: RequestId, pick: Pick) -> Result<Drawn, Error> {
        let sampler = self.samplers.get_mut(&request);
        let sampler = sampler.ok_or_else(|| Error::Inference("no sampler".into()))?;
        let token = sampler.settle(pick)?;
        Ok(sampler::drawn_by(sampler, token))
    }

    fn abort_flag(&self) -> Option<Arc<AtomicBool>> {
        (!self.limits.memory.is_recurrent()).then(|| Arc::clone(&self.abort))
    }
}

/// What a sequence's text depends on, extended by one token.
pub(super) fn extend_hash(hash: u64, token: Token) -> u64 {
    mix(hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(token.unsigned_abs()).wrapping_add(1))
}
