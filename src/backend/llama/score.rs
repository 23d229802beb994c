//! Teacher forcing: how far each token of a text was from the likeliest one. The oracle of the tests on real models,
//! where equal text is none: the shapes of batches alone move the logits.

use super::batch::{Batch, flaw};
use super::context::{Context, Layout};
use super::logs;
use super::model::Model;
use crate::core::{RequestId, Row, SeqId, Token};
use crate::error::Error;
use crate::options::StartOptions;
use std::sync::Arc;

/// For each token after the first `n_prompt`, the largest logit at its place less its own: 0 where greedy decoding
/// would have chosen it. Computed alone, in a fresh context, `chunk` tokens at a time.
///
/// # Errors
/// [`Error::Prompt`] where the tokens are not of the vocabulary or too few; what making a context can raise;
/// [`Error::Inference`].
pub fn score(
    model: &Arc<Model>,
    options: &StartOptions,
    tokens: &[Token],
    n_prompt: usize,
    chunk: usize,
) -> Result<Vec<f32>, Error> {
    if n_prompt == 0 || n_prompt > tokens.len() {
        return Err(Error::Prompt(format!("{n_prompt} of {} tokens cannot be the prompt", tokens.len())));
    }
    let chunk = chunk.clamp(1, options.n_ubatch as usize);
    let n_ctx = (tokens.len() as u32).next_multiple_of(256);
    let n_rows = chunk as u32;
    let layout = Layout {
        n_ctx,
        n_batch: n_rows,
        n_ubatch: n_rows,
        n_seq_max: 1,
        n_outputs: n_rows,
        unified: true,
        embeds: false,
    };
    let mut context = Context::new(Arc::clone(model), options, &layout)?;
    if context.memory().is_none() {
        return Err(Error::ModelLoad("this model does not generate text".into()));
    }
    let bounds = context.bounds(&layout);
    let mut batch = Batch::new(chunk);
    let mut gaps = Vec::with_capacity(tokens.len() - n_prompt);
    let rows: Vec<Row> = tokens
        .iter()
        .enumerate()
        .map(|(i, token)| Row {
            request: RequestId(0),
            seq: SeqId(0),
            pos: i as u32,
            token: *token,
            draws: i + 1 >= n_prompt && i + 1 < tokens.len(),
            scores: false,
        })
        .collect();
    for rows in rows.chunks(chunk) {
        if let Some(reason) = flaw(rows, &bounds) {
            return Err(Error::Prompt(reason));
        }
        logs::forget_errors();
        let (code, logits) = context.decode(&mut batch, rows).map_err(Error::Inference)?;
        if code != 0 {
            return Err(Error::Inference(logs::reason(&format!("llama_decode returned {code}"))));
        }
        let drawing = rows.iter().filter(|row| row.draws);
        for (row, logits) in drawing.zip(logits.chunks_exact(bounds.n_vocab as usize)) {
            let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            gaps.push(best - logits[tokens[row.pos as usize + 1] as usize]);
        }
    }
    Ok(gaps)
}
