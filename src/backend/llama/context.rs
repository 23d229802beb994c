//! A context of llama.cpp with its threads: made within the memory that there is, dropped in the right order.

use super::batch::{Batch, Bounds};
use super::ffi::{self, Need, Shape, guarded};
use super::logs;
use super::machine::{available_memory, gib, n_physical_cores};
use super::model::Model;
use super::params::context_params;
use super::threads::Threads;
use crate::core::{MemoryKind, Row, SeqId};
use crate::error::Error;
use crate::options::StartOptions;
use llama_cpp_sys_2 as sys;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

/// llama.cpp's bound on sequences.
const MAX_SEQ: usize = 256;

/// Sizes of a context that follow from the options and the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) n_ctx: u32,
    pub(super) n_batch: u32,
    pub(super) n_ubatch: u32,
    pub(super) n_seq_max: u32,
    pub(super) n_outputs: u32,
    pub(super) unified: bool,
    /// Whether it gives the vector of each token, in the place of logits that somebody looks at.
    pub(super) embeds: bool,
}

/// A context. Its own destructor runs first, then those of the fields in their order.
pub(super) struct Context {
    pointer: NonNull<sys::llama_context>,
    /// By their number; ggml pauses those that it does not use.
    threads: BTreeMap<u32, Threads>,
    n_threads: u32,
    abort: Arc<AtomicBool>,
    pub(super) model: Arc<Model>,
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the only owner; threads, flag and model outlive it.
        unsafe { sys::llama_free(self.pointer.as_ptr()) };
    }
}

unsafe extern "C" fn on_abort(flag: *mut c_void) -> bool {
    // SAFETY: the context owns the flag that it passes.
    unsafe { &*flag.cast::<AtomicBool>() }.load(Ordering::Relaxed)
}

impl Context {
    /// Make a context.
    ///
    /// # Errors
    /// [`Error::Option`] where options contradict each other or the model; [`Error::ModelLoad`] where the memory does
    /// not suffice or llama.cpp refuses, with its reason.
    pub(super) fn new(model: Arc<Model>, options: &StartOptions, layout: &Layout) -> Result<Self, Error> {
        Self::with_flag(model, options, layout, Arc::default())
    }

    /// The same, with a flag that aborts passes of other contexts too.
    ///
    /// # Errors
    /// Those of [`Self::new`].
    pub(super) fn with_flag(
        model: Arc<Model>,
        options: &StartOptions,
        layout: &Layout,
        abort: Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        if model.is_vocabulary {
            return Err(Error::Unsupported("the model computes in another process (isolate)".into()));
        }
        let mut params = context_params(options)?;
        params.n_ctx = layout.n_ctx;
        params.n_batch = layout.n_batch;
        params.n_ubatch = layout.n_ubatch;
        params.n_seq_max = layout.n_seq_max;
        params.n_outputs_max = layout.n_outputs;
        params.kv_unified = layout.unified;
        params.embeddings = layout.embeds;
        if layout.embeds && model.pooling().is_some() {
            // Of tokens: what they become is not llama.cpp's to say.
            params.pooling_type = sys::LLAMA_POOLING_TYPE_NONE;
        }
        let physical = n_physical_cores();
        let or_physical = |n: u32| if n == 0 { physical } else { n };
        let n_threads = or_physical(options.n_threads);
        let n_threads_batch = options.n_threads_batch.map_or(n_threads, or_physical);
        params.n_threads = n_threads as i32;
        params.n_threads_batch = n_threads_batch as i32;
        params.abort_callback = Some(on_abort);
        params.abort_callback_data = Arc::as_ptr(&abort).cast_mut().cast();

        fits(&model, options, layout, &params)?;
        let pointer = make(&model, &params)?;
        let mut context = Self { pointer, threads: BTreeMap::new(), n_threads: 0, abort, model };
        if !context.attach(n_threads.max(n_threads_batch)) {
            return Err(Error::ModelLoad("the threads that compute could not be started".into()));
        }
        Ok(context)
    }

    /// Have passes computed by threads out of so many; whether there are such.
    fn attach(&mut self, n: u32) -> bool {
        if !self.threads.contains_key(&n) {
            self.threads.extend(Threads::new(n).map(|threads| (n, threads)));
        }
        let Some(threads) = self.threads.get(&n) else { return false };
        // SAFETY: both are alive, and the threads outlive the context.
        unsafe { sys::llama_attach_threadpool(self.as_ptr(), threads.as_ptr(), threads.as_ptr()) };
        self.n_threads = n;
        true
    }

    /// Let passes have so many threads; whether they can.
    pub(super) fn set_threads(&mut self, n: u32) -> bool {
        let attached = self.attach(n);
        if attached {
            // SAFETY: the context is alive, and has so many.
            unsafe { sys::llama_set_n_threads(self.as_ptr(), n as i32, n as i32) };
        }
        attached
    }

    /// The flag that aborts a running pass.
    pub(super) fn abort_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.abort)
    }

    pub(super) const fn as_ptr(&self) -> *mut sys::llama_context {
        self.pointer.as_ptr()
    }

    /// What the sequences can do; none where the model does not generate.
    pub(super) fn memory(&self) -> Option<MemoryKind> {
        // SAFETY: the context is alive.
        let kind = unsafe { ffi::lb_memory_kind_of(self.as_ptr()) };
        match (kind, self.model.memory()) {
            (ffi::MEMORY_NONE, _) => None,
            (ffi::MEMORY_FULL, MemoryKind::Full) => Some(MemoryKind::Full),
            (ffi::MEMORY_SLIDING, MemoryKind::SlidingWindow(n)) => Some(MemoryKind::SlidingWindow(n)),
            (ffi::MEMORY_RECURRENT, MemoryKind::Recurrent) => Some(MemoryKind::Recurrent),
            // Of a kind whose rules are not known here only the least is assumed.
            _ => Some(MemoryKind::Hybrid),
        }
    }

    /// `n_ctx`, `n_ctx_seq` and the rows of a ubatch, as llama.cpp made them.
    pub(super) fn sizes(&self) -> (u32, u32, u32) {
        // SAFETY: the context is alive.
        unsafe {
            let rows = sys::llama_n_batch(self.as_ptr()).min(sys::llama_n_ubatch(self.as_ptr()));
            (sys::llama_n_ctx(self.as_ptr()), sys::llama_n_ctx_seq(self.as_ptr()), rows)
        }
    }

    /// Compute rows that have no [`super::batch::flaw`]. llama.cpp's code, and the logits of the rows that draw; the
    /// text of an exception otherwise.
    pub(super) fn decode(&mut self, batch: &mut Batch, rows: &[Row]) -> Result<(i32, &mut [f32]), String> {
        let batch = batch.fill(rows);
        let _stays = self.threads[&self.n_threads].stay();
        let mut logits = std::ptr::null_mut();
        // SAFETY: the context is alive; the batch points to buffers of its length, and its rows were checked.
        let (code, _) = guarded(|err, err_cap| unsafe {
            ffi::lb_decode(self.as_ptr(), &raw const batch, &raw mut logits, err, err_cap)
        })?;
        let n_outputs = rows.iter().filter(|row| row.is_looked_at()).count();
        if code != 0 || n_outputs == 0 || logits.is_null() {
            return Ok((code, &mut []));
        }
        let n = n_outputs * self.model.n_vocab as usize;
        // SAFETY: llama.cpp holds one row of the vocabulary's length for each output, until the next call on the
        // context, which borrowing `self` rules out.
        Ok((code, unsafe { std::slice::from_raw_parts_mut(logits, n) }))
    }

    /// Compute rows that have no [`super::batch::flaw`] in a context that embeds. llama.cpp's code, and a vector for each
    /// row; the text of an exception otherwise.
    pub(super) fn embed(&mut self, batch: &mut Batch, rows: &[Row]) -> Result<(i32, &[f32]), String> {
        let batch = batch.fill(rows);
        let _stays = self.threads[&self.n_threads].stay();
        let mut vectors = std::ptr::null_mut();
        // SAFETY: the context is alive; the batch points to buffers of its length, and its rows were checked.
        let (code, _) = guarded(|err, err_cap| unsafe {
            ffi::lb_embed(self.as_ptr(), &raw const batch, &raw mut vectors, err, err_cap)
        })?;
        if code != 0 || vectors.is_null() {
            return Ok((code, &[]));
        }
        let n = rows.len() * self.model.n_embd_out() as usize;
        // SAFETY: in such a context every row is an output, and llama.cpp holds a vector of the model's width for each,
        // until the next call on the context, which borrowing `self` rules out.
        Ok((code, unsafe { std::slice::from_raw_parts(vectors, n) }))
    }

    /// Cells in use, where the memory counts them: for tests and reports.
    pub(super) fn used_cells(&self, seq: SeqId) -> Option<u32> {
        // SAFETY: the context is alive, and every sequence id below the limit has a stream.
        u32::try_from(unsafe { ffi::lb_used_cells(self.as_ptr(), seq.0 as i32, false) }).ok()
    }

    /// Cells of a sliding window in use, where there is one.
    pub(super) fn window_cells(&self, seq: SeqId) -> Option<u32> {
        // SAFETY: as above.
        u32::try_from(unsafe { ffi::lb_used_cells(self.as_ptr(), seq.0 as i32, true) }).ok()
    }

    /// Cells up to the highest one in use, where the memory has cells.
    pub(super) fn span(&self) -> Option<u32> {
        // SAFETY: the context is alive.
        u32::try_from(unsafe { ffi::lb_span(self.as_ptr()) }).ok()
    }

    /// Whose cells end at the highest one in use: at most `most` positions, and all sequences that hold those.
    pub(super) fn top(&self, most: u32) -> Option<(Range<u32>, Vec<SeqId>)> {
        let mut seqs = [0; MAX_SEQ];
        let (mut first, mut end) = (0, 0);
        // SAFETY: the context is alive; the list is as long as it says.
        let n = unsafe {
            let (list, cap) = (seqs.as_mut_ptr(), seqs.len() as i32);
            ffi::lb_top(self.as_ptr(), most as i32, list, cap, &raw mut first, &raw mut end)
        };
        let range = u32::try_from(first).ok()?..u32::try_from(end).ok()?;
        let holders: Vec<SeqId> = seqs.iter().take(n.max(0) as usize).map(|seq| SeqId(*seq as u32)).collect();
        (!holders.is_empty() && !range.is_empty()).then_some((range, holders))
    }

    /// Whether a copy between sequences of one buffer is all that it takes: known for some kinds of memory only.
    pub(super) fn copies(&self) -> bool {
        // SAFETY: the context is alive.
        let kind = unsafe { ffi::lb_memory_kind_of(self.as_ptr()) };
        [ffi::MEMORY_FULL, ffi::MEMORY_SLIDING, ffi::MEMORY_RECURRENT, ffi::MEMORY_HYBRID].contains(&kind)
    }

    /// Forget everything.
    pub(super) fn clear(&mut self) {
        // SAFETY: the context is alive; without a memory there is nothing to forget. The data stay as they are: without
        // cells nothing reads them.
        unsafe {
            let memory = sys::llama_get_memory(self.as_ptr());
            if !memory.is_null() {
                sys::llama_memory_clear(memory, false);
            }
        }
    }

    /// What a pass must keep to.
    pub(super) fn bounds(&self, layout: &Layout) -> Bounds {
        // SAFETY: the model is alive.
        let n_positions = unsafe { ffi::lb_model_n_positions(self.model.as_ptr()) };
        Bounds {
            n_batch: layout.n_batch.min(layout.n_ubatch).min(self.sizes().2),
            n_outputs: layout.n_outputs,
            n_seq_max: layout.n_seq_max,
            n_vocab: self.model.n_vocab,
            n_positions: n_positions.max(0) as u32,
        }
    }
}

/// What a context takes.
fn need(
    model: &Model,
    options: &StartOptions,
    layout: &Layout,
    params: &sys::llama_context_params,
) -> Result<Need, Error> {
    let n_stream = if layout.unified { 1 } else { layout.n_seq_max };
    let shape = Shape {
        n_ctx_seq: layout.n_ctx.div_ceil(n_stream).next_multiple_of(256),
        n_stream,
        n_seq_max: layout.n_seq_max,
        n_ubatch: layout.n_ubatch,
        n_outputs: layout.n_outputs,
        type_k: params.type_k as i32,
        type_v: params.type_v as i32,
        unified: layout.unified,
        swa_full: options.swa_full,
        flash_attn: params.flash_attn_type != sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
    };
    let mut need = Need::default();
    // SAFETY: model, shape and result are alive for the call.
    let done = guarded(|err, err_cap| unsafe {
        ffi::lb_context_need(model.as_ptr(), &raw const shape, &raw mut need, err, err_cap)
    });
    match done {
        Ok((0, _)) => Ok(need),
        Ok((_, reason)) => Err(Error::Option(reason)),
        Err(thrown) => Err(Error::ModelLoad(format!("the context's size is not known: {thrown}"))),
    }
}

/// What the KV cache of such a context takes. Unit: bytes.
///
/// # Errors
/// [`Error::Option`] where options contradict each other or the model.
pub(super) fn kv_bytes(model: &Model, options: &StartOptions, layout: &Layout) -> Result<u64, Error> {
    need(model, options, layout, &context_params(options)?).map(|need| need.kv_bytes)
}

/// Refuse a context that the memory of this machine cannot hold, before the kernel ends the process over it.
fn fits(
    model: &Model,
    options: &StartOptions,
    layout: &Layout,
    params: &sys::llama_context_params,
) -> Result<(), Error> {
    let need = need(model, options, layout, params)?;
    let on_host = !model.uses_devices();
    let kv = if on_host || !options.offload_kqv { need.kv_bytes } else { 0 };
    let compute = if on_host { need.compute_bytes } else { 0 };
    match available_memory() {
        Some(available) if kv.saturating_add(compute) > available => Err(Error::ModelLoad(format!(
            "a context of {} tokens needs about {} of memory ({} for the KV cache, {} to compute), and {} are available; \
             a smaller n_ctx or smaller type_k and type_v need less",
            layout.n_ctx,
            gib(kv.saturating_add(compute)),
            gib(kv),
            gib(compute),
            gib(available)
        ))),
        Some(_) | None => Ok(()),
    }
}

fn make(model: &Model, params: &sys::llama_context_params) -> Result<NonNull<sys::llama_context>, Error> {
    let _one_at_a_time = model.making_context.lock().unwrap_or_else(PoisonError::into_inner);
    logs::forget_errors();
    let mut context = std::ptr::null_mut();
    // SAFETY: the model is alive; the context keeps only the abort flag, which its owner keeps too.
    let done = guarded(|err, err_cap| unsafe {
        ffi::lb_context_new(model.as_ptr(), std::ptr::from_ref(params), &raw mut context, err, err_cap)
    });
    let why = |reason: String| Error::ModelLoad(format!("llama.cpp could not make a context: {reason}"));
    done.map_err(why)?;
    NonNull::new(context).ok_or_else(|| why(logs::reason("it gave no reason")))
}
