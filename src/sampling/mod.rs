//! Draws tokens straight from the logits, as llama.cpp's chain would: penalties, top-k, top-p, min-p, temperature, then
//! the draw. Free of llama.cpp.
//!
//! A row is read once or twice and never copied: what top-p, min-p and the draw look at are the few candidates that
//! top-k left. Equal logits are ordered by token, lowest first.

mod bans;
mod candidate;
mod penalties;
mod pool;
mod rng;
mod row;

pub(crate) use bans::Bans;
pub use pool::Pool;

use crate::core::{SamplingParams, Token};
use candidate::Candidate;
use penalties::Penalties;
use rng::Rng;
use row::{Row, pick, weight};

/// Candidates that top-p looks at first where top-k leaves all.
const FIRST_LOOK: usize = 256;

/// Draws the tokens of one request. Advances with each token that it draws.
#[derive(Clone, Debug)]
pub struct Sampler {
    temp: f32,
    /// Candidates that are drawn from; none means all.
    top_k: Option<usize>,
    top_p: f32,
    min_p: f32,
    n_vocab: usize,
    bans: Bans,
    penalties: Option<Penalties>,
    rng: Rng,
    scratch: Scratch,
}

/// Buffers that are reused from row to row.
#[derive(Clone, Debug, Default)]
struct Scratch {
    maxima: Vec<f32>,
    selection: Vec<f32>,
    sums: Vec<f64>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// The sampler of a request that starts with `prompt`, which penalties look at. Its random stream depends on the
    /// seed alone.
    pub fn new(params: &SamplingParams, prompt: &[Token], n_vocab: u32) -> Self {
        let (n_vocab, top_k) = (n_vocab as usize, params.top_k as usize);
        Self {
            temp: params.temp,
            top_k: (1..n_vocab).contains(&top_k).then_some(top_k),
            top_p: params.top_p,
            min_p: params.min_p,
            n_vocab,
            bans: Bans::default(),
            penalties: Penalties::new(params, prompt),
            rng: Rng::new(params.seed),
            scratch: Scratch::default(),
        }
    }

    /// Let it not draw what ends a generation before it may end: the vocabulary's `eog` tokens, and those that the caller
    /// named.
    #[must_use]
    pub fn banning(self, params: &SamplingParams, eog: &[Token], named: &[Token]) -> Self {
        Self { bans: Bans::new(params, eog, named), ..self }
    }

    /// Draw a token from one row of logits, which bans and penalties edit in place, and remember it.
    ///
    /// # Errors
    /// Where the row has another length than the vocabulary, or no token that can be drawn: all are NaN or -inf.
    pub fn draw(&mut self, logits: &mut [f32]) -> Result<Token, String> {
        if logits.len() != self.n_vocab {
            return Err(format!("a row of {} logits for a vocabulary of {} tokens", logits.len(), self.n_vocab));
        }
        self.bans.apply(logits);
        if let Some(penalties) = &self.penalties {
            penalties.apply(logits);
        }
        let token =
            self.choose(logits).ok_or("the model gave no token that can be drawn: all logits are NaN or -inf")?;
        let token = token as Token;
        self.bans.accept();
        if let Some(penalties) = &mut self.penalties {
            penalties.accept(token);
        }
        Ok(token)
    }

    fn choose(&mut self, logits: &[f32]) -> Option<usize> {
        let Scratch { maxima, selection, sums, candidates } = &mut self.scratch;
        let row = Row::measure(logits, maxima)?;
        if self.temp <= 0.0 {
            return Some(row.argmax());
        }
        // One number for each token drawn, needed or not, so that the stream does not depend on the logits.
        let uniform = self.rng.uniform();
        let floor = if self.min_p > 0.0 { row.max + self.min_p.ln() } else { f32::NEG_INFINITY };
        match self.top_k {
            Some(k) => {
                row.best(k, f32::NEG_INFINITY, selection, candidates);
                if self.top_p < 1.0 {
                    let mass: f64 = candidates.iter().map(|c| f64::from(weight(c.logit(), row.max, 1.0))).sum();
                    candidate::keep_mass(candidates, row.max, f64::from(self.top_p) * mass);
                }
            }
            None if self.top_p < 1.0 => nucleus(&row, self.top_p, floor, selection, candidates),
            None => return Some(row.draw(floor, self.temp, uniform, sums)),
        }
        candidates.retain(|candidate| candidate.logit() >= floor);
        candidates.sort_unstable();
        let weigh = |candidate: &Candidate| weight(candidate.logit(), row.max, 1.0 / self.temp);
        let total: f64 = candidates.iter().map(|candidate| f64::from(weigh(candidate))).sum();
        let drawn = pick(candidates.iter().map(weigh), uniform * total)?;
        Some(candidates[drawn].token())
    }
}

/// The candidates that top-p leaves of a whole row, but for those below `floor`, which min-p takes away anyway.
///
/// Looks at a few of the best first, and at more only while they weigh too little.
fn nucleus(row: &Row<'_>, top_p: f32, floor: f32, selection: &mut Vec<f32>, candidates: &mut Vec<Candidate>) {
    let target = f64::from(top_p) * row.mass();
    let mut look = FIRST_LOOK;
    loop {
        row.best(look, floor, selection, candidates);
        let mass: f64 = candidates.iter().map(|c| f64::from(weight(c.logit(), row.max, 1.0))).sum();
        if mass >= target || candidates.len() < look {
            break;
        }
        look *= 8;
    }
    candidate::keep_mass(candidates, row.max, target);
}
