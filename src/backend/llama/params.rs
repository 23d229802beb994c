//! Start options as llama.cpp's parameters.

use super::ffi;
use crate::error::Error;
use crate::options::{AttentionType, CacheType, FlashAttention, RopeScaling, SplitMode, StartOptions};
use llama_cpp_sys_2 as sys;

/// llama.cpp's parameters of a model, without pointers.
pub(super) fn model_params(options: &StartOptions) -> sys::llama_model_params {
    // SAFETY: returns a struct.
    let mut params = unsafe { sys::llama_model_default_params() };
    params.n_gpu_layers = options.n_gpu_layers;
    params.main_gpu = options.main_gpu as i32;
    params.split_mode = match options.split_mode {
        SplitMode::None => sys::LLAMA_SPLIT_MODE_NONE,
        SplitMode::Layer => sys::LLAMA_SPLIT_MODE_LAYER,
        SplitMode::Row => sys::LLAMA_SPLIT_MODE_ROW,
        SplitMode::Tensor => sys::LLAMA_SPLIT_MODE_TENSOR,
    };
    // One setting for three flags: direct I/O wins outright, the other two combine.
    params.load_mode = match (options.use_direct_io, options.use_mmap, options.use_mlock) {
        (true, _, _) => sys::LLAMA_LOAD_MODE_DIRECT_IO,
        (false, true, true) => sys::LLAMA_LOAD_MODE_MMAP_MLOCK,
        (false, true, false) => sys::LLAMA_LOAD_MODE_MMAP,
        (false, false, true) => sys::LLAMA_LOAD_MODE_MLOCK,
        (false, false, false) => sys::LLAMA_LOAD_MODE_NONE,
    };
    params.check_tensors = options.check_tensors;
    // Weights laid out for AMX are among the extra buffers: without those there is none of it.
    // SAFETY: returns a flag.
    params.use_extra_bufts &= !unsafe { ffi::lb_amx_is_broken() };
    params
}

/// llama.cpp's parameters of a context, but for sizes and threads, which depend on the model and the machine.
///
/// # Errors
/// [`Error::Option`] where two options contradict each other.
pub(super) fn context_params(options: &StartOptions) -> Result<sys::llama_context_params, Error> {
    if options.flash_attn == FlashAttention::Off && is_quantised(options.type_v) {
        return Err(Error::Option(format!(
            "type_v={:?} needs flash attention, which flash_attn=\"off\" turns off",
            options.type_v.word()
        )));
    }
    // SAFETY: returns a struct.
    let mut params = unsafe { sys::llama_context_default_params() };
    params.flash_attn_type = match options.flash_attn {
        FlashAttention::Auto => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
        FlashAttention::On => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        FlashAttention::Off => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
    };
    params.attention_type = match options.attention_type {
        None => sys::LLAMA_ATTENTION_TYPE_UNSPECIFIED,
        Some(AttentionType::Causal) => sys::LLAMA_ATTENTION_TYPE_CAUSAL,
        Some(AttentionType::NonCausal) => sys::LLAMA_ATTENTION_TYPE_NON_CAUSAL,
    };
    params.rope_scaling_type = match options.rope_scaling_type {
        None => sys::LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED,
        Some(RopeScaling::None) => sys::LLAMA_ROPE_SCALING_TYPE_NONE,
        Some(RopeScaling::Linear) => sys::LLAMA_ROPE_SCALING_TYPE_LINEAR,
        Some(RopeScaling::Yarn) => sys::LLAMA_ROPE_SCALING_TYPE_YARN,
        Some(RopeScaling::LongRope) => sys::LLAMA_ROPE_SCALING_TYPE_LONGROPE,
    };
    params.rope_freq_base = options.rope_freq_base;
    params.rope_freq_scale = options.rope_freq_scale;
    params.yarn_ext_factor = options.yarn_ext_factor;
    params.yarn_attn_factor = options.yarn_attn_factor;
    params.yarn_beta_fast = options.yarn_beta_fast;
    params.yarn_beta_slow = options.yarn_beta_slow;
    params.yarn_orig_ctx = options.yarn_orig_ctx;
    params.type_k = cache_type(options.type_k);
    params.type_v = cache_type(options.type_v);
    params.offload_kqv = options.offload_kqv;
    params.op_offload = options.op_offload;
    params.no_perf = options.no_perf;
    params.swa_full = options.swa_full;
    Ok(params)
}

const fn cache_type(kind: CacheType) -> sys::ggml_type {
    match kind {
        CacheType::F32 => sys::GGML_TYPE_F32,
        CacheType::F16 => sys::GGML_TYPE_F16,
        CacheType::Bf16 => sys::GGML_TYPE_BF16,
        CacheType::Q8_0 => sys::GGML_TYPE_Q8_0,
        CacheType::Q4_0 => sys::GGML_TYPE_Q4_0,
        CacheType::Q4_1 => sys::GGML_TYPE_Q4_1,
        CacheType::Iq4Nl => sys::GGML_TYPE_IQ4_NL,
        CacheType::Q5_0 => sys::GGML_TYPE_Q5_0,
        CacheType::Q5_1 => sys::GGML_TYPE_Q5_1,
    }
}

const fn is_quantised(kind: CacheType) -> bool {
    match kind {
        CacheType::F32 | CacheType::F16 | CacheType::Bf16 => false,
        CacheType::Q8_0 | CacheType::Q4_0 | CacheType::Q4_1 | CacheType::Iq4Nl | CacheType::Q5_0 | CacheType::Q5_1 => {
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{context_params, model_params, sys};
    use crate::error::Error;
    use crate::options::{CacheType, FlashAttention, StartOptions};

    #[test]
    fn direct_io_wins_and_mmap_and_mlock_combine() {
        let mode = |direct, mmap, mlock| {
            let options =
                StartOptions { use_direct_io: direct, use_mmap: mmap, use_mlock: mlock, ..StartOptions::default() };
            model_params(&options).load_mode
        };
        assert_eq!(mode(true, true, true), sys::LLAMA_LOAD_MODE_DIRECT_IO);
        assert_eq!(mode(true, false, false), sys::LLAMA_LOAD_MODE_DIRECT_IO);
        assert_eq!(mode(false, true, true), sys::LLAMA_LOAD_MODE_MMAP_MLOCK);
        assert_eq!(mode(false, true, false), sys::LLAMA_LOAD_MODE_MMAP);
        assert_eq!(mode(false, false, true), sys::LLAMA_LOAD_MODE_MLOCK);
        assert_eq!(mode(false, false, false), sys::LLAMA_LOAD_MODE_NONE);
    }

    #[test]
    fn a_quantised_v_cache_without_flash_attention_is_refused() {
        let with = |type_v, flash_attn| {
            context_params(&StartOptions { type_v, flash_attn, ..StartOptions::default() }).map(|_| ())
        };
        assert!(matches!(with(CacheType::Q8_0, FlashAttention::Off), Err(Error::Option(_))));
        assert_eq!(with(CacheType::Q8_0, FlashAttention::Auto), Ok(()));
        assert_eq!(with(CacheType::F16, FlashAttention::Off), Ok(()));
    }
}
