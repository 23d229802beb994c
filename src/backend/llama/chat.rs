//! Reads answers as a template writes them: what is said, what is thought, what is called.

use super::ffi::{self, guarded};
use super::template::Text;
use std::ptr::NonNull;

/// Reads the answers to one conversation, whole or as far as they are there.
#[derive(Debug)]
pub struct ChatParser(NonNull<ffi::ChatParser>);

// SAFETY: the parser is plain data on the heap, tied to no thread.
unsafe impl Send for ChatParser {}
// SAFETY: reading an answer does not change the parser.
unsafe impl Sync for ChatParser {}

impl Drop for ChatParser {
    fn drop(&mut self) {
        // SAFETY: this is the only owner.
        unsafe { ffi::lb_chat_parser_free(self.0.as_ptr()) };
    }
}

impl ChatParser {
    /// A parser from the syntax that came with a conversation's prompt.
    ///
    /// # Errors
    /// The reason, where it is no such syntax.
    pub fn new(syntax: &str) -> Result<Self, String> {
        let mut parser = std::ptr::null_mut();
        // SAFETY: the syntax is passed with its length; the parser is ours.
        guarded(|err, err_cap| unsafe {
            ffi::lb_chat_parser_new(syntax.as_ptr().cast(), syntax.len(), &raw mut parser, err, err_cap)
        })?;
        NonNull::new(parser).map(Self).ok_or_else(|| "there is no parser".into())
    }

    /// Read an answer, or its beginning: JSON with `content`, `reasoning_content` and `tool_calls`.
    ///
    /// # Errors
    /// The reason, where the text is no such answer.
    pub fn parse(&self, text: &str, is_partial: bool) -> Result<String, String> {
        let mut found = Text::default();
        // SAFETY: the parser is alive; the text is passed with its length; what is found is ours.
        guarded(|err, err_cap| unsafe {
            let (pointer, length) = found.out();
            let (text, text_length) = (text.as_ptr().cast(), text.len());
            ffi::lb_chat_parse(self.0.as_ptr(), text, text_length, is_partial, pointer, length, err, err_cap)
        })?;
        Ok(found.to_text())
    }
}
