//! What the core tells: tokens and ends for the callers, and telemetry.

use super::ids::{RequestId, SeqId, Token};
use super::logprobs::TokenLogprobs;
use super::loss::BackendEvent;
use super::request::Mode;
use super::transfer::{SessionState, TransferId};
use super::vectors::Embedded;
use crate::error::Error;
use crate::options::Key;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Why a request ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// The model ended its answer.
    Eog,
    /// Something that the caller named ended it.
    Stop,
    /// `max_tokens` are generated.
    MaxTokens,
    /// The request alone filled its context.
    ContextFull,
    /// The caller cancelled it.
    Cancelled,
    /// All its texts are vectors.
    Embedded,
}

impl FinishReason {
    /// The word in completions and events.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Eog => "eog",
            Self::Stop => "stop",
            Self::MaxTokens => "max_tokens",
            Self::ContextFull => "context_full",
            Self::Cancelled => "cancelled",
            Self::Embedded => "embedded",
        }
    }
}

/// What ended a request that [`FinishReason::Stop`] ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopCause {
    /// A stop string.
    Text(String),
    /// A token.
    Token(Token),
}

/// Where the reused part of a prompt came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PrefixSource {
    /// The session's own last sequence.
    Own,
    /// Another sequence.
    Donor,
    /// The RAM tier, perhaps behind what another sequence holds.
    Ram,
    /// The folder, by way of the RAM tier.
    Disk,
    /// Nothing was reused.
    None,
}

impl PrefixSource {
    /// The word in events.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Donor => "donor",
            Self::Ram => "ram",
            Self::Disk => "disk",
            Self::None => "none",
        }
    }
}

/// Why a prompt's beginning was reused, or was not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PrefixReason {
    /// Its session left it.
    Session,
    /// No other sequence had as much of it.
    Longest,
    /// Another request was computing it, and this one waited for that.
    Awaited,
    /// It had left the KV cache for RAM, or for the disk.
    Saved,
    /// The request did not allow it.
    Off,
    /// Nothing began the same.
    #[default]
    NoMatch,
    /// A sequence began the same, but its memory cannot go back so far.
    OutOfReach,
    /// The backend refused to copy, cut or restore it.
    Refused,
}

impl PrefixReason {
    /// The word in events.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Longest => "longest",
            Self::Awaited => "awaited",
            Self::Saved => "saved",
            Self::Off => "off",
            Self::NoMatch => "no_match",
            Self::OutOfReach => "out_of_reach",
            Self::Refused => "refused",
        }
    }
}

/// Why room was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PressureReason {
    /// The requests need more cells than are free.
    #[default]
    Cells,
    /// The backend found no room where the account had some.
    Backend,
    /// No sequence was free.
    Sequences,
    /// Idle cells slowed the running requests by more than they were worth.
    Residency,
}

impl PressureReason {
    /// The word in events.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Cells => "cells",
            Self::Backend => "backend",
            Self::Sequences => "sequences",
            Self::Residency => "residency",
        }
    }
}

/// A cache below the KV cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Tier {
    /// In memory.
    Ram,
    /// In a folder, by way of the one in memory.
    Disk,
}

impl Tier {
    /// The name of its events.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ram => "ram_cache",
            Self::Disk => "disk_cache",
        }
    }
}

/// What happened in a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TierOp {
    /// Blocks were copied into it.
    Save,
    /// Blocks were copied out of it.
    Restore,
    /// Blocks were dropped for room.
    Evict,
    /// Blocks could not be copied into it, or were of no use when they were looked at.
    Fail,
}

impl TierOp {
    /// The word in events.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Save => "save",
            Self::Restore => "restore",
            Self::Evict => "evict",
            Self::Fail => "fail",
        }
    }
}

/// What a request used. Unit: tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: u32,
    /// Generated, the end-of-generation token excepted.
    pub generated_tokens: u32,
    /// Of the prompt, reused instead of computed.
    pub prefix_cache_tokens: u32,
    /// Drafted and computed beside those that were known.
    pub draft_tokens: u32,
    /// Of those, drawn: they are generated tokens.
    pub accepted_tokens: u32,
}

/// When things happened to a request, from its submission on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    /// Waiting for a slot.
    pub queue: Duration,
    /// To the first token; to the end, if none came.
    pub ttft: Duration,
    /// To the end.
    pub total: Duration,
    /// In passes that read the prompt: from the slot to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// Which request.
    pub request: RequestId,
    /// How.
    pub end: Result<FinishReason, Error>,
    /// Which stop string or token, where one did.
    pub stopped_by: Option<StopCause>,
    /// What it used.
    pub usage: Usage,
    /// When.
    pub timings: Timings,
    /// The last sequence that it held.
    pub seq: Option<SeqId>,
    /// For telemetry.
    pub mode: Mode,
    /// For telemetry.
    pub session: Option<Key>,
    /// Where the reused tokens came from.
    pub prefix_source: PrefixSource,
    /// Why those, or none.
    pub prefix_reason: PrefixReason,
    /// Tokens that were really computed of the prompt, recomputation after a park included.
    pub n_prefilled: u32,
    /// How likely each token of the prompt was, where the request wants to know: nothing of the first one.
    pub prompt_told: Vec<Option<TokenLogprobs>>,
}

/// What the core tells. `Chunk`, `Embedded` and `Finished` go to the request's caller; `Finished` and the rest are telemetry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// Text for the caller, in whole characters, with the tokens that made it.
    Chunk {
        /// Which request.
        request: RequestId,
        /// What the text adds; empty where the tokens have none.
        text: String,
        /// The tokens.
        tokens: Vec<Token>,
        /// How likely each of them was, where the request wants to know.
        told: Vec<TokenLogprobs>,
    },
    /// A token was drawn, though its text may stay back: the first of a request, so long after its submission, or another,
    /// so long after the one before, not at all where one pass gave both; one that ends the answer and is no part of it is not
    /// told. For figures only.
    #[expect(missing_docs, reason = "said above")]
    Token { request: RequestId, is_first: bool, wait: Duration },
    /// The vectors of a request's texts, for its caller; its end follows.
    #[expect(missing_docs, reason = "said above")]
    Embedded { request: RequestId, embedded: Embedded },
    /// The one end of a request. `request.done` or `request.exception` in telemetry.
    Finished(Box<Finished>),
    /// A forward pass is over.
    Tick {
        /// Rows in the pass.
        batch_size: u32,
        /// Rows of requests that generate.
        decode_tokens: u32,
        /// Rows of what was drafted for them.
        draft_tokens: u32,
        /// Rows of prompts.
        prefill_tokens: u32,
        /// Slots taken, after the pass.
        active_slots: u32,
        /// Requests that wait for a slot.
        queue_depth: u32,
        /// Length of the pass.
        eval: Duration,
        /// Length of the draws.
        sample: Duration,
        /// How long both were forecast to take together; None until costs are known, and for texts.
        forecast: Option<Duration>,
    },
    /// A request was taken in.
    Queued {
        /// Which request.
        request: RequestId,
        /// Of its prompt.
        prompt_tokens: u32,
        /// Requests that wait for a slot, this one included.
        queue_depth: u32,
        /// For telemetry.
        mode: Mode,
        /// For telemetry.
        session: Option<Key>,
    },
    /// A request got a slot, or the first of its texts a place in a pass.
    Started {
        /// Which request.
        request: RequestId,
        /// Its sequence; texts have none.
        seq: Option<SeqId>,
        /// Of its prompt.
        prompt_tokens: u32,
        /// Of its prompt, reused.
        prefix_cache_tokens: u32,
        /// Where they came from.
        prefix_source: PrefixSource,
        /// Why those, or none.
        prefix_reason: PrefixReason,
        /// Time it waited.
        queue: Duration,
        /// For telemetry.
        mode: Mode,
        /// For telemetry.
        session: Option<Key>,
    },
    /// A running request gave up its cells, of this sequence, to others; nothing of it is lost: so many tokens will be computed again.
    #[expect(missing_docs, reason = "said above")]
    Parked { request: RequestId, seq: SeqId, n_tokens: u32 },
    /// A parked request goes on.
    Resumed {
        /// Which request.
        request: RequestId,
        /// Its new sequence.
        seq: SeqId,
        /// Tokens found in the cache instead of computed again.
        prefix_cache_tokens: u32,
        /// How long it was parked.
        parked: Duration,
    },
    /// Cells or sequences ran short, or idle cells cost too much.
    KvPressure {
        /// Which of them, most lately.
        reason: PressureReason,
        /// Cached sequences that were dropped for it.
        purged_seq_ids: Vec<SeqId>,
        /// Times a pass was halved to fit.
        batch_splits: u32,
        /// Requests that were parked.
        n_parked: u32,
    },
    /// Something happened in a cache tier. `ram_cache` or `disk_cache` in telemetry.
    TierChanged {
        /// In which.
        tier: Tier,
        /// What.
        op: TierOp,
        /// Of the tokens involved. Unit: bytes.
        n_bytes: u64,
        /// How many.
        n_tokens: u32,
        /// What the tier takes now. Unit: bytes.
        total_bytes: u64,
        /// Blocks in it now.
        n_entries: u32,
        /// Of failures, the first one's reason.
        reason: Option<String>,
    },
    /// A prompt shares only a part of the history that its session left: something rewrites earlier turns.
    PrefixInstability {
        /// The sequence that was expected to match.
        seq: SeqId,
        /// Tokens that did.
        matched_tokens: u32,
        /// Tokens that it holds.
        cached_tokens: u32,
    },
    /// The state of a session, for whoever asked for it.
    SessionSaved {
        /// Who asked.
        transfer: TransferId,
        /// What there is of it.
        state: SessionState,
    },
    /// A session is in the RAM tier: so many tokens of it can be restored.
    #[expect(missing_docs, reason = "said above")]
    SessionLoaded { transfer: TransferId, n_restorable: u32 },
    /// A session could not be saved or loaded.
    #[expect(missing_docs, reason = "said above")]
    TransferFailed { transfer: TransferId, error: Error },
    /// The backend went, is made again, is there again, or keeps everybody waiting; the engine tells it.
    Backend(BackendEvent),
    /// The custom strategy failed, or answered what cannot be; the default stood in.
    #[expect(missing_docs, reason = "said above")]
    StrategyFailed { reason: String },
}
