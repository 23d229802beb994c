//! What is simulated.

use crate::core::{CellCost, EmbedLimits, Limits, MemoryKind, Row, StateSize, mix};
use crate::error::{Error, TextBound};
use crate::options::Pooling;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a forward pass takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// Of any pass.
    pub fixed: Duration,
    /// For each row.
    pub per_row: Duration,
    /// For each row of a sequence whose rows all draw, beyond that: a decode row, and those drafted behind it.
    pub per_decode_row: Duration,
    /// For each 1,000 tokens that a row attends to.
    pub per_context: Duration,
    /// By how much the lengths of equal passes vary, up and down. Unit: per mille.
    pub noise: u32,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            fixed: Duration::from_millis(10),
            per_row: Duration::from_millis(2),
            per_decode_row: Duration::ZERO,
            per_context: Duration::ZERO,
            noise: 0,
        }
    }
}

impl Latency {
    /// Of a pass over texts.
    pub(super) fn pass(&self, n_rows: usize) -> Duration {
        self.fixed + self.per_row * n_rows as u32
    }

    /// Of a pass that generates, by chance longer or shorter.
    pub(super) fn decode(&self, rows: &[Row], chance: u64) -> Duration {
        let decoding = rows.chunk_by(|a, b| a.seq == b.seq).filter(|chunk| chunk.iter().all(|row| row.draws));
        let n_decode: usize = decoding.map(<[Row]>::len).sum();
        let n_context: u64 = rows.iter().map(|row| u64::from(row.pos) + 1).sum();
        let context = self.per_context.mul_f64(n_context as f64 / 1000.0);
        let even = self.pass(rows.len()) + self.per_decode_row * n_decode as u32 + context;
        let by_chance = (mix(chance) % 2001) as f64 / 1000.0 - 1.0;
        even.mul_f64(1.0 + by_chance * f64::from(self.noise.min(1000)) / 1000.0)
    }
}

/// Cores that compute, and who else wants them. The lengths of passes are those with a thread on each core and nobody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cores {
    /// How many.
    pub n: u32,
    /// Processes that always want one.
    pub n_busy: u32,
}

impl Cores {
    /// How often a thread that waits for one without a core waits, in the time that the core takes to come back.
    const STALL: f64 = 8.0;

    /// By how much a pass with so many threads takes longer.
    pub fn slow_down(self, n_rows: usize, n_threads: u32) -> f64 {
        let (n, threads) = (f64::from(self.n), f64::from(n_threads));
        let alone = 0.1 + 0.9 * n / threads;
        let wanted = threads + f64::from(self.n_busy);
        // Few rows are little to compute between two waits.
        let stall = if n_threads > 1 && n_rows < 32 { Self::STALL } else { 1.0 };
        if wanted > n { alone * stall * wanted / n } else { alone }
    }

    /// Cores without work beside so many threads.
    pub(super) fn n_idle(self, n_threads: u32) -> u32 {
        self.n.saturating_sub(self.n_busy + n_threads)
    }
}

/// Chances that something fails. Unit: per mille.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FaultRates {
    /// A pass finds no room.
    pub kv_full: u32,
    /// A pass fails, with one of llama.cpp's codes.
    pub fail: u32,
    /// A copy is refused.
    pub refuse_copy: u32,
    /// A trim is refused.
    pub refuse_trim: u32,
    /// Of a save to RAM.
    pub refuse_save: u32,
    /// Of a block restored from RAM.
    pub refuse_restore: u32,
    /// Stores on disk that are refused.
    pub refuse_store: u32,
    /// Loads from disk that are refused.
    pub refuse_load: u32,
    /// A sampler cannot be made.
    pub refuse_open: u32,
    /// A draw fails.
    pub fail_draw: u32,
}

/// One thing that fails once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// A pass finds no room.
    KvFull,
    /// A pass fails with this code of `llama_decode`.
    Fail(i32),
    /// A copy is refused.
    RefuseCopy,
    /// A trim is refused.
    RefuseTrim,
    /// A save to RAM is refused.
    RefuseSave,
    /// A block in RAM is of no use.
    RefuseRestore,
    /// A block cannot be stored on disk.
    RefuseStore,
    /// What is on disk is damaged.
    RefuseLoad,
    /// A sampler cannot be made.
    RefuseOpen,
    /// A draw fails.
    FailDraw,
    /// The backend panics in a pass.
    Panic,
}

/// A simulated model, context and machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SimConfig {
    /// KV cells in total.
    pub n_ctx: u32,
    /// Slots; decides how many sequences can be computed.
    pub n_parallel: u32,
    /// Rows of one pass.
    pub n_batch: u32,
    /// Rows of one forward pass whose logits are looked at; none means all.
    pub n_outputs: Option<u32>,
    /// Tokens of the vocabulary; at least 512.
    pub n_vocab: u32,
    /// What sequences can do.
    pub memory: MemoryKind,
    /// One buffer for all sequences.
    pub kv_unified: bool,
    /// Positions of a block of the RAM tier, where the memory has blocks.
    pub block: u32,
    /// What the RAM tier may take, where the options do not say. Unit: bytes.
    pub ram_bytes: u64,
    /// What a block takes; a whole sequence takes 16 more for each position. Unit: bytes.
    pub block_bytes: u64,
    /// What cells cost; it is told only, and no pass gets longer by it.
    pub cell_cost: CellCost,
    /// Of the faults' randomness.
    pub seed: u64,
    /// One in so many tokens ends a generation; 0 means none does.
    pub eog_every: u32,
    /// How often a token depends on the one before it alone, so that texts repeat themselves. Unit: per mille.
    pub repeat: u32,
    /// Values of the vector of a text; 0 means that it computes none.
    pub n_embd: u32,
    /// It generates no text, and reads those that it embeds whole.
    pub is_encoder: bool,
    /// Length of passes.
    pub latency: Latency,
    /// The cores that compute it; none where the number of threads changes nothing.
    pub cores: Option<Cores>,
    /// Let passes really take their time; otherwise it is only told.
    pub real_time: bool,
    /// What fails by chance.
    pub fault_rates: FaultRates,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            n_ctx: 8192,
            n_parallel: 4,
            n_batch: 512,
            n_outputs: None,
            n_vocab: 512,
            memory: MemoryKind::Full,
            kv_unified: true,
            block: 64,
            ram_bytes: 1 << 20,
            block_bytes: 1 << 10,
            cell_cost: CellCost::default(),
            seed: 0,
            eog_every: 0,
            repeat: 0,
            n_embd: 16,
            is_encoder: false,
            latency: Latency::default(),
            cores: None,
            real_time: false,
            fault_rates: FaultRates::default(),
        }
    }
}

impl SimConfig {
    fn embed_limits(&self) -> Option<EmbedLimits> {
        let (n_text, bound) =
            if self.is_encoder { (self.n_batch, TextBound::Pass) } else { (self.n_ctx, TextBound::Context) };
        (self.n_embd > 0).then_some(EmbedLimits {
            n_text,
            bound,
            n_batch: self.n_batch,
            n_texts: 8,
            n_embd: self.n_embd,
            in_parts: !self.is_encoder,
            pooling: Pooling::Mean,
        })
    }

    /// The limits of such a backend, as llama.cpp would set them.
    pub fn limits(&self) -> Limits {
        let has_cache_ids = self.kv_unified && self.memory == MemoryKind::Full;
        let n_seq_max = if self.kv_unified { self.n_parallel + 2 } else { self.n_parallel };
        let per_state = if has_cache_ids { 0 } else { 16 };
        Limits {
            n_ctx: self.n_ctx,
            n_ctx_seq: if self.kv_unified { self.n_ctx } else { (self.n_ctx / self.n_parallel).max(1) },
            n_batch: self.n_batch,
            n_outputs: self.n_outputs.unwrap_or(self.n_batch).max(n_seq_max),
            n_seq_max,
            n_seq_ids: if has_cache_ids { 256 } else { n_seq_max },
            n_vocab: self.n_vocab.max(512),
            memory: self.memory,
            is_pool: self.kv_unified && self.memory != MemoryKind::Recurrent,
            block: if has_cache_ids { self.block } else { 0 },
            state: StateSize { fixed: self.block_bytes, per_token: per_state, per_window_token: 0 },
            cell_cost: if has_cache_ids { self.cell_cost } else { CellCost::default() },
            ram_bytes: self.ram_bytes,
            generates: !self.is_encoder,
            embed: self.embed_limits(),
            n_threads: self.cores.map_or(0, |cores| cores.n),
        }
    }
}

/// Load as slowly as a real model would, and fail where one is to.
///
/// # Errors
/// [`Error::ModelLoad`] with the reason that is given.
pub fn load_slowly(load: Duration, fails: Option<&str>, progress: &dyn Fn(f32) -> bool) -> Result<(), Error> {
    let slice = Duration::from_millis(5);
    let mut done = Duration::ZERO;
    while done < load && progress(done.as_secs_f32() / load.as_secs_f32()) {
        std::thread::sleep(slice.min(load.saturating_sub(done)));
        done += slice;
    }
    let failed = |reason: &str| Error::ModelLoad(format!("the simulated model could not be loaded: {reason}"));
    fails.map_or(Ok(()), |reason| Err(failed(reason)))
}

/// Really wait, in slices, so that an abort is seen; whether it was not aborted.
pub(super) fn wait(length: Duration, abort: &AtomicBool) -> bool {
    let slice = Duration::from_millis(1);
    let mut left = length;
    while !left.is_zero() {
        if abort.load(Ordering::Relaxed) {
            return false;
        }
        let now = left.min(slice);
        std::thread::sleep(now);
        left -= now;
    }
    true
}
