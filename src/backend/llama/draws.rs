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

    /// Draw from the rows that draw, in parallel for each request, and score what is scored. `logits` has a row of the
    /// vocabulary's length for each of both, in order.
    pub(super) fn draw(&mut self, rows: &[Row], mut logits: &mut [f32]) -> (Vec<RowOutcome>, Vec<Scored>) {
        let model = &*self.model;
        let n_vocab = model.n_vocab() as usize;
        let (mut drawing, mut scored, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for rows in rows.chunk_by(Row::is_drawn_with).filter(|rows| rows[0].is_looked_at()) {
            let Some((own, rest)) = logits.split_at_mut_checked(rows.len() * n_vocab) else { break };
            logits = rest;
            let request = rows[0].request;
            if !rows[0].draws {
                scored.extend(self.of.get_mut(&request).into_iter().flat_map(|of| of.score(model, rows, own)));
                continue;
            }
            match self.of.get_mut(&request).filter(|of| of.custom.is_some()) {
                Some(of) => {
                    let offered = of.sampler.offer(own).map(|()| of.offered = own.to_vec());
                    others.push(RowOutcome { request, drawn: offered.map(|()| Vec::new()) });
                }
                None => drawing.push((rows, own)),
            }
        }
        let requests: Vec<RequestId> = drawing.iter().map(|(rows, _)| rows[0].request).collect();
        let drawn = draw(&mut self.of, &self.pool, drawing, |token| model.is_eog(token));
        let outcome = |(request, drawn): (RequestId, Result<Vec<One>, Error>)| {
            let shown = self.of.get(&request).and_then(|of| of.shown.as_deref());
            let drawn = drawn.map(|ones| ones.into_iter().map(|one| one.into_drawn(model, shown)).collect());
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

impl Drawing {
    /// What is told of the prompt's tokens behind these rows.
    fn score(&mut self, model: &Model, rows: &[Row], logits: &[f32]) -> Vec<Scored> {
        let n_vocab = logits.len() / rows.len();
        let one = |(row, logits): (&Row, &[f32])| {
            let pos = row.pos + 1;
            let told = self.sampler.score(logits, *self.prompt.get(pos as usize)?).ok()?;
            Some(Scored { request: row.request, pos, told: with_text(model, told) })
        };
        rows.iter().zip(logits.chunks_exact(n_vocab)).filter_map(one).collect()
    }
}

/// The rows of one request that draw, with their logits.
struct Job<'a> {
    sampler: &'a mut Sampler,
    rows: &'a [Row],
    logits: &'a mut [f32],
}

impl Job<'_> {
    /// Draw from the rows, as long as what is drawn is what was drafted. What fails behind another token is drawn again
    /// with the next pass.
    fn draw(&mut self, is_eog: impl Fn(Token) -> bool) -> Result<Vec<One>, Error> {
        let n_vocab = self.logits.len() / self.rows.len();
        let mut drawn: Vec<One> = Vec::with_capacity(1);
        for (row, logits) in self.rows.iter().zip(self.logits.chunks_exact_mut(n_vocab)) {
            if drawn.last().is_some_and(|last| last.token != row.token || last.is_last || is_eog(last.token)) {
                break;
            }
            match one(self.sampler, logits) {
                Ok(next) => drawn.push(next),
                Err(error) if drawn.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(drawn)
    }
}

fn one(sampler: &mut Sampler, logits: &mut [f32]) -> Result<One, Error> {
    if logits.iter().all(|logit| logit.is_nan()) {
        return Err(Error::Inference("the model computed no numbers (NaN)".into()));
    }
    let token = sampler.draw(logits)?;
    Ok(One { token, told: sampler.take_told(), is_last: sampler.is_over() })
}

/// Draw in parallel, each time from the rows of one request.
fn draw(
    of: &mut BTreeMap<RequestId, Drawing>,
    pool: &Pool,
    rows: Vec<(&[Row], &mut [f32])>,
    is_eog: impl Fn(Token) -> bool + Sync,
) -> Vec<Result<Vec<One>, Error>> {
    let request = |rows: &[Row]| rows[0].request;
    let mut order: Vec<(RequestId, usize)> = rows.iter().enumerate().map(|(i, (rows, _))| (request(rows), i)).collect();
    order.sort_unstable();
    let mut owners: Vec<Option<&mut Sampler>> = order.iter().map(|_| None).collect();
    for (request, drawing) in of.iter_mut() {
        if let Ok(i) = order.binary_search_by_key(request, |(request, _)| *request) {
            owners[order[i].1] = Some(&mut drawing.sampler);
        }
    }
    let n_logits = rows.iter().map(|(_, logits)| logits.len()).sum();
    let job = |(sampler, (rows, logits)): (Option<_>, _)| sampler.map(|sampler| Job { sampler, rows, logits });
    let mut jobs: Vec<Option<Job<'_>>> = owners.into_iter().zip(rows).map(job).collect();
    pool.each(&mut jobs, n_logits, |job| match job {
        Some(job) => job.draw(&is_eog),
        None => Err(Error::Inference("the request has no sampler".into())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::SeqId;

    fn drawing() -> Drawing {
        let greedy = SamplingParams { temp: 0.0, ..SamplingParams::OFF };
        Drawing {
            sampler: Sampler::new(&greedy, &[], 3),
            prompt: Arc::from([]),
            shown: None,
            custom: None,
            offered: Vec::new(),
        }
    }

    fn row(request: u64, pos: u32, token: Token) -> Row {
        Row { request: RequestId(request), seq: SeqId(0), pos, token, draws: true, scores: false }
    }

    #[test]
    fn a_row_that_is_no_number_fails_its_request_and_no_other() {
        let mut of: BTreeMap<_, _> = [3, 5, 7, 9].map(|id| (RequestId(id), drawing())).into_iter().collect();
        let mut logits = [[0.0, 2.0, 1.0], [f32::NAN; 3], [0.0, 1.0, 5.0]];
        // Requests come in the order of their sequences, not of their numbers.
        let rows = [9, 3, 5].map(|id| [row(id, 0, 0)]);
        let jobs = rows.iter().map(|row| &row[..]).zip(logits.iter_mut().map(|row| &mut row[..])).collect();
        let drawn = draw(&mut of, &Pool::new(1), jobs, |_| false);
        assert!(drawn[0].as_ref().is_ok_and(|ones| ones[0].token == 1));
        assert!(drawn[1].as_ref().is_err_and(|reason| reason.to_string().contains("NaN")));
        assert!(drawn[2].as_ref().is_ok_and(|ones| ones[0].token == 2));
    }

    /// What greedy draws give behind these drafts, where the likeliest tokens are these; -1 is a row without numbers.
    fn told(drafts: &[Token], likeliest: &[Token], eog: Token) -> Vec<Token> {
        let rows: Vec<Row> = (0..).zip(drafts).map(|(pos, token)| row(1, pos, *token)).collect();
        let number = |at: Token, best: Token| if best < 0 { f32::NAN } else { f32::from(u8::from(at == best)) };
        let mut logits: Vec<f32> = likeliest.iter().flat_map(|best| (0..3).map(|at| number(at, *best))).collect();
        let mut of = BTreeMap::from([(RequestId(1), drawing())]);
        let drawn = draw(&mut of, &Pool::new(1), vec![(&rows, &mut logits)], |token| token == eog);
        drawn[0].as_ref().map(|ones| ones.iter().map(|one| one.token).collect()).unwrap_or_default()
    }

    #[test]
    fn a_draft_is_drawn_from_as_long_as_it_is_what_is_drawn() {
        assert_eq!(told(&[0, 1, 2, 0], &[1, 2, 0, 1], 9), [1, 2, 0, 1]);
        assert_eq!(told(&[0, 1, 2, 0], &[1, 1, 0, 1], 9), [1, 1], "the second was not what was drafted");
        assert_eq!(told(&[0, 1, 2, 0], &[1, 2, 0, 1], 2), [1, 2], "nothing follows upon an end");
        assert_eq!(told(&[0, 1, 2], &[1, -1, 2], 9), [1], "what fails behind another token is drawn again");
    }
}
