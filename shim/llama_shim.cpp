#include "guard.h"

#include "build-info.h"
#include "ggml-cpu.h"
#include "llama-arch.h"
#include "llama-ext.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-kv-cells.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"
#include "log.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#if defined(__GLIBC__)
#    include <malloc.h>
#endif

// ggml would install a terminate handler that starts a debugger in the host's process. It asks the environment in a
// static initialiser, so the answer has to be there before those of this library run.
#if defined(__GNUC__)
#    if defined(__APPLE__) || defined(_WIN32)
__attribute__((constructor))
#    else
__attribute__((constructor(101)))
#    endif
static void lb_no_backtrace(void) {
#    if defined(_WIN32)
    if (std::getenv("GGML_NO_BACKTRACE") == nullptr) {
        _putenv_s("GGML_NO_BACKTRACE", "1");
    }
#    else
    setenv("GGML_NO_BACKTRACE", "1", 0);
#    endif
}
#endif

extern "C" void lb_silence_common(void) {
    common_log_set_verbosity_thold(-1);
}

extern "C" const char * lb_build_info(void) {
    return llama_build_info();
}

extern "C" int32_t lb_model_load(const char * path, const llama_model_params * params, llama_model ** out, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&] {
        *out = llama_model_load_from_file(path, *params);
        return LB_OK;
    });
}

extern "C" int32_t lb_context_new(llama_model * model, const llama_context_params * params, llama_context ** out, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&] {
        *out = llama_init_from_model(model, *params);
        return LB_OK;
    });
}

extern "C" int32_t lb_model_n_devices(const llama_model * model) {
    return llama_model_n_devices(model);
}

extern "C" int32_t lb_model_window(const llama_model * model) {
    return model->hparams.swa_type == LLAMA_SWA_TYPE_NONE ? 0 : (int32_t) model->hparams.n_swa;
}

extern "C" int32_t lb_model_n_positions(const llama_model * model) {
    return model->pos_embd == nullptr ? INT32_MAX : (int32_t) model->pos_embd->ne[1];
}

extern "C" bool lb_model_is_causal(const llama_model * model) {
    return model->hparams.causal_attn;
}

// Bytes of a row of n values of a type.
static uint64_t row_bytes(ggml_type type, uint64_t n) {
    return n / ggml_blck_size(type) * ggml_type_size(type);
}

static uint64_t pad256(uint64_t n) {
    return (n + 255) / 256 * 256;
}

static uint64_t kv_bytes(const llama_model & model, const lb_shape & shape) {
    const auto & hp     = model.hparams;
    const auto   type_k = (ggml_type) shape.type_k;
    const auto   type_v = (ggml_type) shape.type_v;
    const bool recurrent = llm_arch_is_recurrent(model.arch);
    const bool hybrid    = llm_arch_is_hybrid(model.arch);
    const uint64_t window = pad256(std::min<uint64_t>(
        shape.n_ctx_seq, (uint64_t) hp.n_swa * (shape.unified ? shape.n_seq_max : 1) + shape.n_ubatch));
    uint64_t total = 0;
    for (uint32_t il = 0; il < hp.n_layer(); ++il) {
        if (recurrent || (hybrid && hp.is_recr(il))) {
            total += (uint64_t) (hp.n_embd_r() + hp.n_embd_s()) * sizeof(float) * shape.n_seq_max;
        }
        if (recurrent || !hp.has_kv(il) || (hybrid && hp.is_recr(il) && model.arch != LLM_ARCH_FALCON_H1)) {
            continue;
        }
        const bool windowed = hp.swa_type != LLAMA_SWA_TYPE_NONE && hp.is_swa(il) && !shape.swa_full;
        const uint64_t cells = (windowed ? window : shape.n_ctx_seq) * (uint64_t) shape.n_stream;
        const uint64_t n_v = hp.is_mla() ? 0 : shape.flash_attn ? hp.n_embd_v_gqa(il) : hp.n_embd_v_gqa_max();
        total += cells * (row_bytes(type_k, hp.n_embd_k_gqa(il)) + row_bytes(type_v, n_v));
    }
    return total;
}

static uint64_t compute_bytes(const llama_model & model, const lb_shape & shape) {
    const auto & hp = model.hparams;
    uint64_t n_ff = 0, n_head = 0;
    for (uint32_t il = 0; il < hp.n_layer(); ++il) {
        n_ff   = std::max<uint64_t>(n_ff, std::max<uint64_t>(hp.n_ff(il), (uint64_t) hp.n_ff_exp(il) * hp.n_expert_used(il)));
        n_head = std::max<uint64_t>(n_head, hp.n_head(il));
    }
    const uint64_t rows    = shape.n_ubatch;
    const uint64_t n_vocab = model.vocab.n_tokens();
    const uint64_t span    = llm_arch_is_recurrent(model.arch) ? 0 : shape.n_ctx_seq;
    const uint64_t logits  = 2 * (uint64_t) shape.n_outputs * n_vocab * sizeof(float);
    const uint64_t hidden  = rows * (4 * (uint64_t) hp.n_embd + 2 * n_ff) * sizeof(float);
    const uint64_t mask    = rows * span * (shape.flash_attn ? 6 : 4);
    const uint64_t scores  = shape.flash_attn ? 0 : rows * span * n_head * sizeof(float);
    return logits + hidden + mask + scores;
}

extern "C" int32_t lb_context_need(const llama_model * model, const lb_shape * shape, lb_need * out, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&]() -> int32_t {
        const auto & hp = model->hparams;
        const auto check = [&](const char * name, int32_t type, uint32_t head) {
            const int64_t block = ggml_blck_size((ggml_type) type);
            if (head % block == 0) {
                return true;
            }
            std::snprintf(err, err_cap, "%s %s needs heads of a multiple of %d values; this model's have %u", name,
                          ggml_type_name((ggml_type) type), (int) block, head);
            return false;
        };
        for (uint32_t il = 0; il < hp.n_layer(); ++il) {
            if (!llm_arch_is_recurrent(model->arch) && hp.has_kv(il) &&
                (!check("type_k", shape->type_k, hp.n_embd_head_k(il)) || !check("type_v", shape->type_v, hp.n_embd_head_v(il)))) {
                return 1;
            }
        }
        out->kv_bytes      = kv_bytes(*model, *shape);
        out->compute_bytes = compute_bytes(*model, *shape);
        return LB_OK;
    });
}

extern "C" int32_t lb_decode(llama_context * ctx, const llama_batch * batch, float ** logits, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&] {
        *logits = nullptr;
        const int32_t code = llama_decode(ctx, *batch);
        if (code == 0) {
            *logits = llama_get_logits(ctx);
        }
        return code;
    });
}

extern "C" int32_t lb_embed(llama_context * ctx, const llama_batch * batch, float ** rows, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&] {
        *rows = nullptr;
        const int32_t code = llama_decode(ctx, *batch);
        if (code == 0) {
            *rows = llama_get_embeddings(ctx);
        }
        return code;
    });
}

extern "C" int32_t lb_seq_rm(llama_context * ctx, int32_t seq, int32_t p0, int32_t p1, bool * done, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&] {
        *done = llama_memory_seq_rm(llama_get_memory(ctx), seq, p0, p1);
        return LB_OK;
    });
}

extern "C" int32_t lb_seq_cp(llama_context * ctx, int32_t from, int32_t to, int32_t p0, int32_t p1, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&] {
        llama_memory_seq_cp(llama_get_memory(ctx), from, to, p0, p1);
        return LB_OK;
    });
}

extern "C" int32_t lb_seq_unshare(llama_context * ctx, int32_t seq, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&]() -> int32_t {
        static thread_local std::vector<uint8_t> state;
        const auto flags = LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;
        const size_t size = llama_state_seq_get_size_ext(ctx, seq, flags);
        if (state.size() < size) {
            state.resize(size);
        }
        const size_t got = llama_state_seq_get_data_ext(ctx, state.data(), size, seq, flags);
        return got > 0 && llama_state_seq_set_data_ext(ctx, state.data(), got, seq, flags) == got ? LB_OK : 1;
    });
}

extern "C" int32_t lb_state_get(llama_context * ctx, int32_t seq, bool in_part, uint8_t * buf, size_t cap, size_t * n, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&]() -> int32_t {
        const llama_state_seq_flags flags = in_part ? LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY : 0;
        *n = buf == nullptr ? llama_state_seq_get_size_ext(ctx, seq, flags) : llama_state_seq_get_data_ext(ctx, buf, cap, seq, flags);
        return LB_OK;
    });
}

extern "C" int32_t lb_state_set(llama_context * ctx, int32_t seq, const uint8_t * buf, size_t len, size_t * n, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&]() -> int32_t {
        *n = llama_state_seq_set_data(ctx, buf, len, seq);
        return LB_OK;
    });
}

extern "C" bool lb_amx_is_broken(void) {
#if defined(__GNUC__) && !defined(__clang__)
    const int version = __GNUC__ * 100 + __GNUC_MINOR__;
    const bool is_fixed = version >= 1303 || (version >= 1204 && version < 1300) || (version >= 1105 && version < 1200);
    return !is_fixed && ggml_cpu_has_amx_int8();
#else
    return false;
#endif
}

extern "C" void lb_trim_heap(void) {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

extern "C" lb_memory_kind lb_memory_kind_of(llama_context * ctx) {
    llama_memory_t memory = llama_get_memory(ctx);
    if (memory == nullptr) {
        return LB_MEMORY_NONE;
    }
    if (dynamic_cast<llama_kv_cache_iswa *>(memory) != nullptr) {
        return LB_MEMORY_SLIDING;
    }
    if (dynamic_cast<llama_kv_cache *>(memory) != nullptr) {
        return LB_MEMORY_FULL;
    }
    if (dynamic_cast<llama_memory_recurrent *>(memory) != nullptr) {
        return LB_MEMORY_RECURRENT;
    }
    if (dynamic_cast<llama_memory_hybrid *>(memory) != nullptr) {
        return LB_MEMORY_HYBRID;
    }
    return LB_MEMORY_OTHER;
}

// The cells that are a pool of tokens: of full attention, whatever stands beside it.
static llama_kv_cache * token_cells(llama_context * ctx) {
    llama_memory_t memory = llama_get_memory(ctx);
    if (auto * cache = dynamic_cast<llama_kv_cache_iswa *>(memory)) {
        return cache->get_base();
    }
    if (auto * cache = dynamic_cast<llama_memory_hybrid *>(memory)) {
        return cache->get_mem_attn();
    }
    if (auto * cache = dynamic_cast<llama_memory_hybrid_iswa *>(memory)) {
        return cache->get_mem_attn()->get_base();
    }
    return dynamic_cast<llama_kv_cache *>(memory);
}

extern "C" int64_t lb_used_cells(llama_context * ctx, int32_t seq, bool windowed) {
    if (windowed) {
        auto * cache = dynamic_cast<llama_kv_cache_iswa *>(llama_get_memory(ctx));
        return cache == nullptr ? -1 : cache->get_swa()->get_cells(seq).get_used();
    }
    llama_kv_cache * cache = token_cells(ctx);
    return cache == nullptr ? -1 : cache->get_cells(seq).get_used();
}

extern "C" int64_t lb_span(llama_context * ctx) {
    llama_kv_cache * cache = token_cells(ctx);
    return cache == nullptr ? -1 : cache->get_cells(0).used_max_p1();
}

extern "C" int32_t lb_top(llama_context * ctx, int32_t most, int32_t * seqs, int32_t cap, int32_t * p0, int32_t * p1) {
    llama_kv_cache * cache = token_cells(ctx);
    if (cache == nullptr || cache->get_cells(0).used_max_p1() == 0) {
        return 0;
    }
    const auto & cells = cache->get_cells(0);
    const uint32_t top = cells.used_max_p1() - 1;
    int32_t n_seqs = 0;
    for (llama_seq_id seq = 0; seq < LLAMA_MAX_SEQ; ++seq) {
        if (cells.seq_has(top, seq)) {
            if (n_seqs == cap) {
                return 0;
            }
            seqs[n_seqs++] = seq;
        }
    }
    if (n_seqs == 0) {
        return 0;
    }
    const auto alike = [&](uint32_t cell) {
        return cells.seq_count(cell) == n_seqs &&
               std::all_of(seqs, seqs + n_seqs, [&](int32_t seq) { return cells.seq_has(cell, seq); });
    };
    // Where each of the last positions lies; those of another sequence's, or of more than these, end the run.
    const int32_t last = cells.pos_get(top);
    std::vector<bool> there(most, false);
    for (uint32_t cell = 0; cell <= top; ++cell) {
        if (cells.is_empty(cell) || !cells.seq_has(cell, seqs[0])) {
            continue;
        }
        const int32_t back = last - cells.pos_get(cell);
        if (back >= 0 && back < most && alike(cell)) {
            there[back] = true;
        }
    }
    int32_t n = 0;
    while (n < most && there[n]) {
        ++n;
    }
    *p0 = last + 1 - n;
    *p1 = last + 1;
    return n_seqs;
}

extern "C" int32_t lb_tokenize(const llama_vocab * vocab, const char * text, int32_t len, int32_t * tokens, int32_t cap, bool add_special, bool parse_special, int32_t * n, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&] {
        *n = llama_tokenize(vocab, text, len, tokens, cap, add_special, parse_special);
        return LB_OK;
    });
}

extern "C" int32_t lb_piece(const llama_vocab * vocab, int32_t token, char * buf, int32_t cap, bool special, int32_t * n, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&] {
        *n = llama_token_to_piece(vocab, token, buf, cap, 0, special);
        return LB_OK;
    });
}

extern "C" int32_t lb_detokenize(const llama_vocab * vocab, const int32_t * tokens, int32_t n_tokens, char * buf, int32_t cap, bool special, int32_t * n, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&] {
        *n = llama_detokenize(vocab, tokens, n_tokens, buf, cap, false, special);
        return LB_OK;
    });
}
