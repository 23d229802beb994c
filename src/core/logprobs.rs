//! How likely tokens were: what is told where a caller asks for it.

use super::ids::Token;
use serde::{Deserialize, Serialize};

/// What a request wants to know of each token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Telling {
    /// Of those that are drawn: so many of the likeliest beside it; none means nothing.
    pub drawn: Option<u32>,
    /// Of those of the prompt.
    pub prompt: Option<u32>,
    /// Of what the chain left, instead of what the model gave.
    pub after_sampling: bool,
}

impl Telling {
    /// Nothing is told.
    pub const NOTHING: Self = Self { drawn: None, prompt: None, after_sampling: false };
}

/// A token, and how likely it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Logprob {
    /// The token.
    pub token: Token,
    /// The natural logarithm of its probability; -inf where it could not be drawn.
    pub logprob: f32,
    /// Its bytes; the name of a control token.
    pub piece: Vec<u8>,
}

/// How likely one token of a text was, and what would have been likelier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprobs {
    /// The token itself.
    pub own: Logprob,
    /// How many tokens were at least as likely, from 1.
    pub rank: u32,
    /// The likeliest ones, likeliest first.
    pub top: Vec<Logprob>,
}

/// A token of a prompt that a pass had the logits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    /// Whose prompt.
    pub request: super::ids::RequestId,
    /// Where in the prompt.
    pub pos: u32,
    /// How likely it was.
    pub told: TokenLogprobs,
}
