//! Compiles grammars, and keeps what it compiled.

use super::guarded;
use super::vocabulary::Vocabulary;
use crate::options::GrammarSource;
use llguidance::api::{GrammarInit, ParserLimits};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, ParserFactory, TokenParser};
use std::sync::{Arc, Mutex, PoisonError};

/// Grammars kept, at most.
const MAX_KEPT: usize = 128;

/// Bytes of their sources, at most.
const MAX_KEPT_BYTES: usize = 4 << 20;

/// Of the thread that compiles. Only what is used of it takes memory.
const STACK_BYTES: usize = 128 << 20;

/// What a grammar may cost. Each is a bound on work or memory, so that a hostile one harms its own request alone.
fn limits() -> ParserLimits {
    ParserLimits {
        // The branching of one position, and of right recursion: its depth.
        max_items_in_row: 2000,
        // Some 20 ms for what a lexer is built from.
        initial_lexer_fuel: 1_000_000,
        // Some 15 ms for the automaton states of one mask.
        step_lexer_fuel: 200_000,
        // Some 50 ms for the parser's items of one mask, where a grammar has to be read character by character.
        step_max_items: 1_000_000,
        // One to two kB each.
        max_lexer_states: 50_000,
        max_grammar_size: 100_000,
        // It walks the whole vocabulary at compile time.
        precompute_large_lexemes: false,
        // They would quote the whole grammar.
        verbose_errors: false,
    }
}

/// Compiles grammars for one model. Shared by all requests and threads.
pub struct Compiler {
    factory: ParserFactory,
    vocabulary: Vocabulary,
    /// The least recently used first.
    kept: Mutex<Vec<(GrammarSource, Grammar)>>,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

impl Compiler {
    /// A compiler for a vocabulary. It sorts the vocabulary into slices, which takes a moment.
    ///
    /// # Errors
    /// Where llguidance cannot use the vocabulary.
    pub fn new(vocabulary: Vocabulary) -> Result<Self, String> {
        let factory = guarded(|| {
            let slices = SlicedBiasComputer::general_slices();
            ParserFactory::new(vocabulary.env(), InferenceCapabilities::default(), &slices).map_err(|e| e.to_string())
        })?;
        Ok(Self { factory, vocabulary, kept: Mutex::default() })
    }

    /// The grammar of a source: the one that is kept, or a new one.
    ///
    /// # Errors
    /// The reason why there is none: a fault in the source, with the line and column or the JSON path where that is
    /// known, what cannot be enforced, or what costs too much.
    pub fn compile(&self, source: &GrammarSource) -> Result<Grammar, String> {
        if let Some(grammar) = self.find(source) {
            return Ok(grammar);
        }
        let prototype = on_a_large_stack(|| self.parser(source)).map_err(|e| tidy(&e))?;
        let inner = Inner { prototype: Mutex::new(prototype), vocabulary: self.vocabulary.clone() };
        let grammar = Grammar(Arc::new(inner));
        self.keep(source, &grammar);
        Ok(grammar)
    }

    fn parser(&self, source: &GrammarSource) -> Result<TokenParser, String> {
        let init = GrammarInit::Serialized(source.translate()?);
        let capabilities = InferenceCapabilities::default();
        let parser = self.factory.create_parser_from_init_ext(init, Logger::new(0, 0), capabilities, limits());
        let mut parser = parser.map_err(|e| format!("{e:#}"))?;
        parser.start_without_prompt();
        // What allows nothing at its start allows nothing ever. Each request starts with the states that this builds.
        let nothing = "no answer can satisfy it: nothing is allowed at its start";
        parser
            .compute_mask()
            .map_err(|e| if parser.stop_reason().is_ok() { nothing.into() } else { format!("{e:#}") })?;
        parser.check_stop().map_err(|e| format!("{e:#}"))?;
        Ok(parser)
    }

    fn find(&self, source: &GrammarSource) -> Option<Grammar> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(known, _)| known == source)?;
        let entry = kept.remove(at);
        let grammar = entry.1.clone();
        kept.push(entry);
        Some(grammar)
    }

    fn keep(&self, source: &GrammarSource, grammar: &Grammar) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(known, _)| known != source);
        kept.push((source.clone(), grammar.clone()));
        let mut n_bytes: usize = kept.iter().map(|(source, _)| source.len()).sum();
        while kept.len() > MAX_KEPT || (n_bytes > MAX_KEPT_BYTES && kept.len() > 1) {
            n_bytes -= kept.remove(0).0.len();
        }
    }

    /// The tokens that it compiles for.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// How many grammars are kept.
    pub fn n_kept(&self) -> usize {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Parsers of sources call themselves as deep as those nest. That is bounded, but not by what is left of the stack of
/// the calling thread.
fn on_a_large_stack<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("llama-grammar".into()).stack_size(STACK_BYTES);
        let thread = builder.spawn_scoped(scope, || guarded(work));
        let thread = thread.map_err(|e| format!("no thread to compile a grammar on: {e}"))?;
        thread.join().unwrap_or_else(|_| Err("the compiler of grammars panicked".into()))
    })
}

/// What llguidance adds to its errors for its own developers.
pub(super) fn tidy(error: &str) -> String {
    let error = error.split("\n<").next().unwrap_or_default();
    error.trim().to_string()
}

/// A compiled grammar. A clone is another handle to the same one.
#[derive(Clone)]
pub struct Grammar(Arc<Inner>);

struct Inner {
    /// At the start of the grammar; each request clones it.
    prototype: Mutex<TokenParser>,
    vocabulary: Vocabulary,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

impl Grammar {
    /// A parser at the start of the grammar, with an automaton of its own: where that runs out of its bounds, or a thread
    /// is at work on it, no other request is concerned.
    pub(super) fn parser(&self) -> TokenParser {
        self.0.prototype.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }

    pub(super) fn vocabulary(&self) -> &Vocabulary {
        &self.0.vocabulary
    }
}
