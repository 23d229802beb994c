//! What a caller asks for.

use super::ids::{RequestId, Token};
use crate::options::{Key, RequestOptions, StartOptions};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Whether the caller waits for the whole or follows along. Only telemetry sees the difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// `generate`, `chat`.
    Generate,
    /// `stream`.
    Stream,
}

impl Mode {
    /// The word in events.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Generate => "generate",
            Self::Stream => "stream",
        }
    }
}

/// How tokens are drawn, every value settled. For the backend; the core reads nothing of it but `min_tokens`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temp: f32,
    /// 0 means all.
    pub top_k: u32,
    /// 1 means all.
    pub top_p: f32,
    /// 0 means all.
    pub min_p: f32,
    /// 1 is off.
    pub penalty_repeat: f32,
    /// 0 is off.
    pub penalty_freq: f32,
    /// 0 is off.
    pub penalty_present: f32,
    /// Last tokens that penalties look at, prompt included; -1 means all.
    pub penalty_last_n: i32,
    /// The seed of this request's random stream.
    pub seed: u64,
    /// Tokens of the model's own that end a generation are never drawn.
    pub ignore_eos: bool,
    /// Nothing that would end the generation is drawn until so many tokens are; only limits end it before.
    pub min_tokens: u32,
}

/// What ends a request beside the model and its limits, once [`SamplingParams::min_tokens`] are generated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRules {
    /// Text that ends it; none is empty.
    pub strings: Arc<[String]>,
    /// Whether the answer keeps what ended it.
    pub include: bool,
    /// Tokens that end it.
    pub tokens: Arc<[Token]>,
}

/// A request as the core takes it: owned data, every option settled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Ascending, never reused.
    pub id: RequestId,
    /// The prompt's tokens.
    pub prompt: Arc<[Token]>,
    /// Tokens generated at most.
    pub max_tokens: u32,
    /// For telemetry.
    pub mode: Mode,
    /// For the backend's sampler.
    pub sampling: SamplingParams,
    /// What ends it.
    pub stop: StopRules,
    /// Who goes first: the lower, the sooner.
    pub priority: i32,
    /// Whether cached tokens are reused and these ones kept.
    pub cache_prompt: bool,
    /// The conversation.
    pub session: Option<Key>,
    /// The trust boundary.
    pub scope: Option<Key>,
    /// Total time from submission.
    pub timeout: Option<Duration>,
    /// Time for waiting in the queue.
    pub queue_timeout: Option<Duration>,
    /// Time without progress while holding a slot.
    pub stall_timeout: Option<Duration>,
}

impl Request {
    /// A request with its own values where the caller gave them, the engine's otherwise, and `fresh_seed` where neither
    /// gave a seed. Id and prompt are still open.
    pub fn draft(options: RequestOptions, mode: Mode, engine: &StartOptions, fresh_seed: u64) -> Self {
        let RequestOptions {
            max_tokens,
            timeout,
            queue_timeout,
            stall_timeout,
            priority,
            cache_prompt,
            session,
            cache_scope,
            temp,
            top_k,
            top_p,
            min_p,
            penalty_repeat,
            penalty_freq,
            penalty_present,
            penalty_last_n,
            seed,
            stop,
            include_stop,
            stop_token_ids,
            min_tokens,
            ignore_eos,
        } = options;
        let stop_tokens = stop_token_ids.into_iter().flatten().filter_map(|token| Token::try_from(token).ok());
        let seconds = |limit: Option<f64>| limit.map(|s| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX));
        Self {
            id: RequestId(0),
            prompt: Arc::from([]),
            max_tokens,
            mode,
            sampling: SamplingParams {
                temp: temp.unwrap_or(engine.temp),
                top_k: top_k.unwrap_or(engine.top_k),
                top_p: top_p.unwrap_or(engine.top_p),
                min_p: min_p.unwrap_or(engine.min_p),
                penalty_repeat: penalty_repeat.unwrap_or(engine.penalty_repeat),
                penalty_freq: penalty_freq.unwrap_or(engine.penalty_freq),
                penalty_present: penalty_present.unwrap_or(engine.penalty_present),
                penalty_last_n: penalty_last_n.unwrap_or(engine.penalty_last_n),
                seed: seed.or(engine.seed).unwrap_or(fresh_seed),
                ignore_eos,
                min_tokens,
            },
            stop: StopRules {
                strings: stop.map(|stop| stop.0).unwrap_or_default().into(),
                include: include_stop,
                tokens: stop_tokens.collect(),
            },
            priority,
            cache_prompt: cache_prompt.unwrap_or(engine.cache_prompt),
            session,
            scope: cache_scope,
            timeout: seconds(timeout),
            queue_timeout: seconds(queue_timeout),
            stall_timeout: seconds(stall_timeout),
        }
    }
}
