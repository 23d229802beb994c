//! The shim's functions (`shim/llama_shim.h`), declared by hand, and the text that comes with an exception.

use llama_cpp_sys_2 as sys;
use std::ffi::{CStr, c_char};

/// What the shim returns where llama.cpp threw.
pub(super) const THROWN: i32 = -100;

/// A chat template, on the C++ side.
#[repr(C)]
pub(super) struct Chat {
    _opaque: [u8; 0],
}

/// What reads answers to a conversation, on the C++ side.
#[repr(C)]
#[derive(Debug)]
pub(super) struct ChatParser {
    _opaque: [u8; 0],
}

/// `lb_need`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) kv_bytes: u64,
    pub(super) compute_bytes: u64,
}

/// `lb_shape`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) n_ctx_seq: u32,
    pub(super) n_stream: u32,
    pub(super) n_seq_max: u32,
    pub(super) n_ubatch: u32,
    pub(super) n_outputs: u32,
    pub(super) type_k: i32,
    pub(super) type_v: i32,
    pub(super) unified: bool,
    pub(super) swa_full: bool,
    pub(super) flash_attn: bool,
}

/// `lb_memory_kind`.
pub(super) const MEMORY_NONE: i32 = 0;
pub(super) const MEMORY_FULL: i32 = 1;
pub(super) const MEMORY_SLIDING: i32 = 2;
pub(super) const MEMORY_RECURRENT: i32 = 3;
pub(super) const MEMORY_HYBRID: i32 = 4;

unsafe extern "C" {
    pub(super) fn lb_silence_common();
    pub(super) fn lb_build_info() -> *const c_char;
    pub(super) fn lb_model_load(
        path: *const c_char,
        params: *const sys::llama_model_params,
        out: *mut *mut sys::llama_model,
        err: *mut c_char,
        err_cap: usize,
    ) -> i32;
    pub(super) fn lb_context_new(
        model: *mut sys::llama_model,
        params: *const sys::llama_context_params,
        out: *mut *mut sys::llama_context,
        err: *mut c_char,
        err_cap: usize,
    ) -> i32;
    pub(super) fn lb_model_n_devices(model: *const sys::llama_model) -> i32;
    pub(super) fn lb_model_window(model: *const sys::llama_model) -> i32;
    pub(super) fn lb_model_n_positions(model: *const sys::llama_model) -> i32;
    pub(super) fn lb_model_is_causal(model: *const sys::llama_model) -> bool;
    pub(super) fn lb_context_need(
        model: *const sys::llama_model,
        shape: *const Shape,
        out: *mut Need,
        err: *mut c_char,
        err_cap: usize,
    ) -> i32;
    pub(super) fn lb_decode(
        ctx: *mut sys::llama_context,
        batch: *const sys::llama_batch,
        logits: *mut *mut f32,
        err: *mut c_char,
        err_cap: usize,
    ) -> i32;
    pub(super) fn lb_embed(
        ctx: *mut sys::llama_context,
        batch: *const sys::llama_batch,
        rows: *mut *mut f32,
        err: *mut c_char,
        err_cap: usize,
    ) -> i32;
    pub(super) fn lb_seq_rm(
        ctx: *mut sys::llama_context,
        seq: i32,
        p0: i32,
        p1: i32,
        done: *mut bool,
        err: *mut c_char,
        err_cap: usize,
    ) -> i32;
    pub(super) fn lb_seq_cp(
        ctx: *mut sys::llama_context,
        from: i32,
        to: i32,
        p0: i32,
        p1: i32,
        err: *mut c_char,
        err_cap: usize,
    ) -> i32;
    pub(super) fn lb_seq_unshare(ctx: *mut sys::llama_context, seq: i32, err: *mut c_char, err_cap: usize) -> i32;
    pub(super) fn lb_state_get(
        ctx: *mut sys::llama_context,
        seq: i32,
        in_part: bool,
        buf: *mut u8,
        cap: usize,
        n: *mut usize,
        err: *mut c_char,
        err_cap: usize,
    ) -> i32;
    pub(super) fn lb_state_set(
        ctx: *mut sys::llama_context,
        seq: i32,
        buf: *const u8,
        len: usize,
        n: *mut usize,
        err: *mut c_char,
        err_cap: usize,
    ) -> i32;
    pub(super) fn lb_amx_is_broken() -> bool;
    pub(super) fn lb_trim_heap();
    pub(super) fn lb_memory_kind_of(ctx: *mut sys::llama_context) -> i32;
    pub(super) fn lb_used_cells(ctx: *mut sys::llama_context, seq: i32, windowed: bool) -> i64;
    pub(super) fn lb_span(ctx: *mut sys::llama_context) -> i64;
    pub(super) fn lb_top(
        ctx: *mut sys::llama_context,
        most: i32,
        seqs: *mut i32,
        cap: i32,
        p0: *mut i32,
        p1: *mut i32,
    ) -> i32;
    pub(super) fn lb_tokenize(
        vocab: *const sys::llama_vocab,
        text: *const c_char,
        len: i32,
        tokens: *mut i32,
        cap: i32,
        add_special: bool,
        parse_special: bool,
        n: *mut i32,
        err: *mut c_char,
        err_cap: usize,
    ) -> i32;
    pub(super) fn lb_piece(
        vocab: *const sys::llama_vocab,
        token: i32,
        buf: *mut c_char,
        cap: i32,
        special: bool,
        n: *mut i32,
        err: *mut c_char,
        err_cap: usize,
    ) -> i32;
    pub(super) fn lb_detokenize(
        vocab: *const sys::llama_vocab,
        tokens: *const i32,
        n_tokens: i32,
        buf: *mut c_char,
        cap: i32,
        special: bool,
        n: *mut i32,
        err: *mut c_char,
        err_cap: usize,
    ) -> i32;
    pub(super) fn lb_chat_new(
        model: *const sys::llama_model,
        source: *const c_char,
        len: usize,
        out: *mut *mut Chat,
        err: *mut c_char,
        err_cap: usize,
    ) -> i32;
    pub(super) fn lb_chat_free(chat: *mut Chat);
    pub(super) fn lb_chat_try(source: *const c_char, len: usize, err: *mut c_char, err_cap: usize) -> i32;
    pub(super) fn lb_chat_caps(
        chat: *const Chat,
        out: *mut *mut c_char,
        out_len: *mut usize,
        err: *mut c_char,
        err_cap: usize,
    ) -> i32;
    pub(super) fn lb_chat_apply(
        chat: *const Chat,
        asked: *const c_char,
        len: usize,
        out: *mut *mut c_char,
        out_len: *mut usize,
        err: *mut c_char,
        err_cap: usize,
    ) -> i32;
    pub(super) fn lb_chat_parser_new(
        syntax: *const c_char,
        len: usize,
        out: *mut *mut ChatParser,
        err: *mut c_char,
        err_cap: usize,
    ) -> i32;
    pub(super) fn lb_chat_parser_free(parser: *mut ChatParser);
    pub(super) fn lb_chat_parse(
        parser: *const ChatParser,
        text: *const c_char,
        len: usize,
        is_partial: bool,
        out: *mut *mut c_char,
        out_len: *mut usize,
        err: *mut c_char,
        err_cap: usize,
    ) -> i32;
    pub(super) fn lb_text_free(text: *mut c_char);
}

/// Call a function of the shim with a buffer for its reason; the code it returned, or the text of the exception.
///
/// Codes above 0 may come with a reason too, which the second value holds.
pub(super) fn guarded(call: impl FnOnce(*mut c_char, usize) -> i32) -> Result<(i32, String), String> {
    let mut reason = [0_u8; 1024];
    let code = call(reason.as_mut_ptr().cast(), reason.len());
    let text = CStr::from_bytes_until_nul(&reason).map_or_else(|_| String::new(), |c| c.to_string_lossy().into_owned());
    if code == THROWN { Err(text) } else { Ok((code, text)) }
}

/// A text that llama.cpp owns for as long as the process lives.
///
/// # Safety
/// The pointer is null or points to a NUL-terminated text that outlives the call.
pub(super) unsafe fn text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the caller says that it is a NUL-terminated text.
    Some(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}
