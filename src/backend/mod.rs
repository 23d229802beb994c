//! What computes: the two traits that llama.cpp and the simulator implement.

#[cfg(feature = "llama")]
pub mod llama;
pub mod sim;

use crate::core::{
    Constraint, DecodeOutcome, Drawn, EmbedOutcome, EmbedPart, EmbedStatus, Limits, Op, OpResult, RequestId, Row, Token,
};
use crate::error::Error;
use crate::grammar::{Compiler, Grammar, GrammarSource, Matcher, Vocabulary};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Computes forward passes. Lives on the engine thread, made there and dropped there; hence not `Send`.
pub trait Backend {
    /// What it can hold, read back after it was made. Does not change.
    fn limits(&self) -> Limits;

    /// Carry out ops in order; one result for each.
    fn prepare(&mut self, ops: &[Op]) -> Vec<OpResult>;

    /// One forward pass over rows sorted by sequence and position, at most `n_batch` of them, then a draw from each
    /// row that draws.
    fn decode(&mut self, rows: &[Row]) -> DecodeOutcome;

    /// One forward pass over texts, or a part of one, whose vectors are wanted: at most `n_batch` rows of at most
    /// `n_texts` texts, or one text that is read whole. A part goes on from where the one before it ended; a text that
    /// begins forgets what was begun before it.
    fn embed(&mut self, parts: &[EmbedPart]) -> EmbedOutcome {
        let reason = Error::Unsupported(format!("{} texts cannot be embedded here", parts.len()));
        EmbedOutcome { status: EmbedStatus::Refused(reason), eval: Duration::ZERO }
    }

    /// The logits that a sampler of the caller's own is to draw from, for a row that drew nothing; and its number.
    fn offered(&self, request: RequestId) -> Option<(u64, Vec<f32>)> {
        let _ = request;
        None
    }

    /// What such a sampler answered, as a drawn token.
    ///
    /// # Errors
    /// Where the token may not be drawn, or there is none.
    fn settle(&mut self, request: RequestId, pick: Pick) -> Result<Drawn, Error> {
        let _ = pick;
        Err(Error::Inference(format!("request {request} has no sampler of its own")))
    }

    /// A flag that aborts a running pass when it is set; none where an abort would leave a sequence in doubt. The
    /// engine clears it before each pass.
    fn abort_flag(&self) -> Option<Arc<AtomicBool>> {
        None
    }
}

/// What a sampler of the caller's own answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Pick {
    /// This token.
    Token(Token),
    /// The chain is to draw from these logits.
    Logits(Vec<f32>),
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

    /// What an answer must look like, ready for samplers. Compiled once, and kept for a while.
    ///
    /// # Errors
    /// [`Error::Grammar`] where it is wrong, or costs too much.
    fn compile(&self, source: &GrammarSource) -> Result<Grammar, Error> {
        let _ = source;
        Err(Error::Grammar("this model has no vocabulary that a grammar could be over".into()))
    }
}

/// A request's place in its grammar, where it has one.
fn matcher(constraint: Option<&Constraint>, tokenizer: &dyn Tokenizer) -> Result<Option<Matcher>, Error> {
    let Some(constraint) = constraint else { return Ok(None) };
    let known = constraint.compiled.0.as_ref().and_then(|compiled| compiled.downcast_ref::<Grammar>());
    let grammar = known.map_or_else(|| tokenizer.compile(&constraint.source), |known| Ok(known.clone()))?;
    if constraint.triggers.is_empty() {
        return Ok(Some(Matcher::new(&grammar)));
    }
    Matcher::lazy(&grammar, constraint.triggers.clone()).map(Some).map_err(Error::Grammar)
}

/// A grammar compiler over a tokenizer's vocabulary.
fn compiler(tokenizer: &dyn Tokenizer) -> Result<Compiler, Error> {
    let all = 0..tokenizer.n_vocab() as Token;
    let eog: Vec<Token> = all.clone().filter(|token| tokenizer.is_eog(*token)).collect();
    // A control token has no bytes of its own.
    let tokens = all.map(|token| tokenizer.piece(token, false)).map(|piece| (piece.clone(), piece.is_empty()));
    Vocabulary::new(tokens, &eog).and_then(Compiler::new).map_err(Error::Grammar)
}
