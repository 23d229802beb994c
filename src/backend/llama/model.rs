//! A loaded model: what is known of it.

use super::compilers::Compilers;
use super::ffi;
use super::rpc::{self, Servers};
use super::template::Templates;
use crate::backend::Tokenizer as _;
use crate::core::{MemoryKind, Token};
use crate::error::Error;
use llama_cpp_sys_2 as sys;
use std::ffi::c_char;
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock};

/// A model in memory. Shared by contexts and callers; freed with its last owner.
#[derive(Debug)]
pub struct Model {
    pointer: NonNull<sys::llama_model>,
    pub(super) vocab: NonNull<sys::llama_vocab>,
    pub(super) n_vocab: u32,
    pub(super) has_vocab: bool,
    /// Whether there is nothing else: it cannot compute.
    pub(super) is_vocabulary: bool,
    n_ctx_train: u32,
    /// Tokens that end a generation.
    eog: OnceLock<Vec<Token>>,
    /// Made when grammars are asked for.
    pub(super) grammars: Compilers,
    /// Making a context may adjust the model: one at a time.
    pub(super) making_context: Mutex<()>,
    pub(super) templates: Templates,
    /// The servers that hold parts of it; let go after them.
    servers: Servers,
}

// SAFETY: llama.cpp only reads a loaded model, and the one call that writes to it (making a context with YaRN) is made
// under `making_context`.
unsafe impl Send for Model {}
// SAFETY: as above; the templates are behind a mutex.
unsafe impl Sync for Model {}

impl Model {
    /// Take over a model that llama.cpp has loaded.
    ///
    /// # Safety
    /// The pointer comes from `llama_model_load_from_file` and has no other owner.
    pub(super) unsafe fn own(pointer: NonNull<sys::llama_model>, servers: Servers, is_vocabulary: bool) -> Self {
        // SAFETY: the pointer is a loaded model, which always has a vocabulary, if only an empty one.
        let (vocab, n_vocab, kind, n_ctx_train) = unsafe {
            let vocab = sys::llama_model_get_vocab(pointer.as_ptr());
            let kind = sys::llama_vocab_type(vocab);
            let n_ctx_train = sys::llama_model_n_ctx_train(pointer.as_ptr());
            (vocab, sys::llama_vocab_n_tokens(vocab), kind, n_ctx_train)
        };
        Self {
            pointer,
            vocab: NonNull::new(vocab.cast_mut()).expect("a model has a vocabulary"),
            n_vocab: n_vocab.max(0) as u32,
            has_vocab: kind != sys::LLAMA_VOCAB_TYPE_NONE,
            is_vocabulary,
            n_ctx_train: n_ctx_train.max(0) as u32,
            eog: OnceLock::new(),
            grammars: Compilers::default(),
            making_context: Mutex::new(()),
            templates: Templates::default(),
            servers,
        }
    }

    /// Which of its servers has gone, if one has: seen between two works, before llama.cpp meets that.
    pub(super) fn loss(&self) -> Option<Error> {
        rpc::gone(&self.servers)
    }

    /// A figure that llama.cpp leaves at 0 where it reads no more than the vocabulary.
    fn or_as_file_says(&self, known: u32, key: &str) -> u32 {
        if known > 0 || !self.is_vocabulary {
            return known;
        }
        let value = self.metadata_value(&format!("{}.{key}", self.architecture()));
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Tokens that end a generation.
    pub(super) fn eog(&self) -> &[Token] {
        self.eog.get_or_init(|| (0..self.n_vocab as Token).filter(|token| self.is_eog(*token)).collect())
    }

    /// Tokens that the model's file says are not to be drawn.
    pub(super) fn suppressed(&self) -> &[Token] {
        let mut n = 0;
        // SAFETY: the vocabulary lives as long as the model, and so do the tokens.
        unsafe {
            let tokens = sys::llama_vocab_get_suppress_tokens(self.vocab.as_ptr(), &raw mut n);
            if tokens.is_null() || n <= 0 { &[] } else { std::slice::from_raw_parts(tokens, n as usize) }
        }
    }

    pub(super) const fn as_ptr(&self) -> *mut sys::llama_model {
        self.pointer.as_ptr()
    }

    /// What the model's sequences can do, as far as it can be told before a context is made.
    pub(super) fn memory(&self) -> MemoryKind {
        // SAFETY: the model is alive; these only read.
        let (recurrent, hybrid, window) = unsafe {
            (
                sys::llama_model_is_recurrent(self.as_ptr()),
                sys::llama_model_is_hybrid(self.as_ptr()),
                ffi::lb_model_window(self.as_ptr()),
            )
        };
        if hybrid {
            MemoryKind::Hybrid
        } else if recurrent {
            MemoryKind::Recurrent
        } else if window > 0 {
            MemoryKind::SlidingWindow(window as u32)
        } else {
            MemoryKind::Full
        }
    }

    /// Whether each token looks at those before it only, where the options do not say.
    pub(super) fn is_causal(&self) -> bool {
        // SAFETY: the model is alive.
        unsafe { ffi::lb_model_is_causal(self.as_ptr()) }
    }

    /// llama.cpp's number of the pooling that the file names, where it names one.
    pub(super) fn pooling(&self) -> Option<String> {
        self.metadata_value(&(self.architecture() + ".pooling_type"))
    }

    /// Values of the vectors that it gives.
    pub(super) fn n_embd_out(&self) -> u32 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_n_embd_out(self.as_ptr()) }.max(0) as u32
    }

    /// Whether an encoder runs before the model generates (T5 and its kin).
    pub(super) fn has_encoder(&self) -> bool {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_has_encoder(self.as_ptr()) }
    }

    /// Whether layers of the model are on an accelerator.
    pub(super) fn uses_devices(&self) -> bool {
        // SAFETY: the model is alive.
        unsafe { ffi::lb_model_n_devices(self.as_ptr()) > 0 }
    }

    /// Every scalar key of the file, with its value as text. Lists are left out.
    pub fn metadata(&self) -> Vec<(String, String)> {
        // SAFETY: the model is alive; each call writes at most the given bytes, and the index is below the count.
        unsafe {
            let n = sys::llama_model_meta_count(self.as_ptr()).max(0);
            let key = |i| read_text(|buf, cap| sys::llama_model_meta_key_by_index(self.as_ptr(), i, buf, cap));
            let value = |i| read_text(|buf, cap| sys::llama_model_meta_val_str_by_index(self.as_ptr(), i, buf, cap));
            (0..n).filter_map(|i| Some((key(i)?, value(i)?))).collect()
        }
    }

    /// The value of one key of the file.
    pub fn metadata_value(&self, key: &str) -> Option<String> {
        let key = std::ffi::CString::new(key).ok()?;
        // SAFETY: the model is alive; the call writes at most the given bytes.
        read_text(|buf, cap| unsafe { sys::llama_model_meta_val_str(self.as_ptr(), key.as_ptr(), buf, cap) })
    }

    /// The context that the model's RoPE was made for, before any scaling. Unit: tokens.
    pub fn n_ctx_orig(&self) -> u32 {
        let key = self.metadata_value("general.architecture").map(|a| a + ".rope.scaling.original_context_length");
        let given = key.and_then(|key| self.metadata_value(&key)).and_then(|value| value.parse().ok());
        given.unwrap_or_else(|| self.n_ctx_train())
    }

    /// llama.cpp's description: architecture, size, quantisation.
    pub fn description(&self) -> String {
        // SAFETY: the model is alive; the call writes at most the given bytes.
        let said = read_text(|buf, cap| unsafe { sys::llama_model_desc(self.as_ptr(), buf, cap) }).unwrap_or_default();
        if said.is_empty() {
            // Of a vocabulary it says nothing; the file names the size, but not in words how it is quantised.
            let size = self.metadata_value("general.size_label").unwrap_or_default();
            return format!("{} {size}", self.architecture()).trim().to_owned();
        }
        said
    }

    /// The name of the architecture, as the file has it.
    pub fn architecture(&self) -> String {
        self.metadata_value("general.architecture").unwrap_or_default()
    }

    /// Parameters.
    pub fn n_params(&self) -> u64 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_n_params(self.as_ptr()) }
    }

    /// Bytes of all tensors.
    pub fn size_bytes(&self) -> u64 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_size(self.as_ptr()) }
    }

    /// The context that the model was trained on. Unit: tokens.
    pub fn n_ctx_train(&self) -> u32 {
        self.or_as_file_says(self.n_ctx_train, "context_length")
    }

    /// Width of the embeddings.
    pub fn n_embd(&self) -> u32 {
        // SAFETY: the model is alive.
        let n_embd = unsafe { sys::llama_model_n_embd(self.as_ptr()) };
        self.or_as_file_says(n_embd.max(0) as u32, "embedding_length")
    }

    /// Layers.
    pub fn n_layer(&self) -> u32 {
        // SAFETY: the model is alive.
        let n_layer = unsafe { sys::llama_model_n_layer(self.as_ptr()) };
        self.or_as_file_says(n_layer.max(0) as u32, "block_count")
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<Token> {
        // SAFETY: the vocabulary lives as long as the model.
        known(unsafe { sys::llama_vocab_bos(self.vocab.as_ptr()) })
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<Token> {
        // SAFETY: the vocabulary lives as long as the model.
        known(unsafe { sys::llama_vocab_eos(self.vocab.as_ptr()) })
    }

    /// Whether the vocabulary begins every text with BOS.
    pub fn adds_bos(&self) -> bool {
        // SAFETY: the vocabulary lives as long as the model.
        self.has_vocab && unsafe { sys::llama_vocab_get_add_bos(self.vocab.as_ptr()) }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // The templates hold no pointer into the model, and every context owns an `Arc` of it.
        // SAFETY: this is the only owner, and the last use.
        unsafe { sys::llama_model_free(self.as_ptr()) };
    }
}

/// A token id, where llama.cpp has one.
fn known(token: Token) -> Option<Token> {
    (token >= 0).then_some(token)
}

/// A text from a call that writes at most `cap` bytes, a NUL among them, and returns the length that it wanted.
fn read_text(call: impl Fn(*mut c_char, usize) -> i32) -> Option<String> {
    let mut buf = vec![0_u8; 256];
    let length = usize::try_from(call(buf.as_mut_ptr().cast(), buf.len())).ok()?;
    if length >= buf.len() {
        buf.resize(length + 1, 0);
        call(buf.as_mut_ptr().cast(), buf.len());
    }
    buf.truncate(length);
    Some(String::from_utf8_lossy(&buf).into_owned())
}
