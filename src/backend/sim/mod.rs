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
mod ops;
mod sampler;
mod tokenizer;

pub use config::{Cores, Fault, FaultRates, Latency, SimConfig, load_slowly};
pub use disk::SimDisk;
pub use tokenizer::SimTokenizer;

use super::{Backend, Pick};
use crate::core::mix;
use crate::core::{
    BlobId, DecodeOutcome, Drawn, EmbedOutcome, EmbedPart, Limits, MemoryKind, Op, OpResult, PassStatus, RequestId,
    Row, RowOutcome, SeqId, SeqPositions, Token,
};
use crate::error::Error;
use cells::{Cells, Saved};
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
    /// Threads that compute, where there are cores.
    n_threads: u32,
    abort: Arc<AtomicBool>,
}

impl SimBackend {
    /// An empty backend.
    pub fn new(config: SimConfig) -> Self {
        let limits = config.limits();
        Self {
            cells: Cells::new(&limits),
            random: config.seed,
            n_threads: limits.n_threads,
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

    /// Let so many others want a core.
    ///
    /// # Panics
    /// Without cores.
    pub fn set_busy(&mut self, n: u32) {
        let Some(cores) = &mut self.config.cores else { panic!("there are no cores to want") };
        cores.n_busy = n;
    }

    /// Threads that compute, where there are cores.
    pub fn n_threads(&self) -> u32 {
        self.n_threads
    }

    /// Begin anew, with nothing but what is on disk.
    pub fn restart(&mut self) {
        let disk = std::mem::take(&mut self.disk);
        *self = Self { disk, ..Self::new(self.config.clone()) };
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
            idle: None,
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
        let cores = self.config.cores;
        let eval = cores.map_or(eval, |cores| eval.mul_f64(cores.slow_down(rows.len(), self.n_threads)));
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
        let idle = cores.map(|cores| cores.n_idle(self.n_threads) as f32);
        let (status, sample) = (PassStatus::Done, Duration::ZERO);
        DecodeOutcome { status, rows: drawn, scored, positions, span, eval, sample, idle }
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
