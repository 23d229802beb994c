//! The [`Backend`] over a llama.cpp context.

use super::batch::{Batch, Bounds, flaw};
use super::cells;
use super::context::{Context, Layout};
use super::draws::Draws;
use super::embed::{self, Embedder};
use super::logs;
use super::machine::{IdleCores, n_physical_cores};
use super::model::Model;
use super::ops::{Rules, remove};
use super::ram::{self, Blobs};
use super::state::Measured;
use crate::backend::{Backend, Pick, Tokenizer};
use crate::core::{
    CellCost, DecodeOutcome, Drawn, EmbedOutcome, EmbedPart, EmbedStatus, Limits, MemoryKind, Op, OpResult, PassStatus,
    RequestId, Row, SeqId, SeqPositions, StateSize,
};
use crate::error::Error;
use crate::options::StartOptions;
use llama_cpp_sys_2 as sys;
use serde_bytes::ByteBuf;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Sequences beside the running ones in a unified buffer: room for work in passing. Each costs buffers and time.
const N_TEMPORARY: u32 = 2;
/// Cached sequences of a memory that can only hold them among those that compute, where the options do not say.
const N_SPARE: u32 = 2;

/// What the logits may take of rows that are scored. Unit: bytes.
const SCORE_BYTES: u32 = 16 << 20;

/// One model, one context, and the samplers of the requests. Lives on the engine thread.
pub struct LlamaBackend {
    context: Context,
    batch: Batch,
    bounds: Bounds,
    limits: Limits,
    rules: Rules,
    draws: Draws,
    embedder: Option<Embedder>,
    blobs: Blobs,
    /// For states that pass from one sequence to another.
    buffer: Vec<u8>,
    idle: IdleCores,
}

impl LlamaBackend {
    /// Make a context, compute one token in it, and find out what it can hold.
    ///
    /// # Errors
    /// [`Error::Option`] where options contradict each other or the model; [`Error::ModelLoad`] where the model does not
    /// generate text, the memory does not suffice, or llama.cpp fails, with its reason.
    pub fn new(model: Arc<Model>, options: &StartOptions) -> Result<Self, Error> {
        let no_text = || Error::ModelLoad("this model does not generate text: it only computes embeddings".into());
        Self::make(model, options)?.ok_or_else(no_text)
    }

    /// The same; none where the model does not generate text.
    pub(super) fn make(model: Arc<Model>, options: &StartOptions) -> Result<Option<Self>, Error> {
        if model.has_encoder() {
            return Err(Error::ModelLoad("encoder-decoder models are not supported".into()));
        }
        let n_ctx = if options.n_ctx == 0 { model.n_ctx_train() } else { options.n_ctx };
        if n_ctx == 0 {
            return Err(Error::ModelLoad("the model does not name its context; n_ctx must".into()));
        }
        let (layout, wanted) = layout(&model, options, n_ctx);
        let mut context = Context::new(model, options, &layout)?;
        let Some(memory) = context.memory() else { return Ok(None) };
        let asked = options.n_batch.unwrap_or(2048).min(options.n_ubatch);
        let bounds = Bounds { n_batch: context.bounds(&layout).n_batch.min(asked), ..context.bounds(&layout) };
        let narrow = matches!(memory, MemoryKind::SlidingWindow(_)) && !options.swa_full;
        let copies = context.copies();
        let mut rules = Rules { memory, unified: layout.unified, copies, narrow, n_seq_ids: layout.n_seq_max };
        let mut batch = Batch::new(bounds.n_batch as usize);
        let state = warm_up(&mut context, &mut batch, rules)?;
        if memory == MemoryKind::Full && wanted > layout.n_seq_max {
            rules.n_seq_ids = wanted;
            if !holds_beyond(&mut context, rules, layout.n_seq_max) {
                rules.n_seq_ids = layout.n_seq_max;
            }
        }
        let has_cache_ids = rules.n_seq_ids > layout.n_seq_max;
        // Running requests never take the last of the ids that compute, where cached ones have ids of their own.
        let passage = has_cache_ids.then(|| SeqId(layout.n_seq_max - 1));
        let (cells, cells_seq, _) = context.sizes();
        let blobs = Blobs::new(&mut context, passage, SeqId(0), cells.min(n_ctx));
        let cell_cost = passage.map_or(Ok(CellCost::default()), |passage| {
            let heap = SeqId(layout.n_seq_max);
            cells::cell_cost(&mut context, &mut batch, SeqId(0), passage, heap, cells)
        });
        context.clear();
        let share = if layout.unified { n_ctx } else { n_ctx.div_ceil(layout.n_seq_max) };
        let limits = Limits {
            // llama.cpp rounds up; the engine keeps to what was asked for.
            n_ctx: cells.min(n_ctx),
            n_ctx_seq: cells_seq.min(share).min(bounds.n_positions),
            n_batch: bounds.n_batch,
            n_outputs: bounds.n_outputs,
            n_seq_max: layout.n_seq_max,
            n_seq_ids: rules.n_seq_ids,
            n_vocab: bounds.n_vocab,
            memory,
            is_pool: layout.unified && memory != MemoryKind::Recurrent,
            block: if has_cache_ids { ram::BLOCK } else { 0 },
            state,
            cell_cost: cell_cost.unwrap_or_default(),
            ram_bytes: ram::default_bytes(),
            generates: true,
            embed: embed::limits(&context.model, options, cells_seq.min(share), true),
            n_threads: if has_free_threads(options) { most_threads(options) } else { 0 },
        };
        let draws = Draws::new(Arc::clone(&context.model), most_threads(options) as usize);
        let (model, abort) = (Arc::clone(&context.model), context.abort_flag());
        let embedder = limits.embed.map(|limits| Embedder::new(model, options, limits, abort));
        let (buffer, idle) = (Vec::new(), IdleCores::default());
        Ok(Some(Self { context, batch, bounds, limits, rules, draws, embedder, blobs, buffer, idle }))
    }

    /// Cells of the KV cache in use, of a sequence's buffer; none where the memory does not count cells.
    pub fn used_cells(&self, seq: SeqId) -> Option<u32> {
        (seq.0 < self.rules.n_seq_ids).then(|| self.context.used_cells(seq)).flatten()
    }

    /// Cells of the sliding window in use, where there is one.
    pub fn window_cells(&self, seq: SeqId) -> Option<u32> {
        (seq.0 < self.rules.n_seq_ids).then(|| self.context.window_cells(seq)).flatten()
    }

    /// The positions that a sequence holds: the first and the last.
    pub fn held(&self, seq: SeqId) -> Option<(u32, u32)> {
        self.rules.held(&self.context, seq)
    }

    fn op(&mut self, op: &Op) -> OpResult {
        let (context, rules) = (&mut self.context, self.rules);
        match op {
            Op::Open { request, sampling, prompt, stop_tokens } => {
                let opened = self.draws.open(*request, sampling, prompt, stop_tokens);
                opened.map_or_else(|error| OpResult::Refused(error.to_string()), |()| OpResult::Done)
            }
            Op::Close(request) => {
                self.draws.close(*request);
                OpResult::Done
            }
            Op::Copy { from, to, len } => rules.copy(context, *from, *to, *len, &mut self.buffer),
            Op::Trim { seq, len } => rules.trim(context, *seq, *len),
            Op::Remove(seq) => rules.remove(context, *seq),
            Op::Save { seq, from, len, blob } => self.blobs.save(context, rules, *seq, (*from, *len), *blob),
            Op::Restore { seq, from, blobs } => self.blobs.restore(context, rules, *seq, *from, blobs),
            Op::Compact { n_cells } => match self.blobs.passage() {
                Some(passage) => cells::compact(context, passage, *n_cells),
                None => OpResult::Refused("the cells of this memory stay where they are".into()),
            },
            Op::Export { blobs, .. } => {
                OpResult::Exported(blobs.iter().map(|blob| self.blobs.state(*blob).map(ByteBuf::from)).collect())
            }
            Op::Import { blob, from, len, state } => self.blobs.take_in(*blob, (*from, *len), state),
            Op::Store { .. } | Op::Load { .. } | Op::Discard(_) | Op::Touch(_) => {
                OpResult::Refused("the engine keeps what is on disk".into())
            }
            Op::Forget(blob) => {
                self.blobs.forget(*blob);
                OpResult::Done
            }
            Op::Threads(n) if (1..=self.limits.n_threads).contains(n) && context.set_threads(*n) => {
                if let Some(embedder) = &mut self.embedder {
                    embedder.set_threads(*n);
                }
                OpResult::Done
            }
            Op::Threads(n) => OpResult::Refused(format!("a pass cannot have {n} threads")),
        }
    }

    /// What a failed pass left of its sequences, after what is in doubt was taken away.
    fn salvage(&mut self, rows: &[Row], code: i32) -> Vec<SeqPositions> {
        let mut firsts: BTreeMap<SeqId, u32> = BTreeMap::new();
        for row in rows {
            firsts.entry(row.seq).and_modify(|first| *first = row.pos.min(*first)).or_insert(row.pos);
        }
        for (seq, first) in firsts.iter().filter(|(seq, _)| seq.0 < self.bounds.n_seq_max) {
            let recurrent = self.rules.memory.is_recurrent();
            // llama.cpp takes the rows of a failed pass away itself, but not after an exception; and a recurrent state
            // is then neither the old nor the new one. A batch that it refused (-1) has changed nothing.
            if code != -1 && (recurrent || code == super::ffi::THROWN) {
                let first = if recurrent || *first == 0 { -1 } else { *first as i32 };
                let _ = remove(&mut self.context, *seq, first);
            }
        }
        firsts.keys().map(|seq| SeqPositions { seq: *seq, held: self.held(*seq) }).collect()
    }

    /// The positions of every sequence, of a memory that drops some by itself.
    fn drifted(&self) -> Vec<SeqPositions> {
        match self.rules.memory {
            MemoryKind::SlidingWindow(_) => (0..self.limits.n_seq_max)
                .map(|seq| SeqPositions { seq: SeqId(seq), held: self.held(SeqId(seq)) })
                .filter(|positions| positions.held.is_some())
                .collect(),
            MemoryKind::Full | MemoryKind::Recurrent | MemoryKind::Hybrid => Vec::new(),
        }
    }
}

impl Backend for LlamaBackend {
    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn prepare(&mut self, ops: &[Op]) -> Vec<OpResult> {
        ops.iter().map(|op| self.op(op)).collect()
    }

    fn decode(&mut self, rows: &[Row]) -> DecodeOutcome {
        let started = now();
        let failed = |code: i32, reason: String| (PassStatus::Failed { code, reason }, Vec::new(), Vec::new());
        let mut sample = Duration::ZERO;
        let mut eval = Duration::ZERO;
        logs::forget_errors();
        let (status, rows_out, scored) = match flaw(rows, &self.bounds) {
            Some(reason) => failed(-1, reason),
            None => match self.context.decode(&mut self.batch, rows) {
                Ok((0, logits)) => {
                    let computed = now();
                    eval = computed.saturating_sub(started);
                    let (outcomes, scored) = self.draws.draw(rows, logits);
                    sample = now().saturating_sub(computed);
                    (PassStatus::Done, outcomes, scored)
                }
                Ok((1, _)) => (PassStatus::KvFull, Vec::new(), Vec::new()),
                Ok((2, _)) => failed(2, "the pass was aborted".into()),
                Ok((code, _)) => failed(code, logs::reason("llama.cpp gave no reason")),
                Err(thrown) => failed(super::ffi::THROWN, thrown),
            },
        };
        if eval.is_zero() {
            eval = now().saturating_sub(started);
        }
        let mut positions = self.drifted();
        if let PassStatus::Failed { code, .. } = status {
            let left = self.salvage(rows, code);
            positions = self.drifted();
            positions.retain(|p| left.iter().all(|q| q.seq != p.seq));
            positions.extend(left);
        }
        let span = if self.limits.is_pool { self.context.span().unwrap_or(0) } else { 0 };
        let idle = if self.limits.n_threads > 1 { self.idle.of_late(now()) } else { None };
        DecodeOutcome { status, rows: rows_out, scored, positions, span, eval, sample, idle }
    }

    fn embed(&mut self, parts: &[EmbedPart]) -> EmbedOutcome {
        let none = || EmbedStatus::Refused(Error::Unsupported("this model computes no embeddings".into()));
        match &mut self.embedder {
            Some(embedder) => embedder.embed(parts),
            None => EmbedOutcome { status: none(), eval: Duration::ZERO },
        }
    }

    fn offered(&self, request: RequestId) -> Option<(u64, Vec<f32>)> {
        self.draws.offered(request)
    }

    fn settle(&mut self, request: RequestId, pick: Pick) -> Result<Drawn, Error> {
        self.draws.settle(request, pick)
    }

    fn abort_flag(&self) -> Option<Arc<AtomicBool>> {
        (!self.rules.memory.is_recurrent()).then(|| self.context.abort_flag())
    }

    fn loss(&mut self) -> Option<Error> {
        self.context.model.loss()
    }
}

/// A reading of llama.cpp's monotonic clock.
pub(super) fn now() -> Duration {
    // SAFETY: reads a clock that starting llama.cpp has set.
    Duration::from_micros(unsafe { sys::llama_time_us() }.max(0) as u64)
}

/// Threads that a pass has at most.
fn most_threads(options: &StartOptions) -> u32 {
    if options.n_threads == 0 { n_physical_cores() } else { options.n_threads }
}

/// Whether how many threads a pass has is left to the engine.
fn has_free_threads(options: &StartOptions) -> bool {
    options.n_threads == 0 && options.n_threads_batch.unwrap_or(0) == 0
}

/// The sizes of the context, and the number of sequence ids that would be of use.
fn layout(model: &Model, options: &StartOptions, n_ctx: u32) -> (Layout, u32) {
    // SAFETY: returns a number.
    let n_ids = unsafe { sys::llama_max_parallel_sequences() } as u32;
    let unified = options.kv_unified.unwrap_or(true);
    let n_parallel = options.n_parallel.min(n_ids);
    let (n_seq_max, wanted) = match model.memory() {
        // A buffer of its own for a sequence that computes nothing would take cells from those that do.
        _ if !unified => (n_parallel, n_parallel),
        MemoryKind::Full => {
            let n_seq_max = (n_parallel + N_TEMPORARY).min(n_ids);
            (n_seq_max, options.n_cache_seqs.map_or(n_ids, |n| n_seq_max.saturating_add(n).min(n_ids)))
        }
        MemoryKind::SlidingWindow(_) | MemoryKind::Recurrent | MemoryKind::Hybrid => {
            let n = n_parallel.saturating_add(options.n_cache_seqs.unwrap_or(N_SPARE)).min(n_ids);
            (n, n)
        }
    };
    let n_batch = options.n_batch.unwrap_or_else(|| n_ctx.min(2048));
    let layout = Layout {
        n_ctx: n_ctx.next_multiple_of(256),
        // llama.cpp aborts on a batch that could not hold a row of every sequence.
        n_batch: n_batch.max(n_seq_max),
        n_ubatch: n_batch.min(options.n_ubatch).max(n_seq_max),
        n_seq_max,
        // Rows of prompts whose tokens are scored are looked at beside those that draw.
        n_outputs: n_seq_max.max(SCORE_BYTES / (4 * model.n_vocab().max(1))).min(n_batch.max(n_seq_max)),
        unified,
        embeds: false,
    };
    (layout, wanted)
}

/// Compute two tokens: brings the weights into memory, fails here rather than under a request, and shows what a saved
/// state takes. One position is left.
fn warm_up(context: &mut Context, batch: &mut Batch, rules: Rules) -> Result<StateSize, Error> {
    let token = context.model.bos().unwrap_or(0);
    let why = |reason: &str| Error::ModelLoad(format!("the model could not compute a token: {reason}"));
    let mut measured = Measured::new();
    for pos in 0..2 {
        let row = Row { request: RequestId(0), seq: SeqId(0), pos, token, draws: true, scores: false };
        logs::forget_errors();
        match context.decode(batch, &[row]) {
            Ok((0, _)) => measured.measure(context, rules, SeqId(0)),
            Ok((code, _)) => return Err(why(&logs::reason(&format!("llama_decode returned {code}")))),
            Err(thrown) => return Err(why(&thrown)),
        }
    }
    if !rules.memory.is_recurrent() {
        remove(context, SeqId(0), 1).map_err(|reason| why(&reason))?;
    }
    Ok(measured.state_size())
}

/// Whether sequences above `n_seq_max` can be copied to and from. llama.cpp allows it and does not promise it, so the
/// one position of the warm-up is sent there and back.
fn holds_beyond(context: &mut Context, rules: Rules, n_seq_max: u32) -> bool {
    let (here, back, mut buffer) = (SeqId(0), SeqId(1), Vec::new());
    [SeqId(n_seq_max), SeqId(rules.n_seq_ids - 1)].into_iter().all(|there| {
        let mut copy =
            |context: &mut Context, from, to| rules.copy(context, from, to, 1, &mut buffer) == OpResult::Done;
        let arrived = copy(context, here, there)
            && rules.remove(context, here) == OpResult::Done
            && rules.held(context, there) == Some((0, 0));
        let returned = copy(context, there, back)
            && rules.remove(context, there) == OpResult::Done
            && rules.held(context, back) == Some((0, 0))
            && rules.held(context, there).is_none();
        let home = copy(context, back, here) && rules.remove(context, back) == OpResult::Done;
        arrived && returned && home
    })
}
