//! Texts that become vectors: what is asked for, what is computed, and how the vectors of tokens become that of a text.
//!
//! Pooling is done here and not by llama.cpp, whose contexts know one way of it each and want a whole text in one ubatch
//! for that: so one context serves every way, and a text that is read causally may take several passes.

use super::ids::{RequestId, Token};
use crate::error::{Error, TextBound};
use crate::options::{Normalize, Pooling};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// What a backend can embed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbedLimits {
    /// Tokens of the longest text.
    pub n_text: u32,
    /// What longer ones do not fit into.
    pub bound: TextBound,
    /// Rows of one forward pass.
    pub n_batch: u32,
    /// Texts that may have rows in a pass.
    pub n_texts: u32,
    /// Values of a vector.
    pub n_embd: u32,
    /// Whether a text may be read in several passes: each token looks at those before it only.
    pub in_parts: bool,
    /// The model's own pooling; [`Pooling::Auto`] where it has one that gives no embedding.
    pub pooling: Pooling,
}

/// What a request for embeddings asks for, in the place of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Embed {
    /// The tokens of each text.
    pub texts: Arc<[Arc<[Token]>]>,
    /// How the vectors of a text's tokens become one.
    pub pooling: Pooling,
    /// What a vector is divided by.
    pub normalize: Normalize,
}

/// A text, or a part of one, in a pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmbedPart {
    /// Whose text.
    pub request: RequestId,
    /// Which of its texts.
    pub index: u32,
    /// The part's first position.
    pub from: u32,
    /// Its tokens.
    pub tokens: Arc<[Token]>,
    /// Tokens of the whole text.
    pub n_text: u32,
    /// How its vectors become one; never [`Pooling::Auto`].
    pub pooling: Pooling,
}

impl EmbedPart {
    /// The position behind its last.
    pub fn end(&self) -> u32 {
        self.from + self.tokens.len() as u32
    }

    /// Whether the text ends with it.
    pub fn is_last(&self) -> bool {
        self.end() == self.n_text
    }
}

/// How a pass over texts ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum EmbedStatus {
    /// All rows were computed; a vector for each text that ends in the pass, in order, not normalised.
    Done(Vec<Vec<f32>>),
    /// It was aborted (2) or failed, and nothing is kept of it, nor of a text that was begun before.
    Failed {
        /// `llama_decode`'s code.
        code: i32,
        /// What is known of the reason.
        reason: String,
    },
    /// Texts cannot be computed at all now, for this reason.
    Refused(Error),
}

/// What came of a pass over texts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmbedOutcome {
    /// How it ended.
    pub status: EmbedStatus,
    /// Its length.
    pub eval: Duration,
}

/// The vectors of a request's texts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Embedded {
    /// One for each text, in order; of its tokens, one after the other, where those stay apart.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of each text.
    pub n_tokens: Vec<u32>,
    /// How the vectors of a text's tokens became one.
    pub pooling: Pooling,
}

/// The vectors of a text's tokens on their way to that of the text, over as many passes as it takes.
#[derive(Clone, Debug)]
pub struct Pool {
    pooling: Pooling,
    n_embd: usize,
    n_rows: u32,
    sums: Vec<f64>,
    values: Vec<f32>,
}

impl Pool {
    /// For vectors of so many values.
    ///
    /// # Panics
    /// For [`Pooling::Auto`], which has to be settled first.
    pub fn new(pooling: Pooling, n_embd: u32) -> Self {
        assert!(pooling != Pooling::Auto, "a pooling that is settled");
        Self { pooling, n_embd: n_embd as usize, n_rows: 0, sums: Vec::new(), values: Vec::new() }
    }

    /// The vectors of the text's next tokens, one after the other.
    pub fn add(&mut self, rows: &[f32]) {
        assert!(rows.len().is_multiple_of(self.n_embd), "whole vectors");
        for row in rows.chunks_exact(self.n_embd) {
            match self.pooling {
                Pooling::Mean => {
                    self.sums.resize(self.n_embd, 0.0);
                    self.sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
                }
                Pooling::Cls if self.n_rows > 0 => {}
                Pooling::Cls | Pooling::Last | Pooling::Auto => {
                    self.values.clear();
                    self.values.extend_from_slice(row);
                }
                Pooling::None => self.values.extend_from_slice(row),
            }
            self.n_rows += 1;
        }
    }

    /// The text's vector; those of its tokens, one after the other, where they stay apart.
    pub fn finish(self) -> Vec<f32> {
        if self.pooling == Pooling::Mean {
            let n = f64::from(self.n_rows.max(1));
            return self.sums.iter().map(|sum| (sum / n) as f32).collect();
        }
        self.values
    }
}

/// Divide each vector of `n_embd` values by its norm. One of zeros stays as it is.
pub fn normalize(values: &mut [f32], n_embd: u32, by: Normalize) {
    for vector in values.chunks_exact_mut(n_embd.max(1) as usize) {
        let norm = norm(vector, by);
        if norm > 0.0 && by.0 >= 0 {
            for value in vector {
                *value = (f64::from(*value) / norm) as f32;
            }
        }
    }
}

/// What llama.cpp divides by (`embd_normalize`).
fn norm(vector: &[f32], by: Normalize) -> f64 {
    let sizes = || vector.iter().map(|value| f64::from(*value).abs());
    let largest = sizes().fold(0.0, f64::max);
    match by.0 {
        ..0 => 1.0,
        0 => largest / 32760.0,
        1 => sizes().sum(),
        // By way of the largest: its powers alone may be beyond any number.
        p => {
            largest
                * sizes()
                    .map(|size| (size / largest.max(f64::MIN_POSITIVE)).powi(p))
                    .sum::<f64>()
                    .powf(1.0 / f64::from(p))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Normalize, Pool, Pooling, normalize};
    use proptest::prelude::*;

    fn pooled(pooling: Pooling, parts: &[&[f32]]) -> Vec<f32> {
        let mut pool = Pool::new(pooling, 2);
        for part in parts {
            pool.add(part);
        }
        pool.finish()
    }

    fn normalized(values: &[f32], by: i32) -> Vec<f32> {
        let mut values = values.to_vec();
        normalize(&mut values, 2, Normalize(by));
        values
    }

    #[test]
    fn each_pooling_is_what_it_says_however_the_text_is_cut() {
        let rows = [1.0, 2.0, 3.0, 5.0, 5.0, -1.0];
        for parts in [vec![&rows[..]], vec![&rows[..2], &rows[2..]], vec![&rows[..4], &[], &rows[4..]]] {
            assert_eq!(pooled(Pooling::Mean, &parts), [3.0, 2.0]);
            assert_eq!(pooled(Pooling::Cls, &parts), [1.0, 2.0]);
            assert_eq!(pooled(Pooling::Last, &parts), [5.0, -1.0]);
            assert_eq!(pooled(Pooling::None, &parts), rows);
        }
    }

    #[test]
    fn norms_are_those_of_llama_cpp() {
        assert_eq!(normalized(&[3.0, -4.0], -1), [3.0, -4.0]);
        assert_eq!(normalized(&[3.0, -4.0], 0), [24570.0, -32760.0]);
        assert_eq!(normalized(&[3.0, -1.0], 1), [0.75, -0.25]);
        assert_eq!(normalized(&[3.0, -4.0], 2), [0.6, -0.8]);
        assert_eq!(normalized(&[3.0, -4.0, 0.0, 0.0, 0.0, 2.0], 2), [0.6, -0.8, 0.0, 0.0, 0.0, 1.0]);
        assert_eq!(normalized(&[1e30, -1e30], 100), [0.993_092_5, -0.993_092_5]);
    }

    proptest! {
        #[test]
        fn a_p_norm_becomes_1(values in prop::collection::vec(-1e6f32..1e6, 2), p in 1i32..60) {
            prop_assume!(values.iter().any(|value| value.abs() > 1e-3));
            let norm = normalized(&values, p).iter().map(|value| f64::from(value.abs()).powi(p)).sum::<f64>();
            prop_assert!((norm - 1.0).abs() < 1e-3, "{norm}");
        }
    }
}
