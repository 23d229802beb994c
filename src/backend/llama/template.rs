//! Chat templates: the model's own Jinja template, rendered by llama.cpp.

use super::ffi::{self, guarded};
use super::model::Model;
use crate::backend::Tokenizer;
use crate::core::Token;
use crate::error::Error;
use std::ffi::c_char;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// The parsed templates of a model.
#[derive(Debug)]
pub(super) struct Templates(NonNull<ffi::Chat>);

// SAFETY: the templates are plain data on the heap, tied to no thread.
unsafe impl Send for Templates {}

impl Drop for Templates {
    fn drop(&mut self) {
        // SAFETY: this is the only owner.
        unsafe { ffi::lb_chat_free(self.0.as_ptr()) };
    }
}

/// A text that the shim made.
struct Text {
    pointer: *mut c_char,
    length: usize,
}

impl Text {
    fn bytes(&self) -> &[u8] {
        if self.pointer.is_null() {
            return &[];
        }
        // SAFETY: the shim made a text of this length, which lives until it is dropped.
        unsafe { std::slice::from_raw_parts(self.pointer.cast(), self.length) }
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: the shim made it, or it is null, which is freed to no effect.
        unsafe { ffi::lb_text_free(self.pointer) };
    }
}

impl Model {
    /// The source of the model's chat template.
    pub fn chat_template(&self) -> Option<String> {
        // SAFETY: the model is alive and keeps the text.
        unsafe { ffi::text(llama_cpp_sys_2::llama_model_chat_template(self.as_ptr(), std::ptr::null())) }
    }

    /// Render a conversation with the model's template.
    ///
    /// `messages_json` is a list of messages as OpenAI's API has them. A BOS that the vocabulary adds anyway is left
    /// out, so that the prompt is tokenised with `add_special` and `parse_special`. The text of a message may spell a
    /// control token, and then is read as one.
    ///
    /// # Errors
    /// [`Error::Template`] where the model has no template, the messages are not what the template takes, or it fails;
    /// the text is the template's own where it raises one.
    pub fn apply_chat_template(&self, messages_json: &str, add_generation_prompt: bool) -> Result<String, Error> {
        let templates = self.templates.get_or_init(|| self.parse_templates().map(Mutex::new));
        let templates = templates.as_ref().map_err(|reason| Error::Template(reason.clone()))?;
        let templates = templates.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = Text { pointer: std::ptr::null_mut(), length: 0 };
        // SAFETY: the templates are alive; the messages are passed with their length; the text is ours.
        let done = guarded(|err, err_cap| unsafe {
            let (messages, length) = (messages_json.as_ptr().cast(), messages_json.len());
            let (pointer, text_length) = (&raw mut text.pointer, &raw mut text.length);
            let chat = templates.0.as_ptr();
            ffi::lb_chat_apply(chat, messages, length, add_generation_prompt, pointer, text_length, err, err_cap)
        });
        done.map_err(|reason| Error::Template(format!("the chat template failed: {}", reason.trim())))?;
        Ok(String::from_utf8_lossy(text.bytes()).into_owned())
    }

    /// Render a conversation and tokenise it, with one BOS where the vocabulary or the template wants one.
    ///
    /// # Errors
    /// As [`Self::apply_chat_template`]; [`Error::Prompt`] where the prompt cannot be tokenised.
    pub fn chat_tokens(&self, messages_json: &str, add_generation_prompt: bool) -> Result<Vec<Token>, Error> {
        let prompt = self.apply_chat_template(messages_json, add_generation_prompt)?;
        let mut tokens = self.tokenize(&prompt, true, true)?;
        if let [first, second, ..] = tokens[..]
            && first == second
            && Some(first) == self.bos()
        {
            tokens.remove(0);
        }
        Ok(tokens)
    }

    fn parse_templates(&self) -> Result<Templates, String> {
        if self.chat_template().is_none() {
            return Err("the model has no chat template".into());
        }
        let mut chat = std::ptr::null_mut();
        // SAFETY: the model is alive; the templates are ours.
        let done = guarded(|err, err_cap| unsafe { ffi::lb_chat_new(self.as_ptr(), &raw mut chat, err, err_cap) });
        done.map_err(|reason| format!("the model's chat template cannot be parsed: {}", reason.trim()))?;
        NonNull::new(chat).map(Templates).ok_or_else(|| "the model's chat template cannot be parsed".into())
    }
}
