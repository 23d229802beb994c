//! The simulated draw: a function of what the sequence holds, of the seed, and of how many tokens were drawn.

use super::{Fault, SimBackend, SimConfig, SimTokenizer, tokenizer};
use crate::backend::{Pick, matcher};
use crate::core::{Drawn, Logprob, Row, RowOutcome, SamplingParams, Scored, Telling, Token, TokenLogprobs, mix};
use crate::error::Error;
use crate::grammar::Matcher;
use crate::sampling::Bans;
use std::sync::Arc;

/// Draws that are tried before a banned token is given up on.
const TRIES: u64 = 64;

#[derive(Debug)]
pub(super) struct Sampler {
    seed: u64,
    n_drawn: u64,
    bans: Bans,
    constraint: Option<Matcher>,
    custom: Option<u64>,
    offered: Vec<f32>,
    telling: Telling,
    prompt: Arc<[Token]>,
}

impl Sampler {
    pub(super) fn new(
        config: &SimConfig,
        sampling: &SamplingParams,
        prompt: &Arc<[Token]>,
        stop_tokens: &[Token],
    ) -> Result<Self, Error> {
        let seed = if sampling.temp > 0.0 { sampling.seed } else { 0 };
        let constraint = matcher(sampling, &SimTokenizer::new(config))?;
        let mut bans = Bans::new(sampling, prompt);
        bans.delay(sampling, &[tokenizer::EOG], stop_tokens);
        Ok(Self {
            seed,
            n_drawn: 0,
            bans,
            constraint,
            custom: sampling.custom,
            offered: Vec::new(),
            telling: sampling.telling,
            prompt: Arc::clone(prompt),
        })
    }

    /// The next token (none where a sampler of the caller's own draws it), behind `last`, of a sequence with this hash.
    pub(super) fn draw(&mut self, context: u64, last: Token, config: &SimConfig) -> Result<Option<Token>, Error> {
        self.n_drawn += 1;
        let hash = mix(context ^ mix(self.seed.wrapping_add(self.n_drawn)));
        let tokens = (0..TRIES).map(|n| tokenizer::next_token(hash.wrapping_add(n << 40), last, config));
        let first = (hash % u64::from(config.n_vocab)) as Token;
        let mut any = tokens.chain(first..config.n_vocab as Token).chain(0..first);
        let token = any.find(|token| !self.bans.holds(*token) && self.allows(*token)).unwrap_or(tokenizer::EOG);
        if self.custom.is_some() {
            self.offered = vec![0.0; config.n_vocab as usize];
            self.offered[token as usize] = 10.0;
            self.bans.apply(&mut self.offered);
            let masked = self.constraint.as_mut().map_or(Ok(()), |constraint| constraint.mask(&mut self.offered));
            return masked.map(|()| None).map_err(Error::Grammar);
        }
        self.accept(token).map(Some)
    }

    fn accept(&mut self, token: Token) -> Result<Token, Error> {
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token).map_err(Error::Grammar)?;
        }
        self.bans.accept(token);
        Ok(token)
    }

    /// What a sampler of the caller's own is to draw from: the token that would be drawn has the largest logit.
    pub(super) fn offered(&self) -> Option<(u64, Vec<f32>)> {
        (!self.offered.is_empty()).then_some((self.custom?, self.offered.clone()))
    }

    /// What it answered.
    pub(super) fn settle(&mut self, pick: Pick) -> Result<Token, Error> {
        let offered = std::mem::take(&mut self.offered);
        let token = match pick {
            Pick::Token(token) => Some(token),
            Pick::Logits(logits) => {
                let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
                best.map(|token| token as Token)
            }
        };
        let is_there = |token: &Token| offered.get(*token as usize).is_some_and(|logit| *logit > f32::NEG_INFINITY);
        let token = token.filter(is_there);
        self.accept(token.ok_or_else(|| Error::Inference("the sampler drew what may not be drawn".into()))?)
    }

    fn allows(&mut self, token: Token) -> bool {
        self.constraint.as_mut().is_none_or(|constraint| constraint.allows(token) == Ok(true))
    }

    /// Whether its grammar lets nothing follow.
    pub(super) fn is_over(&self) -> bool {
        self.constraint.as_ref().is_some_and(Matcher::is_over)
    }

    /// What is told of a drawn token, where the request wants to know: made up, but the same each time.
    pub(super) fn told(&self, token: Token) -> Option<Box<TokenLogprobs>> {
        self.telling.drawn.map(|n_top| Box::new(make_up(token, n_top)))
    }

    /// What is told of a token of the prompt.
    pub(super) fn score(&self, pos: u32) -> Option<TokenLogprobs> {
        let n_top = self.telling.prompt?;
        self.prompt.get(pos as usize).map(|token| make_up(*token, n_top))
    }
}

/// A token is half as likely as the one before it, by their numbers.
fn make_up(token: Token, n_top: u32) -> TokenLogprobs {
    let one = |token: Token| {
        let logprob = -(token.max(0) as f32 + 1.0) * std::f32::consts::LN_2;
        Logprob { token, logprob, piece: tokenizer::piece(token) }
    };
    let top = (0..n_top as Token).map(one).collect();
    TokenLogprobs { own: one(token), rank: token.max(0) as u32 + 1, top }
}

impl SimBackend {
    /// Draw from the rows of one request, as long as what is drawn is what was drafted.
    pub(super) fn draw_all(&mut self, rows: &[Row]) -> RowOutcome {
        let request = rows[0].request;
        let mut drawn: Vec<Drawn> = Vec::with_capacity(rows.len());
        for row in rows {
            if drawn.last().is_some_and(|last| !last.leads_to(row)) {
                break;
            }
            match self.draw(row) {
                Ok(Some(next)) => drawn.push(next),
                Err(error) if drawn.is_empty() => return RowOutcome { request, drawn: Err(error) },
                // What fails behind another token is drawn again with the next pass.
                Ok(None) | Err(_) => break,
            }
        }
        RowOutcome { request, drawn: Ok(drawn) }
    }

    fn draw(&mut self, row: &Row) -> Result<Option<Drawn>, Error> {
        if self.strikes(|fault| *fault == Fault::FailDraw, |rates| rates.fail_draw) {
            return Err(Error::Inference("injected: the sampler failed".into()));
        }
        let context = self.cells.hash_at(row.seq, row.pos);
        let sampler = self.samplers.get_mut(&row.request);
        let sampler = sampler.ok_or_else(|| Error::Inference("no sampler".into()))?;
        let drawn = sampler.draw(context, row.token, &self.config)?;
        Ok(drawn.map(|token| drawn_by(sampler, token)))
    }

    /// What is told of a prompt's next token.
    pub(super) fn score(&self, row: &Row) -> Option<Scored> {
        let pos = row.pos + 1;
        let told = self.samplers.get(&row.request)?.score(pos)?;
        Some(Scored { request: row.request, pos, told })
    }
}

/// A token as the core takes it.
pub(super) fn drawn_by(sampler: &Sampler, token: Token) -> Drawn {
    let (piece, is_eog) = (tokenizer::piece(token), token == tokenizer::EOG);
    Drawn { token, piece, is_eog, is_last: sampler.is_over(), told: sampler.told(token) }
}
