//! Everything that can go wrong, named once.
//!
//! Python's exception tree (`python/llama_batch/errors.py`) mirrors this enum: `code` is the join, and a test compares
//! both. A finish reason is not an error: see [`crate::core::FinishReason`].

use serde::{Deserialize, Serialize};

/// Which of a request's three time limits ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimeoutKind {
    /// `timeout`: the total, from submission.
    Total,
    /// `queue_timeout`: waiting for a slot.
    Queue,
    /// `stall_timeout`: holding a slot without making progress.
    Stall,
}

impl TimeoutKind {
    /// The name of the option that set the limit.
    pub const fn option(self) -> &'static str {
        match self {
            Self::Total => "timeout",
            Self::Queue => "queue_timeout",
            Self::Stall => "stall_timeout",
        }
    }
}

/// What a text to embed has to fit into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TextBound {
    /// One forward pass: each token looks at all others.
    Pass,
    /// The engine's context.
    Context,
    /// The context that the model was trained on.
    Model,
}

impl TextBound {
    /// In words, with the options that set it.
    const fn words(self) -> &'static str {
        match self {
            Self::Pass => "one forward pass, in which this model reads a text whole (n_ubatch, n_batch)",
            Self::Context => "the context (n_ctx)",
            Self::Model => "the context that the model was trained on",
        }
    }
}

/// Which of the queue's two bounds is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueBound {
    /// `max_queue`: of all requests.
    All,
    /// `max_queue_per_scope`: of those that are served together.
    Scope,
}

impl QueueBound {
    /// The name of the option that set it.
    pub const fn option(self) -> &'static str {
        match self {
            Self::All => "max_queue",
            Self::Scope => "max_queue_per_scope",
        }
    }

    /// Whose requests it counts, in words.
    const fn whose(self) -> &'static str {
        match self {
            Self::All => "",
            Self::Scope => " of this scope",
        }
    }
}

/// Why a server or a worker of llama.cpp's RPC is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RpcReason {
    /// This build has no RPC.
    Unsupported,
    /// There is no connection.
    Unreachable,
    /// It accepts connections and does not answer in time: it serves another client, or hangs.
    Busy,
    /// What answers does not speak this llama.cpp's protocol.
    ProtocolMismatch,
    /// It has no devices, or fewer than before.
    NoDevices,
    /// A worker was to serve a device that there is not.
    UnknownDevice,
    /// A worker cannot listen there.
    Bind,
    /// The backend that computed with servers was lost, and one of them may be why.
    Lost,
}

impl RpcReason {
    /// A stable name for programs: the `reason` of the Python exception.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Unsupported => "rpc_unsupported",
            Self::Unreachable => "unreachable",
            Self::Busy => "busy",
            Self::ProtocolMismatch => "protocol_mismatch",
            Self::NoDevices => "no_devices",
            Self::UnknownDevice => "unknown_device",
            Self::Bind => "bind",
            Self::Lost => "lost",
        }
    }

    /// Whether the same call may succeed once the server is there, or free.
    const fn is_passing(self) -> bool {
        match self {
            Self::Unreachable | Self::Busy | Self::Lost => true,
            Self::Unsupported | Self::ProtocolMismatch | Self::NoDevices | Self::UnknownDevice | Self::Bind => false,
        }
    }
}

/// An error that reaches the caller.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// An option is unknown, has the wrong type or is out of range.
    #[error("{0}")]
    Option(String),
    /// The model's file or URI does not lead to a file.
    #[error("{0}")]
    ModelNotFound(String),
    /// llama.cpp could not load the model or make a context; the text holds its own reason.
    #[error("{0}")]
    ModelLoad(String),
    /// The model is still loading.
    #[error("the engine is still loading its model; wait_ready() or await ready() waits for it")]
    EngineNotReady,
    /// The engine was closed.
    #[error("the engine is closed")]
    EngineClosed,
    /// The engine was made in another process, from which this one was forked off.
    #[error("the engine lives in the process that made it and did not survive the fork; make one in each process")]
    Forked,
    /// The engine thread panicked: a bug of ours. The text is the panic's.
    #[error("the engine crashed: {0}")]
    EngineCrashed(String),
    /// As many requests wait for a slot as one of the queue's bounds allows.
    #[error(
        "the queue is full: {limit} requests{} wait for a slot ({}); map sends prompts as there is room, and \
         queue_full=\"wait\" waits for it",
        bound.whose(), bound.option()
    )]
    QueueFull {
        /// Which bound.
        bound: QueueBound,
        /// Its value. Unit: requests.
        limit: u32,
    },
    /// One of the request's time limits ran out.
    #[error("the request ran out of time: {} of {limit_s} s", kind.option())]
    RequestTimeout {
        /// Which limit.
        kind: TimeoutKind,
        /// The limit. Unit: seconds.
        limit_s: f64,
    },
    /// The prompt has no tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The prompt can never fit the context.
    #[error(
        "the prompt has {n_prompt_tokens} tokens; a request of this engine has room for {n_ctx} (n_ctx; with kv_unified=False its part of that), one of them for the answer"
    )]
    ContextFull {
        /// Unit: tokens.
        n_prompt_tokens: u32,
        /// What one request may use. Unit: tokens.
        n_ctx: u32,
    },
    /// A text to embed is longer than the model can read.
    #[error("text {index} of the input has {n_tokens} tokens; at most {n_max} fit into {}", bound.words())]
    TextTooLong {
        /// Which text, counted from 0.
        index: u32,
        /// Unit: tokens.
        n_tokens: u32,
        /// Unit: tokens.
        n_max: u32,
        /// What it does not fit into.
        bound: TextBound,
    },
    /// The model cannot do what was asked of it.
    #[error("{0}")]
    Unsupported(String),
    /// A request that has no part of a result was cancelled.
    #[error("the request was cancelled")]
    Cancelled,
    /// The prompt holds something that no model input can hold (a lone surrogate, a token id out of range).
    #[error("{0}")]
    Prompt(String),
    /// The chat template is missing or failed.
    #[error("{0}")]
    Template(String),
    /// A grammar or a schema is wrong, costs too much, or was given beside another one.
    #[error("{0}")]
    Grammar(String),
    /// A session could not be saved or loaded.
    #[error("{0}")]
    Session(String),
    /// There is no file to load a session from.
    #[error("{0}")]
    SessionNotFound(String),
    /// A forward pass or a draw failed, and so did the retry.
    #[error("inference failed: {0}")]
    Inference(String),
    /// A server of `rpc_servers` is of no use, or a worker cannot be started.
    #[error("{text}")]
    Rpc {
        /// Why.
        reason: RpcReason,
        /// Which one.
        endpoint: String,
        /// The same for people.
        text: String,
    },
    /// The process that computes died, hung or was cut off, and what it held of the request went with it.
    #[error("the backend was lost: {0}")]
    BackendLost(String),
}

impl Error {
    /// Every [`Self::code`].
    pub const CODES: [&'static str; 24] = [
        "invalid_option",
        "model_not_found",
        "load_failed",
        "not_ready",
        "closed",
        "forked",
        "crashed",
        "queue_full",
        "timeout",
        "empty_prompt",
        "context_full",
        "text_too_long",
        "unsupported",
        "cancelled",
        "invalid_prompt",
        "invalid_template",
        "invalid_grammar",
        "session",
        "session_not_found",
        "inference_failed",
        "rpc",
        "rpc_unavailable",
        "rpc_lost",
        "backend_lost",
    ];

    /// A stable name for programs: the `code` of the Python exception.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Option(_) => "invalid_option",
            Self::ModelNotFound(_) => "model_not_found",
            Self::ModelLoad(_) => "load_failed",
            Self::EngineNotReady => "not_ready",
            Self::EngineClosed => "closed",
            Self::Forked => "forked",
            Self::EngineCrashed(_) => "crashed",
            Self::QueueFull { .. } => "queue_full",
            Self::RequestTimeout { .. } => "timeout",
            Self::EmptyPrompt => "empty_prompt",
            Self::ContextFull { .. } => "context_full",
            Self::TextTooLong { .. } => "text_too_long",
            Self::Unsupported(_) => "unsupported",
            Self::Cancelled => "cancelled",
            Self::Prompt(_) => "invalid_prompt",
            Self::Template(_) => "invalid_template",
            Self::Grammar(_) => "invalid_grammar",
            Self::Session(_) => "session",
            Self::SessionNotFound(_) => "session_not_found",
            Self::Inference(_) => "inference_failed",
            Self::Rpc { reason: RpcReason::Lost, .. } => "rpc_lost",
            Self::Rpc { reason, .. } if reason.is_passing() => "rpc_unavailable",
            Self::Rpc { .. } => "rpc",
            Self::BackendLost(_) => "backend_lost",
        }
    }

    /// Whether a request is refused with it, rather than failing: it was wrong in itself, or there was no place for it.
    pub const fn is_refusal(&self) -> bool {
        match self {
            Self::Option(_)
            | Self::QueueFull { .. }
            | Self::EmptyPrompt
            | Self::ContextFull { .. }
            | Self::TextTooLong { .. }
            | Self::Unsupported(_)
            | Self::Prompt(_)
            | Self::Template(_)
            | Self::Grammar(_) => true,
            Self::ModelNotFound(_)
            | Self::ModelLoad(_)
            | Self::EngineNotReady
            | Self::EngineClosed
            | Self::Forked
            | Self::EngineCrashed(_)
            | Self::RequestTimeout { .. }
            | Self::Cancelled
            | Self::Session(_)
            | Self::SessionNotFound(_)
            | Self::Inference(_)
            | Self::Rpc { .. }
            | Self::BackendLost(_) => false,
        }
    }

    /// Whether what computed is gone.
    pub const fn is_loss(&self) -> bool {
        matches!(self, Self::BackendLost(_) | Self::Rpc { reason: RpcReason::Lost, .. })
    }

    /// Whether the same call may succeed later.
    pub const fn retryable(&self) -> bool {
        match self {
            Self::EngineNotReady
            | Self::QueueFull { .. }
            | Self::RequestTimeout { .. }
            | Self::Inference(_)
            | Self::BackendLost(_) => true,
            Self::Rpc { reason, .. } => reason.is_passing(),
            Self::Option(_)
            | Self::ModelNotFound(_)
            | Self::ModelLoad(_)
            | Self::EngineClosed
            | Self::Forked
            | Self::EngineCrashed(_)
            | Self::EmptyPrompt
            | Self::ContextFull { .. }
            | Self::TextTooLong { .. }
            | Self::Unsupported(_)
            | Self::Cancelled
            | Self::Prompt(_)
            | Self::Template(_)
            | Self::Grammar(_)
            | Self::Session(_)
            | Self::SessionNotFound(_) => false,
        }
    }
}
