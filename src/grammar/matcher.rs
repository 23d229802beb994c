//! One request's place in a grammar.

use super::compiler::{Grammar, tidy};
use super::guarded;
use super::lazy::Triggers;
use crate::core::Token;
use llguidance::TokenParser;
use llguidance::toktrie::SimpleVob;

/// One request's place in a grammar.
///
/// After an error it gives that error for ever: nothing is generated unconstrained.
#[derive(Clone)]
pub struct Matcher {
    grammar: Grammar,
    state: State,
}

#[derive(Clone)]
enum State {
    /// Everything is allowed until a trigger.
    Waiting(Triggers),
    /// The grammar holds.
    Bound(Box<TokenParser>),
    /// The answer was ended.
    Ended,
    Failed(String),
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match &self.state {
            State::Waiting(_) => "waiting",
            State::Bound(_) => "bound",
            State::Ended => "ended",
            State::Failed(reason) => reason,
        };
        f.debug_struct("Matcher").field("state", &state).finish_non_exhaustive()
    }
}

impl Matcher {
    /// At the start of a grammar.
    pub fn new(grammar: &Grammar) -> Self {
        Self { grammar: grammar.clone(), state: State::Bound(Box::new(grammar.parser())) }
    }

    /// Behind a text that the grammar begins with, and the prompt ends with.
    ///
    /// # Errors
    /// Where the grammar does not begin with it.
    pub fn after(grammar: &Grammar, text: &str) -> Result<Self, String> {
        let parser = begin(grammar, text.as_bytes())?;
        Ok(Self { grammar: grammar.clone(), state: State::Bound(Box::new(parser)) })
    }

    /// A grammar that holds from the first of these texts on, or behind it where that text is not `included`; everything
    /// is allowed before it.
    ///
    /// # Errors
    /// Where there is no trigger, or an empty one.
    pub fn lazy(grammar: &Grammar, triggers: Vec<String>, included: bool) -> Result<Self, String> {
        Ok(Self { grammar: grammar.clone(), state: State::Waiting(Triggers::new(triggers, included)?) })
    }

    /// Whether a token may be drawn now. Far cheaper than a mask.
    ///
    /// # Errors
    /// Where the grammar costs more than its bounds, or failed before.
    pub fn allows(&mut self, token: Token) -> Result<bool, String> {
        let vocabulary = self.grammar.vocabulary();
        match &mut self.state {
            State::Failed(reason) => Err(reason.clone()),
            State::Ended => Ok(vocabulary.is_eog(token)),
            State::Waiting(triggers) => {
                let fed = triggers.completed_by(vocabulary.bytes(token));
                Ok(fed.is_none_or(|fed| begin(&self.grammar, &fed).is_ok()))
            }
            State::Bound(parser) => {
                let result = if vocabulary.is_eog(token) {
                    guarded(|| Ok(may_end(parser)))
                } else {
                    vocabulary.in_trie(token).map_or(Ok(false), |token| guarded(|| allows(parser, token)))
                };
                self.or_fail(result)
            }
        }
    }

    /// A token that is not allowed was drawn: give -inf to all that are not, or, before a trigger, where each would have to
    /// be tried, to that one.
    ///
    /// # Errors
    /// As [`Self::mask`].
    pub fn refuse(&mut self, token: Token, logits: &mut [f32]) -> Result<(), String> {
        if !matches!(self.state, State::Waiting(_)) {
            return self.mask(logits);
        }
        if let Some(logit) = usize::try_from(token).ok().and_then(|token| logits.get_mut(token)) {
            *logit = f32::NEG_INFINITY;
        }
        Ok(())
    }

    /// Whether the text from which on the grammar holds has not come yet.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }

    /// Give -inf to each token that is not allowed.
    ///
    /// # Errors
    /// Where no token that is allowed could be drawn, the row is not one of the vocabulary, the grammar costs more than its
    /// bounds, or failed before. The row is then of no use.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        let vocabulary = self.grammar.vocabulary();
        if logits.len() != vocabulary.n_tokens() {
            return Err(format!(
                "a row of {} logits for a vocabulary of {} tokens",
                logits.len(),
                vocabulary.n_tokens()
            ));
        }
        let result = match &mut self.state {
            State::Failed(reason) => return Err(reason.clone()),
            State::Waiting(triggers) => {
                mask_false_starts(&self.grammar, triggers, logits);
                Ok(())
            }
            State::Ended => {
                self.keep_only(logits, None, true);
                Ok(())
            }
            State::Bound(parser) => {
                let allowed = guarded(|| allowed(parser));
                allowed.map(|allowed| {
                    let ends = allowed.is_allowed(vocabulary.end());
                    self.keep_only(logits, Some(&allowed), ends);
                })
            }
        };
        self.or_fail(result)?;
        if logits.iter().all(|logit| logit.is_nan() || *logit == f32::NEG_INFINITY) {
            return Err("the grammar allows no token that can be drawn: all logits would be -inf".into());
        }
        Ok(())
    }

    fn keep_only(&self, logits: &mut [f32], allowed: Option<&SimpleVob>, ends: bool) {
        let vocabulary = self.grammar.vocabulary();
        let eog = |logits: &[f32]| -> Vec<(usize, f32)> {
            let index = |token: &Token| usize::try_from(*token).ok();
            let known = vocabulary.eog().iter().filter_map(index);
            known.filter_map(|token| logits.get(token).map(|logit| (token, *logit))).collect()
        };
        let at = |token: u32| logits[token as usize];
        let ending = if ends { eog(logits) } else { Vec::new() };
        let twins = vocabulary.twins().iter().filter(|(_, first)| allowed.is_some_and(|set| set.is_allowed(*first)));
        let twins: Vec<_> = twins.map(|(twin, _)| (*twin as usize, at(*twin))).collect();
        match allowed {
            Some(allowed) => {
                for (block, bits) in logits.chunks_mut(32).zip(allowed.as_slice()) {
                    if *bits == u32::MAX {
                        continue;
                    }
                    for (bit, logit) in block.iter_mut().enumerate() {
                        if bits & (1 << bit) == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
            None => logits.fill(f32::NEG_INFINITY),
        }
        for (token, logit) in ending.into_iter().chain(twins) {
            logits[token] = logit;
        }
    }

    /// A token was drawn.
    ///
    /// # Errors
    /// Where it was not allowed, the grammar costs more than its bounds, or failed before.
    pub fn accept(&mut self, token: Token) -> Result<(), String> {
        let vocabulary = self.grammar.vocabulary();
        let ends = vocabulary.is_eog(token);
        let result = match &mut self.state {
            State::Failed(reason) => return Err(reason.clone()),
            State::Ended if ends => return Ok(()),
            State::Ended => Err("a token after the end of the answer".to_string()),
            State::Waiting(_) if ends => {
                self.state = State::Ended;
                return Ok(());
            }
            State::Waiting(triggers) => {
                let bytes = vocabulary.bytes(token);
                match triggers.completed_by(bytes) {
                    None => {
                        triggers.push(bytes);
                        Ok(())
                    }
                    Some(fed) => begin(&self.grammar, &fed).map(|parser| self.state = State::Bound(Box::new(parser))),
                }
            }
            State::Bound(parser) if ends => match guarded(|| Ok(may_end(parser))) {
                Ok(true) => {
                    self.state = State::Ended;
                    return Ok(());
                }
                Ok(false) => Err("the answer was ended before the grammar allows it".to_string()),
                Err(e) => Err(e),
            },
            State::Bound(parser) => {
                let in_trie = vocabulary.in_trie(token);
                let in_trie = in_trie.ok_or_else(|| format!("token {token} is no text: no grammar allows it"));
                in_trie.and_then(|token| guarded(|| accept(parser, token)))
            }
        };
        self.or_fail(result)
    }

    /// Whether nothing but the end may follow.
    pub fn is_over(&self) -> bool {
        match &self.state {
            State::Bound(parser) => parser.stopped(),
            State::Ended => true,
            State::Waiting(_) | State::Failed(_) => false,
        }
    }

    /// Remember a failure.
    fn or_fail<T>(&mut self, result: Result<T, String>) -> Result<T, String> {
        result.map_err(|e| {
            let reason = tidy(&e);
            self.state = State::Failed(reason.clone());
            reason
        })
    }
}

fn may_end(parser: &mut TokenParser) -> bool {
    parser.stopped() || parser.is_accepting()
}

fn allows(parser: &mut TokenParser, token: u32) -> Result<bool, String> {
    if parser.stopped() {
        return Ok(false);
    }
    let allowed = parser.validate_token(token).map_err(|e| format!("{e:#}"))?;
    // Out of its bounds it says no to everything.
    parser.parser.get_error().map_or(Ok(allowed), |e| Err(too_complex(&e.message())))
}

fn allowed(parser: &mut TokenParser) -> Result<SimpleVob, String> {
    if parser.stopped() {
        return Ok(parser.token_env.tok_trie().eos_token_set());
    }
    parser.compute_mask().map_err(|e| match parser.parser.get_error() {
        Some(e) => too_complex(&e.message()),
        None if parser.stop_reason().is_ok() => "the grammar allows no token of this vocabulary here".into(),
        None => format!("{e:#}"),
    })
}

fn accept(parser: &mut TokenParser, token: u32) -> Result<(), String> {
    if parser.stopped() {
        return Err("a token after the end of the answer".into());
    }
    parser.consume_token(token).map_err(|e| format!("{e:#}"))?;
    settle(parser)
}

/// See whether the answer is over.
fn settle(parser: &mut TokenParser) -> Result<(), String> {
    parser.check_stop().map_err(|e| format!("{e:#}"))?;
    parser.parser.get_error().map_or(Ok(()), |e| Err(too_complex(&e.message())))
}

fn too_complex(reason: &str) -> String {
    format!("the grammar is too complex here: {reason}")
}

/// A parser that was fed the text from a trigger on.
fn begin(grammar: &Grammar, fed: &[u8]) -> Result<TokenParser, String> {
    guarded(|| {
        let mut parser = grammar.parser();
        // Not as tokens: the text may begin within one.
        let fits = parser.parser.apply_token(fed, grammar.vocabulary().end());
        fits.map_err(|e| format!("the grammar does not begin with its trigger: {}", tidy(&format!("{e:#}"))))?;
        settle(&mut parser)?;
        Ok(parser)
    })
}

/// Tokens that complete a trigger and go on with what the grammar forbids.
fn mask_false_starts(grammar: &Grammar, triggers: &Triggers, logits: &mut [f32]) {
    let vocabulary = grammar.vocabulary();
    for (token, logit) in logits.iter_mut().enumerate() {
        let fed = triggers.completed_by(vocabulary.bytes(token as Token));
        if fed.is_some_and(|fed| begin(grammar, &fed).is_err()) {
            *logit = f32::NEG_INFINITY;
        }
    }
}
