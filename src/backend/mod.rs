//! What computes: the two traits that llama.cpp and the simulator implement.

#[cfg(feature = "llama")]
pub mod llama;
pub mod sim;

use crate::core::{DecodeOutcome, Limits, Op, OpResult, Row, Token};
use crate::error::Error;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Computes forward passes. Lives on the engine thread, made there and dropped there; hence not `Send`.
pub trait Backend {
    /// What it can hold, read back after it was made. Does not change.
    fn limits(&self) -> Limits;

    /// Carry out ops in order; one result for each.
    fn prepare(&mut self, ops: &[Op]) -> Vec<OpResult>;

    /// One forward pass over rows sorted by sequence and position, at most `n_batch` of them, then a draw from each
    /// row that draws.
    fn decode(&mut self, rows: &[Row]) -> DecodeOutcome;

    /// A flag that aborts a running pass when it is set; none where an abort would leave a sequence in doubt. The
    /// engine clears it before each pass.
    fn abort_flag(&self) -> Option<Arc<AtomicBool>> {
        None
    }
}

/// Text to tokens and back. Used from the callers' threads, beside a running pass.
pub trait Tokenizer: Send + Sync {
    /// Tokens of the vocabulary.
    fn n_vocab(&self) -> u32;

    /// Text to tokens.
    ///
    /// `add_special` adds BOS and EOS as the vocabulary says; `parse_special` reads the text of control tokens as
    /// those tokens.
    ///
    /// # Errors
    /// [`Error::Prompt`] where the text cannot be tokenised.
    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<Token>, Error>;

    /// The bytes of one token; none for a control token unless `special`.
    fn piece(&self, token: Token, special: bool) -> Vec<u8>;

    /// Whether the token ends a generation.
    fn is_eog(&self, token: Token) -> bool;
}
