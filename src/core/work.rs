//! The contract between the core and what computes for it: limits, work and outcomes.
//!
//! All of it is owned, serialisable data, so that the same contract serves llama.cpp, the simulator, recording and
//! replay, and a backend in a child process.

use super::ids::{RequestId, SeqId, Token};
use super::logprobs::{Scored, TokenLogprobs};
use super::memory::{CellCost, MemoryKind, StateSize};
use super::op::{Op, OpResult};
use super::vectors::{EmbedLimits, EmbedOutcome, EmbedPart};
use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a backend can hold and compute, read back from it after it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// KV cells in total. Unit: tokens.
    pub n_ctx: u32,
    /// KV cells of one sequence: `n_ctx` in a unified buffer, a stream's part otherwise.
    pub n_ctx_seq: u32,
    /// Rows of one forward pass: at most one ubatch.
    pub n_batch: u32,
    /// Rows of one forward pass whose logits are looked at.
    pub n_outputs: u32,
    /// Sequences that may have rows in a pass: ids `0..n_seq_max`.
    pub n_seq_max: u32,
    /// Ids `n_seq_max..n_seq_ids` hold cached sequences: they can be copied from, but not computed. Equal to
    /// `n_seq_max` where the memory has no such place.
    pub n_seq_ids: u32,
    /// Tokens of the vocabulary.
    pub n_vocab: u32,
    /// What sequences can do.
    pub memory: MemoryKind,
    /// Whether all sequences take their cells from one pool, which can run short, and a copy between two of them shares
    /// cells and costs nothing.
    pub is_pool: bool,
    /// Positions of a block whose state can be saved to RAM and restored apart from all others; 0 where the memory has
    /// no such blocks, and only the state of a whole sequence can be saved.
    pub block: u32,
    /// What a saved state takes: a block's where there are blocks.
    pub state: StateSize,
    /// What cells cost where they are idle, and where they are moved.
    pub cell_cost: CellCost,
    /// What all may take together, where the options do not say. Unit: bytes.
    pub ram_bytes: u64,
    /// Whether it generates text; what is said of sequences is of no use otherwise.
    pub generates: bool,
    /// What it can embed, if anything.
    pub embed: Option<EmbedLimits>,
    /// Threads that a pass may have at most, where the core says how many ([`Op::Threads`]); 0 where it does not.
    pub n_threads: u32,
}

/// One row of a forward pass: one token of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Whose token it is.
    pub request: RequestId,
    /// The sequence that it extends.
    pub seq: SeqId,
    /// Its position, counted from 0.
    pub pos: u32,
    /// The token.
    pub token: Token,
    /// Whether the next token is drawn from this row's logits. Where several rows of a request draw, one after the other, the
    /// tokens of all but the first are drafts: a row draws if the row before it drew this row's token.
    pub draws: bool,
    /// Whether it is told how likely the prompt's next token was.
    pub scores: bool,
}

impl Row {
    /// Whether its logits are looked at.
    pub const fn is_looked_at(&self) -> bool {
        self.draws || self.scores
    }
}

/// What a custom batch strategy sees of one running request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StrategyRow {
    /// Which request.
    pub request: RequestId,
    /// Its sequence.
    pub seq: SeqId,
    /// Whether it generates; otherwise it still reads its prompt.
    pub decoding: bool,
    /// Tokens that could be computed now: 1 while decoding, the rest of the prompt otherwise.
    pub n_remaining: u32,
    /// Tokens computed so far.
    pub n_computed: u32,
    /// Lower goes first.
    pub priority: i32,
    /// Passes since its prompt last had a row.
    pub n_left_out: u32,
}

/// What a custom batch strategy sees: a copy, which it may do with as it likes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StrategyView {
    /// The running requests, oldest first.
    pub requests: Vec<StrategyRow>,
    /// Rows to share out.
    pub budget: u32,
    /// Rows of one prompt at most.
    pub chunk_size: u32,
    /// Requests that wait for a slot.
    pub queue_depth: u32,
}

/// How many rows a strategy gives a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Which request.
    pub request: RequestId,
    /// Unit: rows.
    pub n_rows: u32,
}

/// What the backend is asked to do. At most one is under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// Samplers and sequences, before the pass that needs them. Apart from it, because what a memory refuses changes
    /// which rows are valid.
    Prepare(Vec<Op>),
    /// One forward pass, sorted by sequence and position, and a draw from each row that draws.
    Decode(Vec<Row>),
    /// One forward pass over texts that become vectors: whole texts, or a part of one.
    Embed(Vec<EmbedPart>),
    /// Ask the custom strategy.
    Strategy(StrategyView),
}

/// One token that a sampler drew.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drawn {
    /// The token.
    pub token: Token,
    /// Its bytes, not always whole characters; none for a control token.
    pub piece: Vec<u8>,
    /// Whether it ends the generation.
    pub is_eog: bool,
    /// Whether its grammar lets nothing follow.
    pub is_last: bool,
    /// How likely it was, where the request wants to know.
    pub told: Option<Box<TokenLogprobs>>,
}

/// What the drawing rows of one request gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowOutcome {
    /// Whose rows.
    pub request: RequestId,
    /// The tokens drawn, in order, one from each row that drew: behind one that is not what was drafted, that ends the
    /// generation or that nothing follows, no more are drawn; none where a sampler of the caller's own is still to draw;
    /// or why the sampler failed: then this request fails, and no other.
    pub drawn: Result<Vec<Drawn>, Error>,
}

/// How a forward pass ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PassStatus {
    /// All rows were computed.
    Done,
    /// No room for all rows (`llama_decode` 1); nothing changed.
    KvFull,
    /// It was aborted (`llama_decode` 2) or failed; what was kept of it is in `positions`.
    Failed {
        /// `llama_decode`'s code.
        code: i32,
        /// What is known of the reason.
        reason: String,
    },
}

/// The positions that a sequence holds after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeqPositions {
    /// Which sequence.
    pub seq: SeqId,
    /// The first position still there (above 0 once a sliding window has moved on), and the last; none if it is empty.
    pub held: Option<(u32, u32)>,
}

/// What came of a forward pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeOutcome {
    /// How it ended.
    pub status: PassStatus,
    /// One for each request with rows that draw; empty unless the pass is done.
    pub rows: Vec<RowOutcome>,
    /// One for each row that scores; empty unless the pass is done.
    pub scored: Vec<Scored>,
    /// Of every sequence in the pass when it failed; of every sequence in use after each pass of a memory that drops
    /// positions by itself; empty otherwise.
    pub positions: Vec<SeqPositions>,
    /// Cells that the pass had to look at, up to the highest one in use; 0 where that is not known.
    pub span: u32,
    /// Length of the forward pass.
    pub eval: Duration,
    /// Length of the draws.
    pub sample: Duration,
    /// Cores that nobody used of late, this pass included; none where that is not known.
    pub idle: Option<f32>,
}

impl DecodeOutcome {
    /// Nothing was computed, and nothing changed.
    pub fn nothing(reason: &str) -> Self {
        Self {
            status: PassStatus::Failed { code: -1, reason: reason.into() },
            rows: Vec::new(),
            scored: Vec::new(),
            positions: Vec::new(),
            span: 0,
            eval: Duration::ZERO,
            sample: Duration::ZERO,
            idle: None,
        }
    }

    /// Whose rows drew nothing, because samplers of the callers' own do.
    pub fn undrawn(&self) -> impl Iterator<Item = RequestId> {
        let waits = |row: &&RowOutcome| row.drawn.as_ref().is_ok_and(Vec::is_empty);
        self.rows.iter().filter(waits).map(|row| row.request)
    }
}

/// What came of a [`Work`], of the same kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// One result for each op.
    Prepare(Vec<OpResult>),
    /// What the pass gave.
    Decode(DecodeOutcome),
    /// What the pass over texts gave.
    Embed(EmbedOutcome),
    /// What the custom strategy answered, or why it did not.
    Strategy(Result<Vec<Grant>, String>),
    /// The backend is gone, with all that it held; nothing is planned until [`super::Scheduler::restore_backend`].
    Lost(Error),
}
