//! Prompts, and the requests that are made of them.

use super::panic_text;
use crate::backend::Tokenizer;
use crate::core::{Limits, Request, Shape, Token};
use crate::error::{Error, TimeoutKind};
use crate::store::Fingerprint;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// What callers may use of a loaded model, from any thread, beside a running pass.
#[derive(Clone)]
pub struct Model {
    /// Text to tokens and back.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// What else the loader gives to whoever knows its type.
    pub handle: Option<Arc<dyn Any + Send + Sync>>,
    /// Tells it from other models and other kinds of context; looked at when a session is saved or loaded.
    pub identity: Identity,
}

/// Tells a model, and the kind of context that it is used in, from all others.
pub type Identity = Arc<dyn Fn(&Limits) -> Result<Fingerprint, Error> + Send + Sync>;

/// Makes a conversation's prompt once the model is there, and says what the answer to it looks like.
pub type RenderPrompt = Box<dyn FnOnce(&Model) -> Result<(Vec<Token>, Shape), Error> + Send>;

/// What a request begins with.
pub enum Prompt {
    /// Text, as it is: BOS as the vocabulary says, control tokens parsed.
    Text(String),
    /// Tokens.
    Tokens(Vec<Token>),
    /// A conversation, or anything else that needs the model to become tokens.
    Chat(RenderPrompt),
}

impl Prompt {
    /// The prompt's tokens, and what the answer looks like. A panic while they are made is this request's error and
    /// nobody else's.
    pub(super) fn tokens(self, model: &Model) -> Result<(Vec<Token>, Shape), Error> {
        let made = catch_unwind(AssertUnwindSafe(|| match self {
            Self::Text(text) => Ok((model.tokenizer.tokenize(&text, true, true)?, Shape::default())),
            Self::Tokens(tokens) => Ok((tokens, Shape::default())),
            Self::Chat(render) => render(model),
        }));
        made.unwrap_or_else(|panic| {
            Err(Error::Prompt(format!("the prompt cannot be made into tokens: {}", panic_text(&*panic))))
        })
    }
}

/// Which limit ends a request first that waits for a slot, if one does.
pub(super) fn first_limit(request: &Request) -> Option<(Duration, TimeoutKind)> {
    let total = request.timeout.map(|limit| (limit, TimeoutKind::Total));
    let queue = request.queue_timeout.map(|limit| (limit, TimeoutKind::Queue));
    total.into_iter().chain(queue).min_by_key(|(limit, _)| *limit)
}
