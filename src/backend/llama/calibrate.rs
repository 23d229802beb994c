//! Measures which settings compute fastest here, in contexts that are thrown away; [`crate::tune`] decides.
//!
//! What the cells hold does not matter to how long a pass takes, but how many there are, and whose: so a few tokens are
//! computed, and their state is given to all sequences, many times over.

use super::batch::Batch;
use super::context::{Context, Layout, kv_bytes};
use super::decode::now;
use super::machine::{available_memory, n_physical_cores};
use super::model::Model;
use super::ops::remove;
use super::ram::share;
use super::state::{get, set};
use crate::core::{MemoryKind, RequestId, Row, SeqId};
use crate::error::Error;
use crate::options::{FlashAttention, StartOptions};
use crate::tune::{Report, Sample, Setting, Shape, choose};
use std::sync::Arc;
use std::time::Duration;

/// Rows that decode at most, and tokens of one at most and of all together: more shows nothing new, and takes memory.
const MAX_ROWS: u32 = 16;
const CONTEXT: std::ops::RangeInclusive<u32> = 128..=4096;
const MAX_CELLS: u32 = 16_384;
/// Tokens that are computed, to begin with; and rows of a prompt that are timed.
const N_READ: u32 = 64;
const N_PREFILL: u32 = 16;
/// Passes of which the shortest counts.
const N_PASSES: u32 = 2;
/// Room behind the context for what is timed.
const SLACK: u32 = N_PREFILL + 16;
/// Streams of their own that may each hold all of `n_ctx` take this part of the free memory at most.
const SPLIT_SHARE: u64 = 4;

/// What the options leave open of flash attention, and of one buffer for all; what llama.cpp takes by itself first.
fn open(model: &Model, options: &StartOptions) -> (&'static [bool], &'static [bool]) {
    let flash_attn: &[bool] = match options.flash_attn {
        FlashAttention::Auto => &[true, false],
        FlashAttention::On => &[true],
        FlashAttention::Off => &[false],
    };
    // Where sequences cannot be cut, or only within a window, a buffer in common is what the engine can do most with.
    let may_split = model.memory() == MemoryKind::Full && options.n_parallel > 1;
    let kv_unified: &[bool] = match options.kv_unified {
        None if may_split && can_split(model, options) => &[true, false],
        None | Some(true) => &[true],
        Some(false) => &[false],
    };
    (flash_attn, kv_unified)
}

/// Whether each request may have all of `n_ctx` in a stream of its own, within a part of the free memory.
fn can_split(model: &Model, options: &StartOptions) -> bool {
    let n_ctx = n_ctx_of(model, options).next_multiple_of(256);
    let layout = Layout { n_ctx: n_ctx.saturating_mul(options.n_parallel), ..layout(options.n_parallel, n_ctx, false) };
    match (kv_bytes(model, options, &layout), available_memory()) {
        (Ok(bytes), Some(free)) => bytes <= free / SPLIT_SHARE,
        (Ok(_) | Err(_), _) => false,
    }
}

fn n_ctx_of(model: &Model, options: &StartOptions) -> u32 {
    if options.n_ctx == 0 { model.n_ctx_train() } else { options.n_ctx }
}

/// The load that an engine with these options is made for: all its slots taken, the context shared out evenly.
pub fn shape(model: &Model, options: &StartOptions) -> Shape {
    let n_rows = options.n_parallel.clamp(1, MAX_ROWS);
    let share = (n_ctx_of(model, options) / n_rows).min(MAX_CELLS / n_rows);
    Shape { n_rows, n_context: share.clamp(*CONTEXT.start(), *CONTEXT.end()) }
}

/// Sizes of a context that is thrown away.
fn layout(n_seqs: u32, n_context: u32, unified: bool) -> Layout {
    let each = (n_context + SLACK).next_multiple_of(256);
    Layout {
        n_ctx: each.saturating_mul(n_seqs),
        n_batch: N_READ.max(n_seqs),
        n_ubatch: N_READ.max(n_seqs),
        n_seq_max: n_seqs,
        n_outputs: n_seqs,
        unified,
        embeds: false,
    }
}

/// Measure what the options leave open, within about so long a time. None where nothing is open, or nothing could be
/// measured; `is_wanted` is asked between measurements.
pub fn calibrate(
    model: &Arc<Model>,
    options: &StartOptions,
    budget: Duration,
    is_wanted: &dyn Fn() -> bool,
) -> Option<Report> {
    let (flash_attn, kv_unified) = open(model, options);
    if flash_attn.len() * kv_unified.len() < 2 || model.uses_devices() || model.has_encoder() {
        return None;
    }
    let shape = shape(model, options);
    let (began, mut longest) = (now(), Duration::ZERO);
    let mut samples: Vec<Sample> = Vec::new();
    let mut try_out = |setting: Setting, samples: &mut Vec<Sample>| {
        let started = now();
        // What has begun is finished: so nothing begins that cannot be, by what the others took.
        if is_wanted() && started.saturating_sub(began) + longest <= budget {
            samples.extend(measure(model, options, setting, shape).ok());
            longest = longest.max(now().saturating_sub(started));
        }
    };
    for flash_attn in flash_attn {
        try_out(Setting { flash_attn: *flash_attn, kv_unified: kv_unified[0] }, &mut samples);
    }
    // One after the other: which of them is better with flash attention is better without, too.
    if let (Some(best), [_, kv_unified]) = (choose(shape, &samples), kv_unified) {
        let setting = Setting { kv_unified: *kv_unified, ..samples[best].setting };
        try_out(setting, &mut samples);
    }
    // One alone is no choice: it takes two to compare.
    (samples.len() > 1).then(|| Report::new(shape, samples, now().saturating_sub(began)))
}

/// The options with what was chosen in them.
#[must_use]
pub fn settled(options: &StartOptions, model: &Model, chosen: &Sample) -> StartOptions {
    let flash_attn = if chosen.setting.flash_attn { FlashAttention::On } else { FlashAttention::Off };
    let kv_unified = chosen.setting.kv_unified;
    // A stream holds what the options promise to any one request.
    let n_streams = if options.kv_unified.is_none() && !kv_unified { options.n_parallel } else { 1 };
    let n_ctx = n_ctx_of(model, options).saturating_mul(n_streams);
    StartOptions { flash_attn, kv_unified: Some(kv_unified), n_ctx, ..options.clone() }
}

/// Time one setting.
fn measure(model: &Arc<Model>, options: &StartOptions, setting: Setting, shape: Shape) -> Result<Sample, Error> {
    let flash_attn = if setting.flash_attn { FlashAttention::On } else { FlashAttention::Off };
    let options = StartOptions { flash_attn, ..options.clone() };
    let failed = |reason: String| Error::ModelLoad(format!("a setting could not be measured: {reason}"));
    let source = match model.memory() {
        MemoryKind::Full => Some(long_state(model, &options, shape, setting.kv_unified).map_err(failed)?),
        MemoryKind::SlidingWindow(_) | MemoryKind::Recurrent | MemoryKind::Hybrid => None,
    };
    let layout = layout(shape.n_rows, shape.n_context, setting.kv_unified);
    let mut context = Context::new(Arc::clone(model), &options, &layout)?;
    let mut timed = Timed { batch: Batch::new(layout.n_batch as usize), next: N_READ, context: &mut context };
    timed.fill(source.as_deref(), shape).map_err(failed)?;
    let decode = timed.decode(shape.n_rows).map_err(failed)?;
    let prefill_row = timed.prefill().map_err(failed)?;
    let n_threads = if options.n_threads == 0 { n_physical_cores() } else { options.n_threads };
    Ok(Sample { setting, n_threads, decode, prefill_row })
}

/// The state of a sequence with so many cells, of positions that come up again and again, as a context of this kind takes
/// it.
fn long_state(model: &Arc<Model>, options: &StartOptions, shape: Shape, unified: bool) -> Result<Vec<u8>, String> {
    let small = Layout { n_seq_max: 2, n_outputs: 2, ..layout(1, shape.n_context, true) };
    let mut context = Context::new(Arc::clone(model), options, &small).map_err(|error| error.to_string())?;
    let mut timed = Timed { batch: Batch::new(small.n_batch as usize), next: 0, context: &mut context };
    timed.read(N_READ)?;
    let (one, passage) = (SeqId(0), SeqId(1));
    let mut n_cells = N_READ;
    while n_cells * 2 <= shape.n_context {
        let state = get(&mut context, one)?;
        set(&mut context, passage, &state)?;
        share(&mut context, passage, one, 0, N_READ)?;
        remove(&mut context, passage, -1)?;
        n_cells *= 2;
    }
    let state = get(&mut context, one)?.into_vec();
    if unified { Ok(state) } else { of_streams(&state, shape.n_rows) }
}

/// Such a state as a context with a stream for each sequence takes it: behind the magic number and the sequence, the
/// number of streams; then those, of which all but one are empty.
fn of_streams(state: &[u8], n_streams: u32) -> Result<Vec<u8>, String> {
    const HEAD: usize = 8;
    let rest = state.get(HEAD..).and_then(|rest| rest.strip_prefix(&1u32.to_le_bytes()));
    let rest = rest.ok_or("states are not laid out as expected")?;
    let empty = vec![0; 4 * (n_streams as usize - 1)];
    Ok([&state[..HEAD], &n_streams.to_le_bytes(), rest, &empty].concat())
}

/// A context whose sequences all hold the same, and what is computed in it.
struct Timed<'a> {
    context: &'a mut Context,
    batch: Batch,
    /// The next position of each sequence.
    next: u32,
}

impl Timed<'_> {
    fn pass(&mut self, rows: &[Row]) -> Result<Duration, String> {
        let began = now();
        let (code, _) = self.context.decode(&mut self.batch, rows)?;
        if code == 0 { Ok(now().saturating_sub(began)) } else { Err(format!("llama_decode returned {code}")) }
    }

    fn row(&self, seq: u32, pos: u32, draws: bool) -> Row {
        let token = self.context.model.bos().unwrap_or(0);
        Row { request: RequestId(0), seq: SeqId(seq), pos, token, draws, scores: false }
    }

    /// Let the first sequence read so many tokens.
    fn read(&mut self, n: u32) -> Result<Duration, String> {
        let rows: Vec<Row> = (0..n).map(|i| self.row(0, self.next + i, false)).collect();
        self.next += n;
        self.pass(&rows)
    }

    /// Give all sequences the same state: the one at hand, or what the first of them reads.
    fn fill(&mut self, source: Option<&[u8]>, shape: Shape) -> Result<(), String> {
        let read;
        let state = if let Some(source) = source {
            source
        } else {
            self.next = 0;
            for _ in 0..(shape.n_context / N_READ).clamp(1, 4) {
                self.read(N_READ)?;
            }
            read = get(self.context, SeqId(0))?;
            &read
        };
        let first = u32::from(source.is_none());
        (first..shape.n_rows).try_for_each(|seq| set(self.context, SeqId(seq), state))
    }

    /// The shortest of some passes that decode a row of each sequence; the first one is not counted.
    fn decode(&mut self, n_rows: u32) -> Result<Duration, String> {
        let mut shortest = Duration::MAX;
        for i in 0..=N_PASSES {
            let rows: Vec<Row> = (0..n_rows).map(|seq| self.row(seq, self.next, true)).collect();
            let took = self.pass(&rows)?;
            self.next += 1;
            if i > 0 {
                shortest = shortest.min(took);
            }
        }
        Ok(shortest)
    }

    /// What a row of a prompt takes.
    fn prefill(&mut self) -> Result<Duration, String> {
        Ok(self.read(N_PREFILL)? / N_PREFILL)
    }
}

#[cfg(test)]
mod tests {
    use super::of_streams;

    #[test]
    fn a_state_of_one_stream_becomes_one_of_several() {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let state = words(&[7, 0, 1, 2, 99, 98]);
        assert_eq!(of_streams(&state, 3), Ok(words(&[7, 0, 3, 2, 99, 98, 0, 0])));
        assert!(of_streams(&words(&[7, 0, 2, 2]), 3).is_err());
        assert!(of_streams(&[1, 2], 3).is_err());
    }
}
