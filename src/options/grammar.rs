//! What the answer must look like, as a caller says it.

use serde::{Deserialize, Serialize};

/// What the answer must look like.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GrammarSource {
    /// A grammar in llama.cpp's language, and the rule that it starts with.
    Gbnf {
        /// The rules.
        text: String,
        /// The rule that the whole answer matches.
        root: String,
    },
    /// A JSON schema, as JSON text.
    JsonSchema(String),
    /// A regular expression in Rust's syntax that the whole answer matches.
    Regex(String),
    /// One of these texts exactly.
    Choice(Vec<String>),
}
