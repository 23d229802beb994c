//! The option tables: the one place where an option's name, type, default, range and meaning are written.
//!
//! `tools/gen_options.py` renders Python's signatures, the command line's flags and `docs/options.md` from them.
//! A consumer destructures a struct without `..`, so that an option nobody reads does not compile.

mod embedding;
mod endpoints;
mod grammar;
mod isolation;
mod sampling;
mod table;
mod texts;
mod value;

pub use embedding::Normalize;
pub use endpoints::{Endpoint, Endpoints};
pub use grammar::GrammarSource;
pub use isolation::{Isolate, OnBackendLoss};
pub use sampling::{LogitBias, SamplerCallable, SamplerKind, SamplerOrder, TokenOrText};
pub use table::*;
pub use texts::{JsonSchema, Key, PathName, Texts};
pub use value::{
    AttentionType, BatchStrategy, CacheType, Calibrate, FlashAttention, OptionType, Pooling, QueueFullPolicy, Range,
    RopeScaling, SplitMode, StrategyOption, Value,
};

use crate::error::Error;
use serde::Serialize;

/// One row of an option table.
#[derive(Clone, Debug, Serialize)]
pub struct OptionSpec {
    /// The canonical name.
    pub name: &'static str,
    /// Other names of the field that are accepted.
    pub aliases: &'static [&'static str],
    /// The type, as Python's annotations write it.
    pub python_type: &'static str,
    /// Whether `None` is a value of its own.
    pub optional: bool,
    /// The default, as Python would write it.
    pub default: String,
    /// The accepted range of a number.
    pub range: Option<Range>,
    /// The accepted words of a choice.
    pub choices: &'static [&'static str],
    /// The unit of a number; empty where it has none.
    pub unit: &'static str,
    /// What it does.
    pub doc: &'static str,
}

/// A struct of options with its table.
pub trait Options: Sized + Default {
    /// The table, in the order of declaration.
    fn table() -> Vec<OptionSpec>;
    /// Set one option by its canonical name.
    ///
    /// # Errors
    /// What is wrong with the value ("must be …").
    fn set(&mut self, name: &str, value: &Value) -> Result<(), String>;

    /// Give one option the value that `None` stands for; where `None` is no value of its own, leave it as it is.
    fn clear(&mut self, name: &str);

    /// Apply what a caller passed over these values.
    ///
    /// # Errors
    /// [`Error::Option`] names the option and what is wrong: unknown (with the nearest known name), given twice, of
    /// the wrong type, or out of range.
    fn apply(mut self, given: &[(String, Value)]) -> Result<Self, Error> {
        let table = Self::table();
        let mut seen: Vec<&str> = Vec::new();
        for (key, value) in given {
            let Some(spec) = table.iter().find(|s| s.name == key || s.aliases.contains(&key.as_str())) else {
                return Err(unknown(key, &table));
            };
            if seen.contains(&spec.name) {
                return Err(Error::Option(format!("{} is given twice (as {key} too)", spec.name)));
            }
            seen.push(spec.name);
            if *value == Value::None {
                self.clear(spec.name);
                continue;
            }
            self.set(spec.name, value).map_err(|what| Error::Option(format!("{key} {what}")))?;
        }
        Ok(self)
    }
}

/// The error for an option that no table has, with the nearest name that one has.
fn unknown(key: &str, table: &[OptionSpec]) -> Error {
    let names = table.iter().flat_map(|s| std::iter::once(&s.name).chain(s.aliases));
    let nearest = names
        .map(|name| (strsim::jaro_winkler(name, key), *name))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    Error::Option(match nearest {
        Some((_, name)) => format!("unknown option {key:?}; did you mean {name:?}?"),
        None => format!("unknown option {key:?}"),
    })
}
