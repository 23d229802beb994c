//! What a caller passed as an option, and how each option type reads it.

use serde::{Deserialize, Serialize};

/// A value as it came from Python, the command line or a file, before any option looked at it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Value {
    /// Python's `None`: the default.
    None,
    /// A truth value; never read as a number.
    Bool(bool),
    /// An integer; wide enough to say how far out of range it is.
    Int(i128),
    /// A float, NaN and infinities included: options refuse them.
    Float(f64),
    /// Text.
    Str(String),
    /// A list or tuple.
    List(Vec<Value>),
    /// A dict.
    Map(Vec<(Value, Value)>),
    /// A key of any accepted hashable type, encoded so that equality is equality in Python (see `py/convert.rs`).
    Key(String),
    /// A Python callable, by its number in the binding's registry.
    Callable(u64),
    /// Anything else; the text is its type's name.
    Other(String),
}

impl Value {
    /// The name of the value's type in Python's words, for messages.
    pub fn type_name(&self) -> &str {
        match self {
            Self::None => "None",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::List(_) => "list",
            Self::Map(_) => "dict",
            Self::Key(_) => "key",
            Self::Callable(_) => "callable",
            Self::Other(name) => name,
        }
    }
}

/// The closed range of a numeric option; both ends may be open.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Range {
    /// Smallest accepted value.
    pub min: f64,
    /// Largest accepted value.
    pub max: f64,
}

impl Range {
    /// Whether the value lies inside; NaN never does.
    pub fn holds(self, x: f64) -> bool {
        x >= self.min && x <= self.max
    }

    /// The range in words.
    pub fn describe(self) -> String {
        if self.max == f64::INFINITY {
            format!("at least {}", self.min)
        } else {
            format!("between {} and {}", self.min, self.max)
        }
    }
}

/// A type that an option can have.
pub trait OptionType: Sized {
    /// The type as Python's annotations write it.
    const PYTHON: &'static str;
    /// Read a value that is not `None`.
    ///
    /// # Errors
    /// What is wrong with it ("must be …").
    fn read(value: &Value, range: Option<Range>) -> Result<Self, String>;
    /// The default as Python would write it.
    fn to_python(&self) -> String;
    /// Whether `None` is a value of its own.
    const OPTIONAL: bool = false;
    /// What `None` reads as, where it is a value.
    fn none() -> Option<Self> {
        None
    }
    /// The words a choice accepts.
    fn choices() -> &'static [&'static str] {
        &[]
    }
}

fn integer(value: &Value, range: Option<Range>, low: i128, high: i128) -> Result<i128, String> {
    let Value::Int(n) = value else { return Err(format!("must be an integer, not {}", value.type_name())) };
    if let Some(range) = range
        && !range.holds(*n as f64)
    {
        return Err(format!("must be {}, not {n}", range.describe()));
    }
    if *n < low || *n > high {
        return Err(format!("must be between {low} and {high}, not {n}"));
    }
    Ok(*n)
}

macro_rules! integer_option {
    ($($t:ty),*) => {$(
        impl OptionType for $t {
            const PYTHON: &'static str = "int";
            fn read(value: &Value, range: Option<Range>) -> Result<Self, String> {
                let n = integer(value, range, i128::from(<$t>::MIN), i128::from(<$t>::MAX))?;
                <$t>::try_from(n).map_err(|e| e.to_string())
            }
            fn to_python(&self) -> String { self.to_string() }
        }
    )*};
}
integer_option!(u32, i32, u64);

macro_rules! float_option {
    ($($t:ty),*) => {$(
        impl OptionType for $t {
            const PYTHON: &'static str = "float";
            fn read(value: &Value, range: Option<Range>) -> Result<Self, String> {
                let x = match value {
                    Value::Float(x) => *x,
                    Value::Int(n) => *n as f64,
                    Value::None | Value::Bool(_) | Value::Str(_) | Value::List(_) | Value::Map(_) | Value::Key(_)
                    | Value::Callable(_) | Value::Other(_) => return Err(format!("must be a number, not {}", value.type_name())),
                };
                if !x.is_finite() { return Err(format!("must be a finite number, not {x}")); }
                if let Some(range) = range && !range.holds(x) {
                    return Err(format!("must be {}, not {x}", range.describe()));
                }
                Ok(x as $t)
            }
            fn to_python(&self) -> String { format!("{self:?}") }
        }
    )*};
}
float_option!(f32, f64);

impl OptionType for bool {
    const PYTHON: &'static str = "bool";
    fn read(value: &Value, _: Option<Range>) -> Result<Self, String> {
        let Value::Bool(b) = value else { return Err(format!("must be True or False, not {}", value.type_name())) };
        Ok(*b)
    }
    fn to_python(&self) -> String {
        if *self { "True".into() } else { "False".into() }
    }
}

impl OptionType for String {
    const PYTHON: &'static str = "str";
    fn read(value: &Value, _: Option<Range>) -> Result<Self, String> {
        let Value::Str(s) = value else { return Err(format!("must be text, not {}", value.type_name())) };
        Ok(s.clone())
    }
    fn to_python(&self) -> String {
        format!("{self:?}")
    }
}

impl<T: OptionType + std::fmt::Debug> OptionType for Vec<T> {
    const PYTHON: &'static str = match T::PYTHON.as_bytes() {
        b"str" => "Sequence[str]",
        b"int" => "Sequence[int]",
        _ => "Sequence[float]",
    };
    fn read(value: &Value, range: Option<Range>) -> Result<Self, String> {
        let Value::List(items) = value else { return Err(format!("must be a list, not {}", value.type_name())) };
        items.iter().map(|item| T::read(item, range).map_err(|e| format!("holds an item that {e}"))).collect()
    }
    fn to_python(&self) -> String {
        format!("({})", self.iter().map(|x| x.to_python() + ", ").collect::<String>())
    }
}

impl<T: OptionType> OptionType for Option<T> {
    const PYTHON: &'static str = T::PYTHON;
    const OPTIONAL: bool = true;
    fn read(value: &Value, range: Option<Range>) -> Result<Self, String> {
        T::read(value, range).map(Some)
    }
    fn to_python(&self) -> String {
        self.as_ref().map_or_else(|| "None".into(), OptionType::to_python)
    }
    fn none() -> Option<Self> {
        Some(None)
    }
    fn choices() -> &'static [&'static str] {
        T::choices()
    }
}

/// How a tick's token budget is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StrategyOption {
    /// A built-in strategy.
    Builtin(BatchStrategy),
    /// A Python callable, by its number in the binding's registry.
    Callable(u64),
}

impl OptionType for StrategyOption {
    const PYTHON: &'static str = "str | BatchStrategy";
    fn read(value: &Value, range: Option<Range>) -> Result<Self, String> {
        if let Value::Callable(id) = value {
            return Ok(Self::Callable(*id));
        }
        BatchStrategy::read(value, range).map(Self::Builtin).map_err(|e| e + ", or a callable")
    }
    fn to_python(&self) -> String {
        match self {
            Self::Builtin(strategy) => strategy.to_python(),
            Self::Callable(id) => format!("<callable {id}>"),
        }
    }
    fn choices() -> &'static [&'static str] {
        BatchStrategy::choices()
    }
}

/// Declares an enum whose variants are words in Python.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* $variant),* }

        impl $name {
            /// The word that stands for the variant.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
        }

        impl OptionType for $name {
            const PYTHON: &'static str = "str";
            fn read(value: &Value, _: Option<Range>) -> Result<Self, String> {
                let words = [$($word),*];
                let Value::Str(s) = value else {
                    return Err(format!("must be one of {words:?}, not {}", value.type_name()));
                };
                match s.as_str() {
                    $($word => Ok(Self::$variant),)*
                    other => Err(format!("must be one of {words:?}, not {other:?}")),
                }
            }
            fn to_python(&self) -> String { format!("{:?}", self.word()) }
            fn choices() -> &'static [&'static str] { &[$($word),*] }
        }
    };
}

pub(super) use choice;

choice!(
    /// The built-in batch strategies.
    BatchStrategy {
        /// Decode rows first, then prefill chunks with what is left.
        DecodeMaximal = "decode_maximal",
        /// Prefill chunks first, then decode rows.
        PrefillPriority = "prefill_priority",
        /// Half of the budget for each; the whole of it where only one side has work.
        Balanced = "balanced",
    }
);
choice!(
    /// What a full queue does to a caller.
    QueueFullPolicy {
        /// Raise `QueueFullError` at once.
        Raise = "raise",
        /// Wait for room.
        Wait = "wait",
    }
);
choice!(
    /// Whether llama.cpp's flash attention is used.
    FlashAttention {
        /// llama.cpp decides.
        Auto = "auto",
        /// Always.
        On = "on",
        /// Never.
        Off = "off",
    }
);
choice!(
    /// Whether the settings that the options leave open are measured.
    Calibrate {
        /// When a model is loaded for the first time on a machine; what was found is kept.
        Auto = "auto",
        /// At each load.
        Force = "force",
        /// Never: llama.cpp decides.
        Off = "off",
    }
);
choice!(
    /// How a model is split over several devices.
    SplitMode {
        /// One device holds it all.
        None = "none",
        /// Whole layers.
        Layer = "layer",
        /// Rows of each tensor.
        Row = "row",
        /// Tensor parallelism.
        Tensor = "tensor",
    }
);
choice!(
    /// The type of the cells of the KV cache.
    CacheType {
        /// 32-bit floats.
        F32 = "f32",
        /// 16-bit floats.
        F16 = "f16",
        /// bfloat16.
        Bf16 = "bf16",
        /// 8-bit blocks.
        Q8_0 = "q8_0",
        /// 4-bit blocks.
        Q4_0 = "q4_0",
        /// 4-bit blocks with a minimum.
        Q4_1 = "q4_1",
        /// Non-linear 4-bit blocks.
        Iq4Nl = "iq4_nl",
        /// 5-bit blocks.
        Q5_0 = "q5_0",
        /// 5-bit blocks with a minimum.
        Q5_1 = "q5_1",
    }
);
choice!(
    /// How RoPE is scaled beyond the context that a model was trained on.
    RopeScaling {
        /// Not at all.
        None = "none",
        /// Linearly.
        Linear = "linear",
        /// By YaRN.
        Yarn = "yarn",
        /// By LongRoPE.
        LongRope = "longrope",
    }
);
choice!(
    /// The attention mask.
    AttentionType {
        /// Each token sees those before it.
        Causal = "causal",
        /// Each token sees all.
        NonCausal = "non_causal",
    }
);
choice!(
    /// How the vectors of a text's tokens become one.
    Pooling {
        /// As the model's file says; the mean where it says nothing.
        Auto = "auto",
        /// Their mean.
        Mean = "mean",
        /// The first token's.
        Cls = "cls",
        /// The last token's.
        Last = "last",
        /// They do not: a text has a vector for each token.
        None = "none",
    }
);
