//! Texts to vectors, in a context of their own over the same model: made when the first text comes, and made anew, larger,
//! when a text comes that it does not hold.

use super::batch::{Batch, Bounds, flaw};
use super::context::{Context, Layout};
use super::decode::now;
use super::ffi;
use super::logs;
use super::model::Model;
use crate::core::{EmbedLimits, EmbedOutcome, EmbedPart, EmbedStatus, Pool, RequestId, Row, SeqId};
use crate::error::{Error, TextBound};
use crate::options::{AttentionType, Pooling, StartOptions};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Texts of one pass. A recurrent memory computes them one by one anyway, and keeps a state for each.
const N_TEXTS: u32 = 32;

/// What embeds.
pub(super) struct Embedder {
    pub(super) model: Arc<Model>,
    options: StartOptions,
    limits: EmbedLimits,
    /// Shared with the context that generates.
    abort: Arc<AtomicBool>,
    made: Option<Made>,
    reading: Option<Reading>,
    /// Threads that passes have, where that was told.
    n_threads: Option<u32>,
}

/// A context, and what it holds.
struct Made {
    context: Context,
    batch: Batch,
    bounds: Bounds,
    n_cells: u32,
}

/// A text that takes more passes than one.
struct Reading {
    request: RequestId,
    index: u32,
    n_done: u32,
    pool: Pool,
}

/// What a model embeds; `has_memory` says whether its contexts keep what they have read. None where it gives no vectors.
pub(super) fn limits(model: &Model, options: &StartOptions, n_ctx: u32, has_memory: bool) -> Option<EmbedLimits> {
    let is_causal = match options.attention_type {
        None => model.is_causal(),
        Some(AttentionType::Causal) => true,
        Some(AttentionType::NonCausal) => false,
    };
    let in_parts = is_causal && has_memory;
    let n_batch = options.n_batch.unwrap_or_else(|| n_ctx.min(2048)).min(options.n_ubatch);
    // SAFETY: the model is alive.
    let n_positions = unsafe { ffi::lb_model_n_positions(model.as_ptr()) }.max(0) as u32;
    let is_stretched =
        options.rope_scaling_type.is_some() || options.rope_freq_base > 0.0 || options.rope_freq_scale > 0.0;
    let n_trained = if is_stretched || model.n_ctx_train() == 0 { u32::MAX } else { model.n_ctx_train() };
    let bounds = [
        (n_positions.min(n_trained), TextBound::Model),
        (n_ctx, TextBound::Context),
        (if in_parts { u32::MAX } else { n_batch }, TextBound::Pass),
    ];
    let (n_text, bound) = bounds.into_iter().min_by_key(|(n, _)| *n)?;
    let n_texts = if has_memory && model.memory().is_recurrent() { 1 } else { N_TEXTS.min(n_batch) };
    let n_embd = model.n_embd_out();
    let limits = EmbedLimits { n_text, bound, n_batch, n_texts, n_embd, in_parts, pooling: pooling(model) };
    (n_embd > 0 && n_text > 0).then_some(limits)
}

/// The model's own pooling. One that ranks (4) gives a score, and no embedding.
fn pooling(model: &Model) -> Pooling {
    match model.pooling().as_deref() {
        Some("2") => Pooling::Cls,
        Some("3") => Pooling::Last,
        Some("4") => Pooling::Auto,
        Some(_) | None => Pooling::Mean,
    }
}

impl Embedder {
    /// Nothing is made before the first text comes.
    pub(super) fn new(model: Arc<Model>, options: &StartOptions, limits: EmbedLimits, abort: Arc<AtomicBool>) -> Self {
        Self { model, options: options.clone(), limits, abort, made: None, reading: None, n_threads: None }
    }

    /// Let passes have so many threads.
    pub(super) fn set_threads(&mut self, n: u32) {
        self.n_threads = Some(n);
        if let Some(made) = &mut self.made {
            made.context.set_threads(n);
        }
    }

    /// One forward pass.
    pub(super) fn embed(&mut self, parts: &[EmbedPart]) -> EmbedOutcome {
        let started = now();
        let status = match self.ready(parts) {
            Ok(rows) => self.compute(parts, &rows),
            Err(status) => status,
        };
        if !matches!(status, EmbedStatus::Done(_)) {
            self.reading = None;
        }
        EmbedOutcome { status, eval: now().saturating_sub(started) }
    }

    /// The rows of a pass, for which there is a context with room.
    fn ready(&mut self, parts: &[EmbedPart]) -> Result<Vec<Row>, EmbedStatus> {
        let failed = |reason: &str| Err(EmbedStatus::Failed { code: -1, reason: reason.into() });
        let Some(first) = parts.first() else { return failed("a pass has no texts") };
        if first.from == 0 {
            self.reading = None;
            self.make_room(first.n_text).map_err(EmbedStatus::Refused)?;
        }
        let goes_on = self.reading.as_ref().is_some_and(|reading| {
            (reading.request, reading.index, reading.n_done) == (first.request, first.index, first.from)
        });
        if first.from > 0 && !goes_on {
            return failed("the text was not begun here");
        }
        let Some(made) = &mut self.made else { return failed("there is no context") };
        if first.from == 0 {
            made.context.clear();
        }
        let rows: Vec<Row> = (0..).zip(parts).flat_map(|(seq, part)| rows(SeqId(seq), part)).collect();
        flaw(&rows, &made.bounds).map_or(Ok(rows), |reason| failed(&reason))
    }

    fn compute(&mut self, parts: &[EmbedPart], rows: &[Row]) -> EmbedStatus {
        let failed = |code: i32, reason: String| EmbedStatus::Failed { code, reason };
        let Self { made: Some(made), reading, limits, .. } = self else { return failed(-1, "no context".into()) };
        logs::forget_errors();
        let vectors = match made.context.embed(&mut made.batch, rows) {
            Ok((0, vectors)) if !vectors.is_empty() => vectors,
            Ok((0, _)) => return failed(0, "the model gave no vectors".into()),
            Ok((2, _)) => return failed(2, "the pass was aborted".into()),
            Ok((code, _)) => return failed(code, logs::reason("llama.cpp gave no reason")),
            Err(thrown) => return failed(ffi::THROWN, thrown),
        };
        let (mut rest, mut done) = (vectors, Vec::new());
        for part in parts {
            let (own, others) = rest.split_at(part.tokens.len() * limits.n_embd as usize);
            rest = others;
            let begun = reading.take().map(|reading| reading.pool);
            let mut pool = begun.unwrap_or_else(|| Pool::new(part.pooling, limits.n_embd));
            pool.add(own);
            if part.is_last() {
                done.push(pool.finish());
            } else {
                *reading = Some(Reading { request: part.request, index: part.index, n_done: part.end(), pool });
            }
        }
        EmbedStatus::Done(done)
    }

    /// Make a context that holds a pass, and a text of this length.
    fn make_room(&mut self, n_text: u32) -> Result<(), Error> {
        if self.made.as_ref().is_some_and(|made| made.n_cells >= n_text) {
            return Ok(());
        }
        // Before the new one is made: the memory may not hold both.
        self.made = None;
        let EmbedLimits { n_batch, n_texts, n_text: n_most, .. } = self.limits;
        // LongRoPE turns K by other factors in a longer context: a text must not depend on those before it.
        let is_fixed = self.model.n_ctx_orig() < n_most;
        let n_cells = if is_fixed { n_most } else { n_text.next_power_of_two().min(n_most) }.max(n_batch);
        let layout = Layout {
            n_ctx: n_cells.next_multiple_of(256),
            n_batch,
            n_ubatch: n_batch,
            n_seq_max: n_texts,
            n_outputs: n_batch,
            unified: true,
            embeds: true,
        };
        let (model, abort) = (Arc::clone(&self.model), Arc::clone(&self.abort));
        let context = Context::with_flag(model, &self.options, &layout, abort);
        let mut context = context.map_err(|error| Error::Inference(format!("no context for embeddings: {error}")))?;
        if let Some(n) = self.n_threads {
            context.set_threads(n);
        }
        let bounds = context.bounds(&layout);
        self.made = Some(Made { context, batch: Batch::new(n_batch as usize), bounds, n_cells });
        Ok(())
    }
}

/// The rows of a part: each of them is looked at.
fn rows(seq: SeqId, part: &EmbedPart) -> impl Iterator<Item = Row> {
    let request = part.request;
    let at = (part.from..).zip(part.tokens.iter());
    at.map(move |(pos, token)| Row { request, seq, pos, token: *token, draws: true, scores: false })
}
