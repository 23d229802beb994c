//! How the vectors of texts are scaled.

use super::value::{OptionType, Range, Value};
use serde::{Deserialize, Serialize};

/// What a vector is divided by: one of its norms, as llama.cpp numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Normalize(pub i32);

impl Normalize {
    /// Nothing.
    pub const NONE: Self = Self(-1);
    /// Its largest value, of which 32760 is made: the range of 16-bit integers.
    pub const MAX_ABS: Self = Self(0);
    /// The sum of its values without their signs.
    pub const TAXICAB: Self = Self(1);
    /// Its length.
    pub const EUCLIDEAN: Self = Self(2);
}

const WORDS: [(&str, Normalize); 4] = [
    ("euclidean", Normalize::EUCLIDEAN),
    ("taxicab", Normalize::TAXICAB),
    ("max_abs", Normalize::MAX_ABS),
    ("none", Normalize::NONE),
];

impl OptionType for Normalize {
    const PYTHON: &'static str = "int | str";

    fn read(value: &Value, range: Option<Range>) -> Result<Self, String> {
        let words = WORDS.map(|(word, _)| word);
        match value {
            Value::Str(word) => {
                let known = WORDS.iter().find(|(known, _)| known == word).map(|(_, normalize)| *normalize);
                known.ok_or_else(|| format!("must be one of {words:?} or the number of a norm, not {word:?}"))
            }
            // As a number True would be another norm than the one that is meant.
            Value::Bool(wanted) => Ok(if *wanted { Self::EUCLIDEAN } else { Self::NONE }),
            Value::Int(_) => i32::read(value, range).map(Self),
            Value::None
            | Value::Float(_)
            | Value::List(_)
            | Value::Map(_)
            | Value::Key(_)
            | Value::Callable(_)
            | Value::Other(_) => {
                Err(format!("must be one of {words:?} or the number of a norm, not {}", value.type_name()))
            }
        }
    }

    fn to_python(&self) -> String {
        let word = WORDS.iter().find(|(_, normalize)| normalize == self).map(|(word, _)| *word);
        word.map_or_else(|| self.0.to_string(), |word| format!("{word:?}"))
    }

    fn choices() -> &'static [&'static str] {
        &["euclidean", "taxicab", "max_abs", "none"]
    }
}

#[cfg(test)]
mod tests {
    use super::{Normalize, OptionType, WORDS};
    use crate::options::{Range, Value};

    fn read(value: &Value) -> Result<Normalize, String> {
        Normalize::read(value, Some(Range { min: -1.0, max: 1000.0 }))
    }

    #[test]
    fn words_numbers_and_truth_values_name_norms() {
        for (word, normalize) in WORDS {
            assert_eq!(read(&Value::Str(word.into())), Ok(normalize));
            assert_eq!(read(&Value::Int(i128::from(normalize.0))), Ok(normalize));
            assert_eq!(normalize.to_python(), format!("\"{word}\""));
        }
        assert_eq!(Normalize::choices(), WORDS.map(|(word, _)| word));
        assert_eq!(read(&Value::Bool(true)), Ok(Normalize::EUCLIDEAN));
        assert_eq!(read(&Value::Bool(false)), Ok(Normalize::NONE));
        assert_eq!(read(&Value::Int(3)).map(|normalize| normalize.to_python()), Ok("3".into()));
    }

    #[test]
    fn anything_else_is_refused() {
        for value in [Value::Int(-2), Value::Int(1001), Value::Float(2.0), Value::Str("l2".into()), Value::None] {
            assert!(read(&value).is_err(), "{value:?}");
        }
    }
}
