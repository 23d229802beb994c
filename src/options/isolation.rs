//! Options of a backend in a process of its own.

use super::StartOptions;
use super::value::{OptionType, Range, Value, choice};
use serde::{Deserialize, Serialize};

choice!(
    /// What requests that wait do while a lost backend is made again.
    OnBackendLoss {
        /// Go on waiting.
        Wait = "wait",
        /// Fail.
        Fail = "fail",
    }
);

/// Whether the backend has a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Isolate {
    /// Where something may end it that is not this machine's.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

impl OptionType for Isolate {
    const PYTHON: &'static str = "str | bool";
    fn read(value: &Value, _: Option<Range>) -> Result<Self, String> {
        let words = "must be \"auto\", \"on\", \"off\", True or False";
        match value {
            Value::Bool(true) => Ok(Self::On),
            Value::Bool(false) => Ok(Self::Off),
            Value::Str(word) => match word.as_str() {
                "auto" => Ok(Self::Auto),
                "on" => Ok(Self::On),
                "off" => Ok(Self::Off),
                other => Err(format!("{words}, not {other:?}")),
            },
            Value::None
            | Value::Int(_)
            | Value::Float(_)
            | Value::List(_)
            | Value::Map(_)
            | Value::Key(_)
            | Value::Callable(_)
            | Value::Other(_) => Err(format!("{words}, not {}", value.type_name())),
        }
    }
    fn to_python(&self) -> String {
        let word = match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        };
        format!("{word:?}")
    }
    fn choices() -> &'static [&'static str] {
        &["auto", "on", "off"]
    }
}

impl StartOptions {
    /// Whether the backend has a process of its own.
    pub fn is_isolated(&self) -> bool {
        match self.isolate {
            Isolate::On => true,
            Isolate::Off => false,
            // A peer that goes away makes llama.cpp end its process.
            Isolate::Auto => self.rpc_servers.as_ref().is_some_and(|servers| !servers.0.is_empty()),
        }
    }
}
