//! What computes: the two traits that llama.cpp and the simulator implement.

#[cfg(feature = "llama")]
pub mod llama;
#[cfg(unix)]
pub mod remote;
pub mod sim;

use crate::core::{
    Begin, DecodeOutcome, Drawn, EmbedOutcome, EmbedPart, EmbedStatus, Limits, Op, OpResult, RequestId, Row,
    SamplingParams, Token,
};
use crate::error::Error;
use crate::grammar::{Compiler, Grammar, GrammarSource, Matcher, Vocabulary};
pub use crate::rpc::Sight;
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
    /// row that draws; of several of a request only as long as a draw gives the next one's token.
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

    /// Have somebody told, from any thread, of what happens to it while nobody looks.
    fn observe(&mut self, observer: Arc<dyn Fn(Sign) + Send + Sync>) {
        drop(observer);
    }

    /// Let it ask, while it waits for what may never come, whether its work is still wanted: once it is not, it is lost.
    fn ask_whether_wanted(&mut self, is_wanted: IsWanted) {
        drop(is_wanted);
    }

    /// Why it is gone with all that it held, if it is: what it gave last then counts for nothing, and it is of no more use.
    fn loss(&mut self) -> Option<Error> {
        None
    }
}

/// Whether anybody has use for a backend still.
pub type IsWanted = Arc<dyn Fn() -> bool + Send + Sync>;

/// What may happen to a backend beside its works.
#[derive(Clone, Debug, PartialEq)]
pub enum Sign {
    /// It may be gone: [`Backend::loss`] says.
    Lost,
    /// A work has taken so long, and goes on; how the servers are that it computes with, where they were looked at.
    Slow(Duration, Vec<Sight>),
    /// The work that was slow is over, after so long.
    SlowOver(Duration),
    /// How its servers are, once it is gone.
    Seen(Vec<Sight>),
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

    /// What an answer must look like, ready for samplers. Compiled once, and kept for a while. Control tokens among
    /// `shown` are the text that they spell.
    ///
    /// # Errors
    /// [`Error::Grammar`] where it is wrong, or costs too much.
    fn compile(&self, source: &GrammarSource, shown: &[Token]) -> Result<Grammar, Error> {
        let _ = (source, shown);
        Err(Error::Grammar("this model has no vocabulary that a grammar could be over".into()))
    }
}

/// A request's place in its grammar, where it has one.
fn matcher(params: &SamplingParams, tokenizer: &dyn Tokenizer) -> Result<Option<Matcher>, Error> {
    let Some(constraint) = params.constraint.as_deref() else { return Ok(None) };
    let shown = params.shown.as_deref().unwrap_or_default();
    let known = constraint.compiled.0.as_ref().and_then(|compiled| compiled.downcast_ref::<Grammar>());
    let grammar = known.map_or_else(|| tokenizer.compile(&constraint.source, shown), |known| Ok(known.clone()))?;
    let matcher = match &constraint.begin {
        Begin::After(text) if text.is_empty() => Ok(Matcher::new(&grammar)),
        Begin::After(text) => Matcher::after(&grammar, text),
        Begin::With(triggers) => Matcher::lazy(&grammar, triggers.clone(), true),
        Begin::Behind(triggers) => Matcher::lazy(&grammar, triggers.clone(), false),
    };
    matcher.map(Some).map_err(Error::Grammar)
}

/// A grammar compiler over a tokenizer's vocabulary.
fn compiler(tokenizer: &dyn Tokenizer, shown: &[Token]) -> Result<Compiler, Error> {
    let all = 0..tokenizer.n_vocab() as Token;
    let eog: Vec<Token> = all.clone().filter(|token| tokenizer.is_eog(*token)).collect();
    // A control token that is not shown has no bytes of its own.
    let tokens = all.map(|token| tokenizer.piece(token, shown.contains(&token)));
    let tokens = tokens.map(|piece| (piece.clone(), piece.is_empty()));
    Vocabulary::new(tokens, &eog).and_then(Compiler::new).map_err(Error::Grammar)
}
