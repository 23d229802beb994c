//! The pure core: a scheduler that decides and never does.
//!
//! It is sans-IO: no clock, no thread, no log, no environment, no llama.cpp, and no randomness at all. The same inputs
//! give the same plans. Its contract, in calling order:
//!
//! 1. [`Scheduler::submit`], [`Scheduler::cancel`] and [`Scheduler::handle_timeout`] take what happened.
//! 2. [`Scheduler::plan`] gives the next [`Work`], or nothing. At most one work is under way.
//! 3. Somebody carries it out ([`crate::backend::Backend`], or Python for a custom strategy).
//! 4. [`Scheduler::apply`] takes the work back with its [`Outcome`]. A failure is an outcome too, and leads to a new
//!    plan: every way of recovery can be tested without a fault.
//! 5. [`Scheduler::poll_event`] until it is empty: tokens and ends for the callers, telemetry.
//! 6. [`Scheduler::poll_timeout`] says when `handle_timeout` is due at the latest.

#![forbid(unsafe_code)]

mod admit;
mod apply;
mod batch;
mod blocks;
mod breakers;
mod cells;
mod check;
mod cost;
mod deadlines;
mod disk;
mod donors;
mod drafts;
mod embed;
mod embed_line;
mod event;
mod finish;
mod ids;
mod line;
mod logprobs;
mod lookup;
mod loss;
mod memory;
mod mix;
mod op;
mod output;
mod pace;
mod params;
mod prefix;
mod ram;
mod request;
mod residency;
mod running;
mod scheduler;
mod scheduler_options;
mod sequences;
mod stats;
mod stops;
mod strategy;
mod text;
mod threads;
mod tiers;
mod time;
mod transfer;
mod turns;
mod vectors;
mod work;

pub use breakers::Breakers;
pub use disk::DiskEntry;
pub use event::{
    Event, FinishReason, Finished, PrefixReason, PrefixSource, PressureReason, StopCause, Tier, TierOp, Timings, Usage,
};
pub use ids::{BlobId, RequestId, SeqId, SlotId, Token};
pub use logprobs::{Logprob, Scored, Telling, TokenLogprobs};
pub use loss::BackendEvent;
pub use memory::{CellCost, MemoryKind, StateSize};
pub use mix::{GOLDEN, mix};
pub use op::{Op, OpResult};
pub use params::{Begin, Compiled, Constraint, SamplerKind, SamplingParams, Shape, TokenRules, Words};
pub use prefix::{Matches, PrefixIndex};
pub use request::{Mode, Request, StopRules, sibling_seed};
pub use scheduler::Scheduler;
pub use scheduler_options::SchedulerOptions;
pub use stats::Stats;
pub use time::{Time, ms};
pub use transfer::{SessionState, StatePart, TransferId};
pub use vectors::{Embed, EmbedLimits, EmbedOutcome, EmbedPart, EmbedStatus, Embedded, Pool, normalize};
pub use work::{
    DecodeOutcome, Drawn, Grant, Limits, Outcome, PassStatus, Row, RowOutcome, SeqPositions, StrategyRow, StrategyView,
    Work,
};
