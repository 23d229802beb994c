//! What a caller asks for.

use super::ids::{RequestId, Token};
use super::mix::{GOLDEN, mix};
use super::params::{SamplingParams, Words};
use super::vectors::Embed;
use crate::options::{EmbedOptions, Key, RequestOptions, StartOptions};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// What the caller called. Of answers only telemetry sees whether they are waited for or followed along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// `generate`, `chat`.
    Generate,
    /// `stream`.
    Stream,
    /// `embed`.
    Embed,
}

impl Mode {
    /// The word in events.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Generate => "generate",
            Self::Stream => "stream",
            Self::Embed => "embed",
        }
    }
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
    /// In order of arrival, never reused.
    pub id: RequestId,
    /// The prompt's tokens.
    pub prompt: Arc<[Token]>,
    /// Texts that are to become vectors, where that is asked for in the place of an answer.
    pub embed: Option<Embed>,
    /// Tokens generated at most.
    pub max_tokens: u32,
    /// Tokens that a pass computes on trial for it at most.
    pub n_draft: u32,
    /// For telemetry.
    pub mode: Mode,
    /// For the backend's sampler.
    pub sampling: SamplingParams,
    /// What ends it.
    pub stop: StopRules,
    /// Who goes first: the lower, the sooner.
    pub priority: i32,
    /// Whom it is served with: between flows, tokens are shared out fairly.
    pub flow: Option<Key>,
    /// Whether cached tokens are reused, and others may share these while it runs.
    pub cache_prompt: bool,
    /// Whether only its siblings share them, and none are kept.
    pub is_private: bool,
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
    /// gave a seed; and what it says in words. Id and prompt are still open.
    pub fn draft(options: RequestOptions, mode: Mode, engine: &StartOptions, fresh_seed: u64) -> (Self, Words) {
        let (sampling, words) = (SamplingParams::draft(&options, engine, fresh_seed), Words::draft(&options));
        let stop_tokens = options.stop_token_ids.iter().flatten().filter_map(|token| Token::try_from(*token).ok());
        let stop_tokens = stop_tokens.collect();
        let cache_prompt = options.cache_prompt.unwrap_or(engine.cache_prompt);
        let request = Self {
            id: RequestId(0),
            prompt: Arc::from([]),
            embed: None,
            max_tokens: options.max_tokens,
            n_draft: options.n_draft.unwrap_or(engine.n_draft),
            mode,
            sampling,
            stop: StopRules {
                strings: options.stop.map(|stop| stop.0).unwrap_or_default().into(),
                include: options.include_stop,
                tokens: stop_tokens,
            },
            priority: options.priority,
            flow: options.fair_scope.or_else(|| options.cache_scope.clone()),
            cache_prompt,
            is_private: false,
            session: options.session,
            scope: options.cache_scope,
            timeout: seconds(options.timeout),
            queue_timeout: seconds(options.queue_timeout),
            stall_timeout: seconds(options.stall_timeout),
        };
        (request, words)
    }

    /// A request for embeddings. Id and texts are still open.
    pub fn embedding(options: &EmbedOptions) -> Self {
        let EmbedOptions { pooling, normalize, priority, ref fair_scope, timeout, queue_timeout } = *options;
        Self {
            id: RequestId(0),
            prompt: Arc::from([]),
            embed: Some(Embed { texts: Arc::from([]), pooling, normalize }),
            max_tokens: 0,
            n_draft: 0,
            mode: Mode::Embed,
            sampling: SamplingParams::OFF,
            stop: StopRules::default(),
            priority,
            flow: fair_scope.clone(),
            cache_prompt: false,
            is_private: false,
            session: None,
            scope: None,
            timeout: seconds(timeout),
            queue_timeout: seconds(queue_timeout),
            stall_timeout: None,
        }
    }

    /// Tokens of its prompt, or of all its texts.
    pub fn n_prompt(&self) -> u32 {
        let texts = self.embed.iter().flat_map(|embed| embed.texts.iter());
        let n = self.prompt.len() + texts.map(|text| text.len()).sum::<usize>();
        u32::try_from(n).unwrap_or(u32::MAX)
    }

    /// Whether its tokens are kept for others when it ends.
    pub const fn keeps(&self) -> bool {
        self.cache_prompt && !self.is_private
    }

    /// `n` requests for as many answers to the prompt, with ids that follow this one's and seeds of their own. They share
    /// the prompt's cells, with nobody else where the cache is off.
    pub fn siblings(mut self, n: u32) -> impl Iterator<Item = Self> {
        if n > 1 && !self.cache_prompt {
            (self.cache_prompt, self.is_private) = (true, true);
            self.scope = Some(Key(format!("siblings of {}", self.id)));
        }
        let (first, seed) = (self.id.0, self.sampling.seed);
        (0..u64::from(n)).map(move |i| {
            let mut sibling = self.clone();
            sibling.id = RequestId(first + i);
            sibling.sampling.seed = sibling_seed(seed, i);
            sibling
        })
    }
}

fn seconds(limit: Option<f64>) -> Option<Duration> {
    limit.map(|s| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX))
}

/// The seed of the `i`-th answer to a prompt; the first one's is the request's own.
pub fn sibling_seed(seed: u64, i: u64) -> u64 {
    if i == 0 { seed } else { mix(seed.wrapping_add(i.wrapping_mul(GOLDEN))) }
}
