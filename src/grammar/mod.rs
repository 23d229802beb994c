//! Structured output: what an answer must look like, and which tokens keep to it. Free of llama.cpp.
//!
//! [`Compiler`] turns a [`GrammarSource`] into a [`Grammar`] once and keeps it; each request walks it with its own
//! [`Matcher`]. llguidance does the parsing at run time: Earley's algorithm over a lexer of lazily built automata. What is
//! here is what surrounds it: GBNF, which it does not know, translated so that the language stays the same (`gbnf`);
//! what JSON schemas mean to those who validate the answer (`schema`); bounds; and the vocabulary with its several ways to
//! end a generation.
//!
//! A text that is refused is refused when it is compiled, with the reason. Nothing that was asked for is ignored.

mod compiler;
mod gbnf;
mod lazy;
mod matcher;
mod schema;
mod source;
mod vocabulary;

pub use crate::options::GrammarSource;
pub use compiler::{Compiler, Grammar};
pub use matcher::Matcher;
pub use vocabulary::Vocabulary;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The most bytes of a source: more is refused before anything reads it.
pub const MAX_SOURCE_BYTES: usize = 256 * 1024;

/// Run what must not take the process down with it: a panic in a dependency becomes an error.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(format!("internal error in the grammar: {}", text.as_deref().unwrap_or("panic")))
    })
}
