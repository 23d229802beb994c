//! Options of sampling that are no plain numbers: the order of the chain, and what is said of single tokens.

use super::value::{OptionType, Range, Value};
use serde::{Deserialize, Serialize};

/// A link of the sampling chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SamplerKind {
    /// Repetition, frequency and presence.
    Penalties,
    /// DRY.
    Dry,
    /// Top-n-sigma.
    TopNSigma,
    /// Top-k.
    TopK,
    /// Locally typical sampling.
    TypicalP,
    /// Top-p.
    TopP,
    /// Min-p.
    MinP,
    /// XTC.
    Xtc,
    /// The temperature.
    Temperature,
}

impl SamplerKind {
    /// llama.cpp's order.
    pub const ORDER: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
    ];

    const WORDS: [&'static str; 9] =
        ["penalties", "dry", "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature"];

    /// The word that stands for it.
    pub fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }

    /// By its word, or by one that llama.cpp has too.
    fn by_name(name: &str) -> Option<Self> {
        let name = match name {
            "typ_p" | "typical" => "typical_p",
            "temp" => "temperature",
            other => other,
        };
        Self::WORDS.iter().position(|word| *word == name).map(|at| Self::ORDER[at])
    }
}

/// The links of the chain, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerOrder(pub Vec<SamplerKind>);

impl OptionType for SamplerOrder {
    const PYTHON: &'static str = "Sequence[str]";
    fn read(value: &Value, range: Option<Range>) -> Result<Self, String> {
        let names = Vec::<String>::read(value, range)?;
        let mut kinds = Vec::with_capacity(names.len());
        for name in names {
            let Some(kind) = SamplerKind::by_name(&name) else {
                return Err(format!("must hold names of {:?}, not {name:?}", SamplerKind::WORDS));
            };
            if kinds.contains(&kind) {
                return Err(format!("holds {name:?} twice"));
            }
            kinds.push(kind);
        }
        Ok(Self(kinds))
    }
    fn to_python(&self) -> String {
        let words: Vec<String> = self.0.iter().map(|kind| format!("{:?}", kind.word())).collect();
        format!("({},)", words.join(", "))
    }
}

/// A token, or text that is made into tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenOrText {
    /// A token.
    Token(u32),
    /// Text.
    Text(String),
}

/// What is added to the logits of tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LogitBias(pub Vec<(TokenOrText, f32)>);

impl LogitBias {
    const MAX: usize = 65_536;

    fn bias(value: &Value) -> Result<f32, String> {
        let number = match value {
            Value::Bool(false) => f64::NEG_INFINITY,
            Value::Float(x) => *x,
            Value::Int(n) => *n as f64,
            Value::None
            | Value::Bool(true)
            | Value::Str(_)
            | Value::List(_)
            | Value::Map(_)
            | Value::Key(_)
            | Value::Callable(_)
            | Value::Other(_) => {
                return Err(format!("holds a bias that must be a number or False, not {}", value.type_name()));
            }
        };
        let is_fine = number == f64::NEG_INFINITY || number.abs() <= 1e6;
        if is_fine {
            Ok(number as f32)
        } else {
            Err(format!("holds a bias that must be between -1e6 and 1e6, or -inf, not {number}"))
        }
    }

    fn token(value: &Value) -> Result<TokenOrText, String> {
        if let Value::Str(text) = value {
            return if text.is_empty() {
                Err("holds an empty text".into())
            } else {
                Ok(TokenOrText::Text(text.clone()))
            };
        }
        let token = u32::read(value, Some(Range { min: 0.0, max: f64::from(i32::MAX) }));
        token.map(TokenOrText::Token).map_err(|why| format!("holds a token that {why}"))
    }
}

impl OptionType for LogitBias {
    const PYTHON: &'static str = "Mapping[int | str, float]";
    fn read(value: &Value, _: Option<Range>) -> Result<Self, String> {
        let Value::Map(pairs) = value else {
            return Err(format!("must be a dict of tokens or texts and numbers, not {}", value.type_name()));
        };
        if pairs.len() > Self::MAX {
            return Err(format!("must have {} tokens at most", Self::MAX));
        }
        pairs
            .iter()
            .map(|(token, bias)| Ok((Self::token(token)?, Self::bias(bias)?)))
            .collect::<Result<_, _>>()
            .map(Self)
    }
    fn to_python(&self) -> String {
        let one = |(token, bias): &(TokenOrText, f32)| match token {
            TokenOrText::Token(token) => format!("{token}: {bias:?}"),
            TokenOrText::Text(text) => format!("{text:?}: {bias:?}"),
        };
        format!("{{{}}}", self.0.iter().map(one).collect::<Vec<_>>().join(", "))
    }
}

/// A Python callable that draws, by its number in the binding's registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerCallable(pub u64);

impl OptionType for SamplerCallable {
    const PYTHON: &'static str = "Sampler";
    fn read(value: &Value, _: Option<Range>) -> Result<Self, String> {
        let Value::Callable(id) = value else { return Err(format!("must be a callable, not {}", value.type_name())) };
        Ok(Self(*id))
    }
    fn to_python(&self) -> String {
        format!("<callable {}>", self.0)
    }
}
