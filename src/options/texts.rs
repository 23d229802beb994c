//! Options that are text of some kind: keys, stop strings, paths.

use super::value::{OptionType, Range, Value};
use serde::{Deserialize, Serialize};

/// A key that routes or isolates (`session`, `cache_scope`): any accepted hashable value, by equality.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key(pub String);

impl OptionType for Key {
    const PYTHON: &'static str = "Key";
    fn read(value: &Value, _: Option<Range>) -> Result<Self, String> {
        match value {
            Value::Key(s) => Ok(Self(s.clone())),
            Value::Str(s) => Ok(Self(format!("s{}:{s}", s.len()))),
            Value::Int(n) => Ok(Self(format!("i{n}"))),
            Value::None
            | Value::Bool(_)
            | Value::Float(_)
            | Value::List(_)
            | Value::Map(_)
            | Value::Callable(_)
            | Value::Other(_) => {
                Err(format!("must be text, an integer, bytes, a UUID or a tuple of them, not {}", value.type_name()))
            }
        }
    }
    fn to_python(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// The texts that were given: one, or a list of them, which `what` calls them.
pub(super) fn one_or_several(value: &Value, range: Option<Range>, what: &str) -> Result<Vec<String>, String> {
    match value {
        Value::Str(s) => Ok(vec![s.clone()]),
        Value::List(_) => Vec::<String>::read(value, range),
        Value::None
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Float(_)
        | Value::Map(_)
        | Value::Key(_)
        | Value::Callable(_)
        | Value::Other(_) => Err(format!("must be {what}, not {}", value.type_name())),
    }
}

/// One text, or several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Texts(pub Vec<String>);

impl Texts {
    /// Each token is compared with all that end an answer.
    const MAX: usize = 64;
    const MAX_BYTES: usize = 1024;
}

impl OptionType for Texts {
    const PYTHON: &'static str = "str | Sequence[str]";
    fn read(value: &Value, range: Option<Range>) -> Result<Self, String> {
        let strings = one_or_several(value, range, "text or a list of texts")?;
        if strings.iter().any(String::is_empty) {
            return Err("must not be empty text".into());
        }
        if strings.len() > Self::MAX || strings.iter().any(|s| s.len() > Self::MAX_BYTES) {
            return Err(format!("must be {} texts of {} bytes at most", Self::MAX, Self::MAX_BYTES));
        }
        Ok(Self(strings))
    }
    fn to_python(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// The name of a file or folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathName(pub String);

impl OptionType for PathName {
    const PYTHON: &'static str = "str | PathLike[str]";
    fn read(value: &Value, _: Option<Range>) -> Result<Self, String> {
        let Value::Str(s) = value else { return Err(format!("must be a path, not {}", value.type_name())) };
        if s.is_empty() || s.contains('\0') {
            return Err(format!("must be a path, not {s:?}"));
        }
        Ok(Self(s.clone()))
    }
    fn to_python(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// A JSON schema, as JSON text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JsonSchema(pub String);

impl OptionType for JsonSchema {
    const PYTHON: &'static str = "str | Mapping[str, Any] | type[Any] | Validates[Any]";
    fn read(value: &Value, _: Option<Range>) -> Result<Self, String> {
        let Value::Str(s) = value else {
            return Err(format!("must be a dict, JSON text or a class of pydantic, not {}", value.type_name()));
        };
        Ok(Self(s.clone()))
    }
    fn to_python(&self) -> String {
        format!("{:?}", self.0)
    }
}
