//! A request from its submission to its end.

use super::donors::Awaited;
use super::drafts::Drafting;
use super::event::{FinishReason, PrefixReason, PrefixSource, StopCause};
use super::ids::{SeqId, SlotId, Token};
use super::line::Turn;
use super::logprobs::TokenLogprobs;
use super::output::Output;
use super::request::Request;
use super::time::Time;
use crate::error::Error;
use std::collections::VecDeque;
use std::time::Duration;

/// How a request will end, or has ended.
pub(super) type End = Result<FinishReason, Error>;

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the queue; it never had a slot.
    Waiting,
    /// It holds a slot and a sequence.
    Running { slot: SlotId, seq: SeqId },
    /// It gave its cells to others and waits to go on.
    Parked { since: Time },
}

/// A request and all that is known of it.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) request: Request,
    /// Its place among those who wait for a slot.
    pub(super) turn: Turn,
    pub(super) place: Place,
    /// The prompt and what was generated.
    pub(super) tokens: Vec<Token>,
    /// The first so many tokens are in the KV cache.
    pub(super) n_computed: u32,
    /// Set when it has to end but is part of the work under way.
    pub(super) doomed: Option<End>,
    /// Forward passes that failed under it without one that succeeded.
    pub(super) n_failures: u32,
    /// Backends that were lost while its sampler was made.
    pub(super) n_losses: u32,
    pub(super) output: Output,
    /// How likely the tokens were that are held with their text.
    pub(super) told: VecDeque<TokenLogprobs>,
    /// How likely the prompt's tokens were, where the request wants to know.
    pub(super) prompt_told: Vec<Option<TokenLogprobs>>,
    /// Which stop string or token ended it.
    pub(super) stopped_by: Option<StopCause>,
    /// Whether a sampler of the caller's own is still to draw the next token.
    pub(super) is_pending: bool,
    /// Whether the backend has its sampler.
    pub(super) has_sampler: bool,
    /// First position still in the KV cache; above 0 once a sliding window has moved on.
    pub(super) pos_min: u32,
    /// Lengths at which its state will be saved: where a later prompt is likely to go on from.
    pub(super) checkpoints: Vec<u32>,
    /// What it waits for, on its slot, instead of computing it.
    pub(super) awaits: Option<Awaited>,
    /// Where the prefix of this start or resumption came from.
    pub(super) found: PrefixSource,
    /// Whether its start was told.
    pub(super) is_told: bool,
    /// How long it was parked, until its resumption is told.
    pub(super) parked_for: Option<Duration>,
    pub(super) prefix_cache_tokens: u32,
    pub(super) prefix_source: PrefixSource,
    pub(super) prefix_reason: PrefixReason,
    pub(super) n_prefilled: u32,
    /// Tokens of its prompt that its flow paid for and that are still to be computed.
    pub(super) n_prepaid: u32,
    /// Passes since its prompt last had a row.
    pub(super) n_left_out: u32,
    /// Tokens of it that were in RAM when more were last asked for from the disk.
    pub(super) loaded_at: Option<u32>,
    pub(super) drafting: Drafting,
    pub(super) last_seq: Option<SeqId>,
    /// The order of admission: who came last yields first.
    pub(super) admitted_no: u64,
    pub(super) submitted_at: Time,
    pub(super) started_at: Option<Time>,
    pub(super) first_token_at: Option<Time>,
    pub(super) last_token_at: Option<Time>,
    pub(super) progressed_at: Time,
}

impl Live {
    pub(super) fn new(request: Request, turn: Turn, now: Time) -> Self {
        Self {
            tokens: request.prompt.to_vec(),
            turn,
            place: Place::Waiting,
            n_computed: 0,
            doomed: None,
            n_failures: 0,
            n_losses: 0,
            output: Output::default(),
            told: VecDeque::new(),
            prompt_told: if request.sampling.telling.prompt.is_some() {
                vec![None; request.prompt.len()]
            } else {
                Vec::new()
            },
            stopped_by: None,
            is_pending: false,
            has_sampler: false,
            pos_min: 0,
            checkpoints: Vec::new(),
            awaits: None,
            found: PrefixSource::None,
            is_told: false,
            parked_for: None,
            prefix_cache_tokens: 0,
            prefix_source: PrefixSource::None,
            prefix_reason: PrefixReason::NoMatch,
            n_prefilled: 0,
            n_prepaid: 0,
            n_left_out: 0,
            loaded_at: None,
            drafting: Drafting::default(),
            last_seq: None,
            admitted_no: 0,
            submitted_at: now,
            started_at: None,
            first_token_at: None,
            last_token_at: None,
            progressed_at: now,
            request,
        }
    }

    /// The backend refused what it was to begin with; that it was so at its start is what is told of it.
    pub(super) fn was_refused(&mut self) {
        if !self.is_told {
            self.prefix_reason = PrefixReason::Refused;
        }
    }

    pub(super) fn n_prompt(&self) -> u32 {
        self.request.prompt.len() as u32
    }

    pub(super) fn n_generated(&self) -> u32 {
        self.n_tokens() - self.n_prompt()
    }

    pub(super) fn n_tokens(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// What of its tokens may be found in a cache: never the last one, which is computed for its logits, nor what it is
    /// still to be told the likelihood of.
    pub(super) fn findable(&self) -> &[Token] {
        let most = self.first_to_score().unwrap_or(self.n_tokens().saturating_sub(1));
        &self.tokens[..most as usize]
    }

    /// What leaves of what is told, with so many tokens.
    pub(super) fn take_told(&mut self, n_tokens: usize) -> Vec<TokenLogprobs> {
        self.told.drain(..n_tokens.min(self.told.len())).collect()
    }

    /// The first position whose row is to tell how likely the prompt's next token was.
    pub(super) fn first_to_score(&self) -> Option<u32> {
        self.prompt_told.iter().skip(1).position(Option::is_none).map(|pos| pos as u32)
    }

    /// Tokens still to compute before the next one can be drawn.
    pub(super) fn n_remaining(&self) -> u32 {
        self.n_tokens() - self.n_computed
    }

    /// Whether it generates: only the token drawn last is not computed.
    pub(super) fn is_decoding(&self) -> bool {
        self.n_generated() > 0 && self.n_remaining() == 1
    }

    pub(super) fn seq(&self) -> Option<SeqId> {
        match self.place {
            Place::Running { seq, .. } => Some(seq),
            Place::Waiting | Place::Parked { .. } => None,
        }
    }
}
