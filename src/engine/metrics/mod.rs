//! What is measured of requests and passes since the engine was made: plain atomics, which the engine thread adds to as it
//! tells of things, and others where they end a request. Reading them makes nobody wait.
//!
//! What the core counts by itself (`core/stats.rs`) is not counted again here.

mod histogram;

use super::stats::EngineStats;
use crate::core::{Event, FinishReason, Finished, PrefixReason, PrefixSource, Row, Tier, TierOp};
use crate::error::Error;
pub use histogram::Histogram;
use histogram::{ITL, REQUEST, ROWS, Recorder, TTFT, tokens_within};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How a request ended, in the engine's words.
const ENDS: [&str; 8] = ["eog", "stop", "max_tokens", "context_full", "cancelled", "timeout", "error", "embedded"];
const SOURCES: [PrefixSource; 4] = [PrefixSource::Own, PrefixSource::Donor, PrefixSource::Ram, PrefixSource::Disk];
const TIERS: [Tier; 2] = [Tier::Ram, Tier::Disk];
const TIER_OPS: [TierOp; 4] = [TierOp::Save, TierOp::Restore, TierOp::Evict, TierOp::Fail];

/// What moved in a cache tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierFlow {
    /// In which.
    pub tier: Tier,
    /// How.
    pub op: TierOp,
    /// Unit: tokens.
    pub n_tokens: u64,
    /// Unit: bytes.
    pub n_bytes: u64,
}

/// All that is measured, as it stood when it was read.
///
/// Requests that were refused (see [`Error::is_refusal`]) are in `failures` only.
#[derive(Clone, Debug)]
pub struct EngineMetrics {
    /// Figures of the moment, and what the core counts.
    pub stats: EngineStats,
    /// From the submission to the first token, of requests that got one.
    pub time_to_first_token: Histogram,
    /// From one token of a request to its next.
    pub inter_token_latency: Histogram,
    /// From the submission to the end, of every request that ended.
    pub e2e_request_latency: Histogram,
    /// Of that, without a slot.
    pub request_queue_time: Histogram,
    /// From the slot to the end, of requests that got one.
    pub request_inference_time: Histogram,
    /// From the slot to the first token, of requests that got a slot.
    pub request_prefill_time: Histogram,
    /// From the first token to the last, of requests that generated one.
    pub request_decode_time: Histogram,
    /// Of every request that ended. Unit: tokens.
    pub request_prompt_tokens: Histogram,
    /// Of every request that ended. Unit: tokens.
    pub request_generation_tokens: Histogram,
    /// Rows of each pass. Unit: tokens.
    pub iteration_tokens: Histogram,
    /// Requests that ended, by how.
    pub finished: Vec<(&'static str, u64)>,
    /// Requests that failed or were refused, by the error's code.
    pub failures: Vec<(&'static str, u64)>,
    /// Of prompts whose requests got a slot. Unit: tokens.
    pub n_prompt_tokens: u64,
    /// Of those, what was looked for in the cache. Unit: tokens.
    pub n_prefix_cache_queries: u64,
    /// Of those, what was found, by where. Unit: tokens.
    pub prefix_cache_hits: Vec<(PrefixSource, u64)>,
    /// What moved in the tiers below the KV cells.
    pub tiers: Vec<TierFlow>,
    /// Slots that had rows in a pass, over all passes.
    pub n_busy_slots: u64,
    /// The longest request that ended, its prompt included. Unit: tokens.
    pub n_tokens_max: u64,
    /// All forward passes.
    pub eval_time: Duration,
    /// All draws after them.
    pub sample_time: Duration,
}

pub(super) struct Metrics {
    time_to_first_token: Recorder,
    inter_token_latency: Recorder,
    e2e_request_latency: Recorder,
    request_queue_time: Recorder,
    request_inference_time: Recorder,
    request_prefill_time: Recorder,
    request_decode_time: Recorder,
    request_prompt_tokens: Recorder,
    request_generation_tokens: Recorder,
    iteration_tokens: Recorder,
    finished: [AtomicU64; ENDS.len()],
    failures: [AtomicU64; Error::CODES.len()],
    n_prompt_tokens: AtomicU64,
    n_prefix_cache_queries: AtomicU64,
    prefix_cache_hits: [AtomicU64; SOURCES.len()],
    /// Tokens and bytes, by operation, by tier.
    tiers: [[[AtomicU64; 2]; TIER_OPS.len()]; TIERS.len()],
    n_busy_slots: AtomicU64,
    n_tokens_max: AtomicU64,
    eval_nanos: AtomicU64,
    sample_nanos: AtomicU64,
}

impl Metrics {
    /// Of an engine whose context has so many tokens; 0 where the model says.
    pub(super) fn new(n_ctx: u32) -> Self {
        let tokens = tokens_within(n_ctx);
        Self {
            time_to_first_token: Recorder::new(TTFT),
            inter_token_latency: Recorder::new(ITL),
            e2e_request_latency: Recorder::new(REQUEST),
            request_queue_time: Recorder::new(REQUEST),
            request_inference_time: Recorder::new(REQUEST),
            request_prefill_time: Recorder::new(REQUEST),
            request_decode_time: Recorder::new(REQUEST),
            request_prompt_tokens: Recorder::new(tokens),
            request_generation_tokens: Recorder::new(tokens),
            iteration_tokens: Recorder::new(ROWS),
            finished: Default::default(),
            failures: Default::default(),
            n_prompt_tokens: AtomicU64::new(0),
            n_prefix_cache_queries: AtomicU64::new(0),
            prefix_cache_hits: Default::default(),
            tiers: Default::default(),
            n_busy_slots: AtomicU64::new(0),
            n_tokens_max: AtomicU64::new(0),
            eval_nanos: AtomicU64::new(0),
            sample_nanos: AtomicU64::new(0),
        }
    }

    /// The core tells of something. Ends are for [`Self::end`]: not all of them come from the core.
    pub(super) fn note(&self, event: &Event) {
        match event {
            Event::Token { is_first: true, wait, .. } => self.time_to_first_token.record_time(*wait),
            Event::Token { is_first: false, wait, .. } => self.inter_token_latency.record_time(*wait),
            Event::Tick { batch_size, eval, sample, .. } => {
                self.iteration_tokens.record(u64::from(*batch_size));
                add(&self.eval_nanos, nanos(*eval));
                add(&self.sample_nanos, nanos(*sample));
            }
            Event::Started { prompt_tokens, prefix_cache_tokens, prefix_source, prefix_reason, .. } => {
                self.start(*prompt_tokens, *prefix_cache_tokens, *prefix_source, *prefix_reason);
            }
            Event::TierChanged { tier, op, n_tokens, n_bytes, .. } => {
                let of_tier = TIERS.iter().position(|other| other == tier);
                let of_op = TIER_OPS.iter().position(|other| other == op);
                if let (Some(tier), Some(op)) = (of_tier, of_op) {
                    let [tokens, bytes] = &self.tiers[tier][op];
                    add(tokens, u64::from(*n_tokens));
                    add(bytes, *n_bytes);
                }
            }
            Event::Chunk { .. }
            | Event::Embedded { .. }
            | Event::Finished(_)
            | Event::Queued { .. }
            | Event::Parked { .. }
            | Event::Resumed { .. }
            | Event::KvPressure { .. }
            | Event::PrefixInstability { .. }
            | Event::SessionSaved { .. }
            | Event::SessionLoaded { .. }
            | Event::TransferFailed { .. }
            | Event::Backend(_)
            | Event::StrategyFailed { .. } => {}
        }
    }

    fn start(&self, n_prompt: u32, n_found: u32, source: PrefixSource, reason: PrefixReason) {
        add(&self.n_prompt_tokens, u64::from(n_prompt));
        if reason != PrefixReason::Off {
            add(&self.n_prefix_cache_queries, u64::from(n_prompt));
        }
        if let Some(at) = SOURCES.iter().position(|other| *other == source) {
            // Last, and read first: there are never more hits than queries.
            self.prefix_cache_hits[at].fetch_add(u64::from(n_found), Ordering::Release);
        }
    }

    /// A pass with these rows, sorted by sequence, was done.
    pub(super) fn pass(&self, rows: &[Row]) {
        add(&self.n_busy_slots, rows.chunk_by(|one, next| one.seq == next.seq).count() as u64);
    }

    /// A request has ended. Its caller does not know yet: who has a result finds it counted.
    pub(super) fn end(&self, finished: &Finished) {
        let Finished { end, usage, timings, seq, .. } = finished;
        let which = match end {
            Ok(FinishReason::Eog) => 0,
            Ok(FinishReason::Stop) => 1,
            Ok(FinishReason::MaxTokens) => 2,
            Ok(FinishReason::ContextFull) => 3,
            Ok(FinishReason::Cancelled) => 4,
            Err(Error::RequestTimeout { .. }) => 5,
            Err(_) => 6,
            Ok(FinishReason::Embedded) => 7,
        };
        if let Err(error) = end {
            self.fail(error);
            if error.is_refusal() {
                return;
            }
        }
        self.e2e_request_latency.record_time(timings.total);
        self.request_queue_time.record_time(timings.queue);
        if seq.is_some() {
            self.request_inference_time.record_time(timings.total.saturating_sub(timings.queue));
            self.request_prefill_time.record_time(timings.prefill);
        }
        if usage.generated_tokens > 0 {
            self.request_decode_time.record_time(timings.decode);
        }
        self.request_prompt_tokens.record(u64::from(usage.prompt_tokens));
        self.request_generation_tokens.record(u64::from(usage.generated_tokens));
        let n_tokens = u64::from(usage.prompt_tokens) + u64::from(usage.generated_tokens);
        self.n_tokens_max.fetch_max(n_tokens, Ordering::Relaxed);
        // Last, and read first: whoever is counted is in the histograms.
        self.finished[which].fetch_add(1, Ordering::Release);
    }

    /// A request failed, or was refused before it came in.
    pub(super) fn fail(&self, error: &Error) {
        if let Some(at) = Error::CODES.iter().position(|code| *code == error.code()) {
            add(&self.failures[at], 1);
        }
    }

    /// Everything, with the figures that `stats` reads afterwards: what is told of here is counted there already.
    pub(super) fn read(&self, stats: impl FnOnce() -> EngineStats) -> EngineMetrics {
        let finished = ENDS.iter().copied().zip(self.finished.iter().map(seen)).collect();
        let prefix_cache_hits = SOURCES.iter().copied().zip(self.prefix_cache_hits.iter().map(seen)).collect();
        let tiers = TIERS.iter().zip(&self.tiers).flat_map(|(tier, ops)| {
            TIER_OPS.iter().zip(ops).map(|(op, [tokens, bytes])| TierFlow {
                tier: *tier,
                op: *op,
                n_tokens: seen(tokens),
                n_bytes: seen(bytes),
            })
        });
        EngineMetrics {
            finished,
            failures: Error::CODES.iter().copied().zip(self.failures.iter().map(seen)).collect(),
            prefix_cache_hits,
            n_prefix_cache_queries: seen(&self.n_prefix_cache_queries),
            n_prompt_tokens: seen(&self.n_prompt_tokens),
            time_to_first_token: self.time_to_first_token.read(),
            inter_token_latency: self.inter_token_latency.read(),
            e2e_request_latency: self.e2e_request_latency.read(),
            request_queue_time: self.request_queue_time.read(),
            request_inference_time: self.request_inference_time.read(),
            request_prefill_time: self.request_prefill_time.read(),
            request_decode_time: self.request_decode_time.read(),
            request_prompt_tokens: self.request_prompt_tokens.read(),
            request_generation_tokens: self.request_generation_tokens.read(),
            iteration_tokens: self.iteration_tokens.read(),
            tiers: tiers.collect(),
            n_busy_slots: seen(&self.n_busy_slots),
            n_tokens_max: seen(&self.n_tokens_max),
            eval_time: Duration::from_nanos(seen(&self.eval_nanos)),
            sample_time: Duration::from_nanos(seen(&self.sample_nanos)),
            stats: stats(),
        }
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

fn seen(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Acquire)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
