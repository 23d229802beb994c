//! Chat templates: the model's own Jinja template or one in its place, rendered by llama.cpp.

use super::ffi::{self, guarded};
use super::model::Model;
use crate::backend::Tokenizer;
use crate::chat::{Asked, Control, Controls, Conversation, Made, Template, render};
use crate::core::Token;
use crate::error::Error;
use llama_cpp_sys_2 as sys;
use serde::Deserialize;
use std::ffi::c_char;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Templates of callers that are remembered.
const MAX_KNOWN: usize = 16;

/// A conversation that shows whether a template lets its model think.
const SAMPLE: &str = r#"{"messages": [{"role": "user", "content": "Hello"}]}"#;

/// A parsed template.
#[derive(Debug)]
struct Chat(NonNull<ffi::Chat>);

// SAFETY: the templates are plain data on the heap, tied to no thread.
unsafe impl Send for Chat {}

impl Drop for Chat {
    fn drop(&mut self) {
        // SAFETY: this is the only owner.
        unsafe { ffi::lb_chat_free(self.0.as_ptr()) };
    }
}

/// A text that the shim made.
#[derive(Debug)]
pub(super) struct Text {
    pointer: *mut c_char,
    length: usize,
}

impl Default for Text {
    fn default() -> Self {
        Self { pointer: std::ptr::null_mut(), length: 0 }
    }
}

impl Text {
    /// Where the shim writes it.
    pub(super) fn out(&mut self) -> (*mut *mut c_char, *mut usize) {
        (&raw mut self.pointer, &raw mut self.length)
    }

    pub(super) fn to_text(&self) -> String {
        if self.pointer.is_null() {
            return String::new();
        }
        // SAFETY: the shim made a text of this length, which lives until it is dropped.
        let bytes = unsafe { std::slice::from_raw_parts(self.pointer.cast(), self.length) };
        String::from_utf8_lossy(bytes).into_owned()
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: the shim made it, or it is null, which is freed to no effect.
        unsafe { ffi::lb_text_free(self.pointer) };
    }
}

/// What a template can do, with llama.cpp's names.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Caps {
    supports_tools: bool,
    supports_tool_calls: bool,
    supports_parallel_tool_calls: bool,
}

/// A template, and what is known of it.
#[derive(Debug)]
struct Known {
    chat: Mutex<Chat>,
    caps: Caps,
    thinks: OnceLock<bool>,
}

type Shared = Result<Arc<Known>, String>;

/// The templates of a model: its own, and those of callers.
#[derive(Debug, Default)]
pub(super) struct Templates {
    own: OnceLock<Shared>,
    /// By source; the least recently used first.
    given: Mutex<Vec<(String, Shared)>>,
    /// Why the model's own must not be used.
    refused: OnceLock<String>,
    controls: OnceLock<Controls>,
}

impl Known {
    fn new(model: &Model, source: &str) -> Result<Self, String> {
        let mut chat = std::ptr::null_mut();
        // SAFETY: the model is alive; the source is passed with its length; the template is ours.
        guarded(|err, err_cap| unsafe {
            let (text, length) = (source.as_ptr().cast(), source.len());
            ffi::lb_chat_new(model.as_ptr(), text, length, &raw mut chat, err, err_cap)
        })
        .map_err(|reason| reason.trim().to_owned())?;
        let chat = NonNull::new(chat).map(Chat).ok_or("llama.cpp made nothing of it")?;
        let mut caps = Text::default();
        // SAFETY: the template is alive; the text is ours.
        guarded(|err, err_cap| unsafe {
            let (pointer, length) = caps.out();
            ffi::lb_chat_caps(chat.0.as_ptr(), pointer, length, err, err_cap)
        })?;
        let caps = serde_json::from_str(&caps.to_text()).map_err(|error| error.to_string())?;
        Ok(Self { chat: Mutex::new(chat), caps, thinks: OnceLock::new() })
    }
}

impl Template for Known {
    fn knows_tools(&self) -> bool {
        self.caps.supports_tools && self.caps.supports_tool_calls
    }

    fn knows_parallel_calls(&self) -> bool {
        self.caps.supports_parallel_tool_calls
    }

    fn thinks(&self) -> bool {
        *self.thinks.get_or_init(|| self.apply(SAMPLE).is_ok_and(|made| made.supports_thinking))
    }

    fn apply(&self, asked: &str) -> Result<Made, Error> {
        let chat = self.chat.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = Text::default();
        // SAFETY: the template is alive; what is asked is passed with its length; the text is ours.
        let done = guarded(|err, err_cap| unsafe {
            let (pointer, length) = text.out();
            ffi::lb_chat_apply(chat.0.as_ptr(), asked.as_ptr().cast(), asked.len(), pointer, length, err, err_cap)
        });
        done.map_err(|reason| Error::Template(format!("the chat template failed: {}", reason.trim())))?;
        serde_json::from_str(&text.to_text()).map_err(|error| Error::Template(error.to_string()))
    }
}

/// Render a few conversations with a template that nobody knows. It may never return, or end the process: only for a
/// process that is there for that.
///
/// # Errors
/// Where there was no memory for it.
pub fn try_template(source: &str) -> Result<(), String> {
    let (text, length) = (source.as_ptr().cast(), source.len());
    // SAFETY: the source is passed with its length.
    let (code, _) = guarded(|err, err_cap| unsafe { ffi::lb_chat_try(text, length, err, err_cap) })?;
    if code == 0 { Ok(()) } else { Err("there is no memory for it".into()) }
}

impl Model {
    /// The source of the model's chat template.
    pub fn chat_template(&self) -> Option<String> {
        // SAFETY: the model is alive and keeps the text.
        unsafe { ffi::text(sys::llama_model_chat_template(self.as_ptr(), std::ptr::null())) }
    }

    /// All sources of templates that its file has.
    pub fn chat_templates(&self) -> Vec<String> {
        // SAFETY: the model is alive and keeps the text; the name ends in a NUL.
        let for_tools = unsafe { ffi::text(sys::llama_model_chat_template(self.as_ptr(), c"tool_use".as_ptr())) };
        self.chat_template().into_iter().chain(for_tools).collect()
    }

    /// Never use the model's own template, for this reason. Told before anybody asks.
    pub fn refuse_template(&self, reason: String) {
        drop(self.templates.refused.set(reason));
    }

    /// Render a conversation with its template or the model's own, and tokenise it, with one BOS where the vocabulary or
    /// the template wants one. What messages spell is never read as a control token.
    ///
    /// # Errors
    /// [`Error::Template`] where there is no template, the conversation is not what it takes, or it fails; the text is the
    /// template's own where it raises one. [`Error::Prompt`] where the prompt cannot be tokenised.
    pub fn render(&self, asked: &Asked) -> Result<Conversation, Error> {
        let template = match &asked.chat_template {
            Some(source) => self.given_template(source),
            None => self.templates.own.get_or_init(|| self.own_template()).clone(),
        };
        let template = template.map_err(Error::Template)?;
        let mut conversation = render(asked, &*template, self.controls(), self)?;
        if let [first, second, ..] = conversation.tokens[..]
            && first == second
            && Some(first) == self.bos()
        {
            conversation.tokens.remove(0);
        }
        Ok(conversation)
    }

    fn own_template(&self) -> Shared {
        if let Some(reason) = self.templates.refused.get() {
            return Err(format!("the model's chat template is not used: {reason}"));
        }
        if self.chat_template().is_none() {
            return Err("the model has no chat template".into());
        }
        let known = Known::new(self, "");
        known.map(Arc::new).map_err(|reason| format!("the model's chat template cannot be parsed: {reason}"))
    }

    fn given_template(&self, source: &str) -> Shared {
        let mut given = self.templates.given.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = given.iter().position(|(known, _)| known == source) {
            let known = given.remove(place);
            given.push(known);
        } else {
            let known = Known::new(self, source);
            let known = known.map(Arc::new).map_err(|reason| format!("the chat template cannot be parsed: {reason}"));
            given.push((source.to_owned(), known));
            if given.len() > MAX_KNOWN {
                drop(given.remove(0));
            }
        }
        given.last().map_or_else(|| Err(String::new()), |(_, known)| known.clone())
    }

    /// The control tokens of the vocabulary.
    #[allow(clippy::unnecessary_cast, reason = "C's enums are signed on some systems")]
    fn controls(&self) -> &Controls {
        self.templates.controls.get_or_init(|| {
            // SAFETY: the vocabulary lives as long as the model; the token is of it.
            let attributes = |token: Token| unsafe { sys::llama_vocab_get_attr(self.vocab.as_ptr(), token) };
            let control = |token: Token| {
                let attributes = attributes(token) as u32;
                let has = |flag: sys::llama_token_attr| attributes & flag as u32 != 0;
                (has(sys::LLAMA_TOKEN_ATTR_CONTROL) || has(sys::LLAMA_TOKEN_ATTR_UNKNOWN)).then(|| Control {
                    token,
                    text: String::from_utf8_lossy(&self.piece(token, true)).into_owned(),
                    takes_left: has(sys::LLAMA_TOKEN_ATTR_LSTRIP),
                    takes_right: has(sys::LLAMA_TOKEN_ATTR_RSTRIP),
                })
            };
            Controls::new((0..self.n_vocab as Token).filter_map(control))
        })
    }
}
