//! Draws tokens straight from the logits, as llama.cpp's chain would: what the caller says of single tokens, penalties,
//! DRY, top-n-sigma, top-k, typical-p, top-p, min-p, XTC, temperature, then the draw. Free of llama.cpp.
//!
//! A row is read once or twice and never copied: what most links and the draw look at are the few candidates that
//! top-k left. Equal logits are ordered by token, lowest first.

mod bans;
mod candidate;
mod chain;
mod dry;
mod logprobs;
mod mirostat;
mod penalties;
mod pool;
mod rng;
mod row;
mod temperature;
mod typical;

pub(crate) use bans::Bans;
pub use logprobs::Told;
pub use pool::Pool;

use crate::core::{SamplingParams, Telling, Token};
use crate::error::Error;
use crate::grammar::Matcher;
use candidate::Candidate;
use chain::{Chain, Left, Memory};
use dry::Dry;
use mirostat::Mirostat;
use penalties::Penalties;
use rng::Rng;
use row::{Row, pick, weight};

/// Tokens that a grammar refuses of one row until it gives up: before a trigger each is tried by itself.
const MAX_REFUSED: usize = 24;

/// Draws the tokens of one request. Advances with each token that it draws.
#[derive(Clone, Debug)]
pub struct Sampler {
    n_vocab: usize,
    bans: Bans,
    penalties: Option<Penalties>,
    dry: Option<Dry>,
    chain: Chain,
    mirostat: Option<Mirostat>,
    constraint: Option<Matcher>,
    rng: Rng,
    telling: Telling,
    told: Option<Told>,
    /// A copy of the row as the model gave it, where something is told of it.
    raw: Vec<f32>,
    /// The largest logit of each block of the row.
    maxima: Vec<f32>,
    scratch: Scratch,
}

/// Buffers that are reused from row to row.
#[derive(Clone, Debug, Default)]
struct Scratch {
    selection: Vec<f32>,
    sums: Vec<f64>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// The sampler of a request that starts with `prompt`, which penalties look at. Its random stream depends on the
    /// seed alone.
    pub fn new(params: &SamplingParams, prompt: &[Token], n_vocab: u32) -> Self {
        let n_vocab = n_vocab as usize;
        let with_mirostat = params.mirostat > 0;
        Self {
            n_vocab,
            bans: Bans::new(params, prompt),
            penalties: Penalties::new(params, prompt).filter(|_| !with_mirostat),
            dry: Dry::new(params, prompt).filter(|_| !with_mirostat),
            chain: Chain::new(params, n_vocab),
            mirostat: Mirostat::new(params, n_vocab),
            constraint: None,
            rng: Rng::new(params.seed),
            telling: params.telling,
            told: None,
            raw: Vec::new(),
            maxima: Vec::new(),
            scratch: Scratch::default(),
        }
    }

    /// Let it not draw what ends a generation before it may end: the vocabulary's `eog` tokens, and those that the caller
    /// `named`. Nor what the model itself suppresses.
    #[must_use]
    pub fn banning(mut self, params: &SamplingParams, eog: &[Token], named: &[Token], suppressed: &[Token]) -> Self {
        self.bans.delay(params, eog, named);
        self.bans.ban(suppressed);
        self
    }

    /// Let it draw only what a grammar allows.
    #[must_use]
    pub fn constrained(self, constraint: Option<Matcher>) -> Self {
        Self { constraint, ..self }
    }

    /// Whether its grammar lets nothing follow.
    pub fn is_over(&self) -> bool {
        self.constraint.as_ref().is_some_and(Matcher::is_over)
    }

    /// Draw a token from one row of logits, which biases, bans and penalties edit in place, and remember it.
    ///
    /// # Errors
    /// Where the row has another length than the vocabulary, or no token that can be drawn: all are NaN or -inf; where
    /// its grammar costs too much.
    pub fn draw(&mut self, logits: &mut [f32]) -> Result<Token, Error> {
        let tells = self.telling.drawn.filter(|_| !self.telling.after_sampling);
        if tells.is_some() {
            self.keep_raw(logits);
        }
        self.edit(logits)?;
        let token = self.choose_allowed(logits)?;
        if let Some(n_top) = tells {
            let row = Row::measure(&self.raw, &mut self.maxima).ok_or_else(nothing_left)?;
            self.told = Some(logprobs::tell(&row, token, n_top, &mut self.scratch));
        }
        self.accept(token as Token);
        Ok(token as Token)
    }

    /// Edit a row as for a draw, and mask what the grammar forbids: somebody else draws from it.
    ///
    /// # Errors
    /// As [`Self::draw`].
    pub fn offer(&mut self, logits: &mut [f32]) -> Result<(), Error> {
        if self.telling.drawn.is_some() {
            self.keep_raw(logits);
        }
        self.edit(logits)?;
        // Before a trigger each token would have to be tried.
        let masks = self.constraint.as_mut().filter(|constraint| !constraint.is_waiting());
        masks.map_or(Ok(()), |constraint| constraint.mask(logits)).map_err(Error::Grammar)
    }

    /// Somebody else drew a token, or wants the chain to draw from these logits, which were offered.
    ///
    /// # Errors
    /// Where the token was not to be had, or as [`Self::draw`].
    pub fn settle(&mut self, token: Option<Token>, logits: &[f32]) -> Result<Token, Error> {
        self.check_length(logits)?;
        let token = match token {
            None => self.choose(logits).ok_or_else(nothing_left)?,
            Some(token) => {
                let place = usize::try_from(token).ok();
                let is_there = |place: &usize| logits.get(*place).is_some_and(|logit| *logit > f32::NEG_INFINITY);
                let place = place.filter(is_there);
                place.ok_or_else(|| Error::Inference(format!("the sampler drew {token}, which may not be drawn")))?
            }
        };
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token as Token).map_err(Error::Grammar)?;
        }
        if let Some(n_top) = self.telling.drawn {
            let from = if self.telling.after_sampling { logits } else { &self.raw };
            let row = Row::measure(from, &mut self.maxima).ok_or_else(nothing_left)?;
            self.told = Some(logprobs::tell(&row, token, n_top, &mut self.scratch));
        }
        self.accept(token as Token);
        Ok(token as Token)
    }

    /// What is told of the token that was drawn last, once, where the request wants to know.
    pub fn take_told(&mut self) -> Option<Told> {
        self.told.take()
    }

    /// How likely a token was that is there already, where the request wants to know of its prompt's.
    ///
    /// # Errors
    /// Where the row has another length than the vocabulary, or is no number.
    pub fn score(&mut self, logits: &[f32], token: Token) -> Result<Told, Error> {
        self.check_length(logits)?;
        let place = usize::try_from(token).ok().filter(|place| *place < self.n_vocab);
        let place = place.ok_or_else(|| Error::Inference(format!("{token} is not of the vocabulary")))?;
        let row = Row::measure(logits, &mut self.maxima).ok_or_else(nothing_left)?;
        Ok(logprobs::tell(&row, place, self.telling.prompt.unwrap_or(0), &mut self.scratch))
    }

    /// The tokens that can be drawn from a row, likeliest first, each with its probability; nothing is drawn. Edits the
    /// row. XTC excludes as if it were its turn.
    ///
    /// # Errors
    /// As [`Self::draw`].
    pub fn distribution(&mut self, logits: &mut [f32]) -> Result<Vec<(Token, f64)>, Error> {
        self.edit(logits)?;
        let row = Row::measure(logits, &mut self.maxima).ok_or_else(nothing_left)?;
        let memory = Memory { penalties: self.penalties.as_ref(), dry: self.dry.as_ref(), chance: 0.0 };
        let left = self.chain.narrow(&row, &memory, &mut self.scratch);
        let left = self.mirostat.map_or(left, |mirostat| mirostat.narrow(&row, left, &mut self.scratch));
        let Scratch { selection, candidates, .. } = &mut self.scratch;
        let inverse = match left {
            Left::One(token) => return Ok(vec![(token as Token, 1.0)]),
            Left::Few => 1.0,
            Left::Row { floor, temp } => {
                row.best(row.len(), floor, selection, candidates);
                candidates.sort_unstable();
                1.0 / temp
            }
        };
        let max = candidate::best_logit(candidates);
        let weigh = |c: &Candidate| f64::from(weight(c.logit(), max, inverse));
        let total: f64 = candidates.iter().map(weigh).sum();
        Ok(candidates.iter().map(|c| (c.token() as Token, weigh(c) / total)).collect())
    }

    /// A token that the grammar allows: it looks at the one that is drawn first, and only where that is refused at all.
    fn choose_allowed(&mut self, logits: &mut [f32]) -> Result<usize, Error> {
        let before = self.mirostat;
        for _ in 0..MAX_REFUSED {
            let token = self.choose(logits).ok_or_else(nothing_left)?;
            let Some(constraint) = &mut self.constraint else { return Ok(token) };
            if constraint.allows(token as Token).map_err(Error::Grammar)? {
                return constraint.accept(token as Token).map(|()| token).map_err(Error::Grammar);
            }
            constraint.refuse(token as Token, logits).map_err(Error::Grammar)?;
            self.mirostat = before;
        }
        Err(Error::Grammar(format!("{MAX_REFUSED} tokens would have begun with a trigger and broken the grammar")))
    }

    fn keep_raw(&mut self, logits: &[f32]) {
        self.raw.clear();
        self.raw.extend_from_slice(logits);
    }

    fn check_length(&self, logits: &[f32]) -> Result<(), Error> {
        if logits.len() == self.n_vocab {
            return Ok(());
        }
        let what = format!("a row of {} logits for a vocabulary of {} tokens", logits.len(), self.n_vocab);
        Err(Error::Inference(what))
    }

    fn edit(&self, logits: &mut [f32]) -> Result<(), Error> {
        self.check_length(logits)?;
        self.bans.apply(logits);
        let memory = Memory { penalties: self.penalties.as_ref(), dry: self.dry.as_ref(), chance: 0.0 };
        self.chain.edit(&memory, logits);
        Ok(())
    }

    fn choose(&mut self, logits: &[f32]) -> Option<usize> {
        let row = Row::measure(logits, &mut self.maxima)?;
        // As many numbers for each token drawn, needed or not, so that the stream does not depend on the logits.
        let uniform = self.rng.uniform();
        let chance = if self.chain.has_xtc() { self.rng.uniform() } else { 0.0 };
        let memory = Memory { penalties: self.penalties.as_ref(), dry: self.dry.as_ref(), chance };
        let left = self.chain.narrow(&row, &memory, &mut self.scratch);
        let left = self.mirostat.map_or(left, |mirostat| mirostat.narrow(&row, left, &mut self.scratch));
        let token = pick_from(&row, left, uniform, &mut self.scratch)?;
        let tells = self.telling.drawn.filter(|_| self.telling.after_sampling);
        if tells.is_some() || self.mirostat.is_some() {
            let told = logprobs::tell_from(&row, left, token, tells.unwrap_or(0), &mut self.scratch);
            self.mirostat.iter_mut().for_each(|mirostat| mirostat.accept(told.logprob));
            self.told = Some(told).filter(|_| tells.is_some());
        }
        Some(token)
    }

    /// A token was drawn.
    fn accept(&mut self, token: Token) {
        self.bans.accept(token);
        if let Some(penalties) = &mut self.penalties {
            penalties.accept(token);
        }
        if let Some(dry) = &mut self.dry {
            dry.accept(token);
        }
    }
}

/// Draw one of what is left.
fn pick_from(row: &Row<'_>, left: Left, uniform: f64, scratch: &mut Scratch) -> Option<usize> {
    match left {
        Left::One(token) => Some(token),
        Left::Row { floor, temp } => Some(row.draw(floor, temp, uniform, &mut scratch.sums)),
        Left::Few => {
            let max = candidate::best_logit(&scratch.candidates);
            let weigh = |candidate: &Candidate| weight(candidate.logit(), max, 1.0);
            let total: f64 = scratch.candidates.iter().map(|candidate| f64::from(weigh(candidate))).sum();
            let drawn = pick(scratch.candidates.iter().map(weigh), uniform * total)?;
            Some(scratch.candidates[drawn].token())
        }
    }
}

fn nothing_left() -> Error {
    Error::Inference("the model gave no token that can be drawn: all logits are NaN or -inf".into())
}
