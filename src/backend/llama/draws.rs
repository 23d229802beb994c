//! The samplers of the requests, and what they draw from the rows of a pass.

use super::model::Model;
use crate::backend::{Pick, Tokenizer, matcher};
use crate::core::{Drawn, Logprob, RequestId, Row, RowOutcome, SamplingParams, Scored, Token, TokenLogprobs};
use crate::error::Error;
use crate::sampling::{Pool, Sampler, Told};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A request's sampler, and its prompt, for what is told of that.
struct Drawing {
    sampler: Sampler,
    prompt: Arc<[Token]>,
    /// Control tokens that are text here.
    shown: Option<Arc<[Token]>>,
    /// Who draws in the sampler's place.
    custom: Option<u64>,
    /// What was offered to whom that is.
    offered: Vec<f32>,
}

/// The samplers of all requests that are begun.
pub(super) struct Draws {
    model: Arc<Model>,
    of: BTreeMap<RequestId, Drawing>,
    pool: Pool,
}

impl Draws {
    /// No samplers yet; so many threads will draw.
    pub(super) fn new(model: Arc<Model>, n_threads: usize) -> Self {
        Self { model, of: BTreeMap::new(), pool: Pool::new(n_threads) }
    }

    /// Make a request's sampler.
    pub(super) fn open(
        &mut self,
        request: RequestId,
        params: &SamplingParams,
        prompt: &Arc<[Token]>,
        stop_tokens: &[Token],
    ) -> Result<(), Error> {
        let model = &self.model;
        let sampler = Sampler::new(params, prompt, model.n_vocab());
        let sampler = sampler.banning(params, model.eog(), stop_tokens, model.suppressed());
        let sampler = sampler.constrained(matcher(params, &**model)?);
        self.of.insert(
            request,
            Drawing {
                sampler,
                prompt: Arc::clone(prompt),
                shown: params.shown.clone(),
                custom: params.custom,
                offered: Vec::new(),
            },
        );
        Ok(())
    }

    /// Drop it.
    pub(super) fn close(&mut self, request: RequestId) {
        self.of.remove(&request);
    }

    /// Draw from each row that draws, in parallel, and score what is scored. `logits` has a row of the vocabulary's length
    /// for each of both, in order.
    pub(super) fn draw(&mut self, rows: &[Row], logits: &mut [f32]) -> (Vec<RowOutcome>, Vec<Scored>) {
        let model = &*self.model;
        let n_vocab = model.n_vocab() as usize;
        let (mut drawing, mut scored, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for (row, logits) in rows.iter().filter(|row| row.is_looked_at()).zip(logits.chunks_exact_mut(n_vocab)) {
            if row.draws {
                match self.of.get_mut(&row.request).filter(|of| of.custom.is_some()) {
                    Some(of) => {
                        let offered = of.sampler.offer(logits).map(|()| of.offered = logits.to_vec());
                        others.push(RowOutcome { request: row.request, drawn: offered.map(|()| Vec::new()) });
                    }
                    None => drawing.push((row.request, logits)),
                }
            } else if let Some(of) = self.of.get_mut(&row.request) {
                let pos = row.pos + 1;
                let told = of.prompt.get(pos as usize).map(|token| of.sampler.score(logits, *token));
                if let Some(Ok(told)) = told {
                    scored.push(Scored { request: row.request, pos, told: with_text(model, told) });
                }
            }
        }
        let requests: Vec<RequestId> = drawing.iter().map(|(request, _)| *request).collect();
        let drawn = draw(&mut self.of, &self.pool, drawing);
        let outcome = |(request, drawn): (RequestId, Result<One, Error>)| {
            let shown = self.of.get(&request).and_then(|of| of.shown.as_deref());
            let drawn = drawn.map(|one| vec![one.into_drawn(model, shown)]);
            RowOutcome { request, drawn }
        };
        let outcomes = requests.into_iter().zip(drawn).map(outcome);
        (outcomes.chain(others).collect(), scored)
    }

    /// What a sampler of the caller's own is to draw from.
    pub(super) fn offered(&self, request: RequestId) -> Option<(u64, Vec<f32>)> {
        let of = self.of.get(&request)?;
        (!of.offered.is_empty()).then_some((of.custom?, of.offered.clone()))
    }

    /// What it answered.
    pub(super) fn settle(&mut self, request: RequestId, pick: Pick) -> Result<Drawn, Error> {
        let of = self.of.get_mut(&request).filter(|of| !of.offered.is_empty());
        let of = of.ok_or_else(|| Error::Inference("nothing was offered to this sampler".into()))?;
        let offered = std::mem::take(&mut of.offered);
        let token = match pick {
            Pick::Token(token) => of.sampler.settle(Some(token), &offered),
            Pick::Logits(logits) => of.sampler.settle(None, &logits),
        };
        let one = One { token: token?, told: of.sampler.take_told(), is_last: of.sampler.is_over() };
        Ok(one.into_drawn(&self.model, of.shown.as_deref()))
    }
}

/// What came of one row.
#[derive(Debug, PartialEq)]
struct One {
    token: Token,
    told: Option<Told>,
    is_last: bool,
}

impl One {
    /// With the token's text: none for control tokens, but for those that are `shown`.
    fn into_drawn(self, model: &Model, shown: Option<&[Token]>) -> Drawn {
        let Self { token, told, is_last } = self;
        let is_shown = shown.is_some_and(|shown| shown.binary_search(&token).is_ok());
        let told = told.map(|told| Box::new(with_text(model, told)));
        Drawn { token, piece: model.piece(token, is_shown), is_eog: model.is_eog(token), is_last, told }
    }
}

/// What is told of a token, with the text of all tokens in it.
fn with_text(model: &Model, told: Told) -> TokenLogprobs {
    let one = |(token, logprob): (Token, f32)| Logprob { token, logprob, piece: model.piece(token, true) };
    TokenLogprobs {
        own: one((told.token, told.logprob)),
        rank: told.rank,
        top: told.top.into_iter().map(one).collect(),
    }
}

/// Draw from rows in parallel, each for its request.
fn draw(
    of: &mut BTreeMap<RequestId, Drawing>,
    pool: &Pool,
    rows: Vec<(RequestId, &mut [f32])>,
) -> Vec<Result<One, Error>> {
    let mut order: Vec<(RequestId, usize)> = rows.iter().enumerate().map(|(i, (request, _))| (*request, i)).collect();
    order.sort_unstable();
    let mut owners: Vec<Option<&mut Sampler>> = order.iter().map(|_| None).collect();
    for (request, drawing) in of.iter_mut() {
        if let Ok(i) = order.binary_search_by_key(request, |(request, _)| *request) {
            owners[order[i].1] = Some(&mut drawing.sampler);
        }
    }
    let mut drawn: Vec<Result<One, Error>> = Vec::with_capacity(owners.len());
    let mut work: Vec<(&mut Sampler, &mut [f32])> = Vec::with_capacity(owners.len());
    for (sampler, (_, row)) in owners.into_iter().zip(rows) {
        drawn.push(match sampler {
            None => Err(Error::Inference("the request has no sampler".into())),
            Some(_) if row.iter().all(|logit| logit.is_nan()) => {
                Err(Error::Inference("the model computed no numbers (NaN)".into()))
            }
            Some(sampler) => {
                work.push((sampler, row));
                Ok(One { token: 0, told: None, is_last: false })
            }
        });
    }
    let tokens = pool.draw(&mut work);
    let told = |(sampler, _): (&mut Sampler, &mut [f32])| (sampler.take_told(), sampler.is_over());
    let mut told = work.into_iter().map(told).zip(tokens);
    for slot in drawn.iter_mut().filter(|slot| slot.is_ok()) {
        *slot = match told.next() {
            Some(((told, is_last), token)) => token.map(|token| One { token, told, is_last }),
            None => Err(Error::Inference("the sampler gave no token".into())),
        };
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_no_number_fails_its_request_and_no_other() {
        let greedy = SamplingParams { temp: 0.0, ..SamplingParams::OFF };
        let drawing = || Drawing {
            sampler: Sampler::new(&greedy, &[], 3),
            prompt: Arc::from([]),
            shown: None,
            custom: None,
            offered: Vec::new(),
        };
        let mut of: BTreeMap<_, _> = [3, 5, 7, 9].map(|id| (RequestId(id), drawing())).into_iter().collect();
        let mut logits = [[0.0, 2.0, 1.0], [f32::NAN; 3], [0.0, 1.0, 5.0]];
        // Requests come in the order of their sequences, not of their numbers.
        let rows = [9, 3, 5].map(RequestId).into_iter().zip(logits.iter_mut().map(|row| &mut row[..])).collect();
        let drawn = draw(&mut of, &Pool::new(1), rows);
        assert!(drawn[0].as_ref().is_ok_and(|one| one.token == 1));
        assert!(drawn[1].as_ref().is_err_and(|reason| reason.to_string().contains("NaN")));
        assert!(drawn[2].as_ref().is_ok_and(|one| one.token == 2));
    }
}
