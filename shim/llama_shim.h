// The calls into llama.cpp that can throw, with the exception turned into a code and a text, and the few things that
// only its C++ side knows. The declarations are repeated by hand in src/backend/llama/ffi.rs.
//
// Every function that returns a code returns LB_THROWN when something was thrown, with the reason in `err`, always
// NUL-terminated, cut to `err_cap` bytes. Pointers are borrowed for the call unless a comment says otherwise.
#pragma once

#include "llama.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { LB_OK = 0, LB_THROWN = -100 };

enum lb_memory_kind {
    LB_MEMORY_NONE      = 0, // the model does not generate
    LB_MEMORY_FULL      = 1,
    LB_MEMORY_SLIDING   = 2,
    LB_MEMORY_RECURRENT = 3,
    LB_MEMORY_HYBRID    = 4,
    LB_MEMORY_OTHER     = 5, // of a kind whose rules are not known here
};

struct lb_chat;        // a chat template, for one model
struct lb_chat_parser; // how one answer is read

struct lb_need {
    uint64_t kv_bytes;
    uint64_t compute_bytes;
};

struct lb_shape {
    uint32_t n_ctx_seq;
    uint32_t n_stream;
    uint32_t n_seq_max;
    uint32_t n_ubatch;
    uint32_t n_outputs;
    int32_t  type_k;
    int32_t  type_v;
    bool     unified;
    bool     swa_full;
    bool     flash_attn;
};

// Process-wide: silence the logger of `common`, which prints by itself.
void lb_silence_common(void);
const char * lb_build_info(void);

// The result is the caller's.
int32_t lb_model_load(const char * path, const struct llama_model_params * params, struct llama_model ** out, char * err, size_t err_cap);
int32_t lb_context_new(struct llama_model * model, const struct llama_context_params * params, struct llama_context ** out, char * err, size_t err_cap);
int32_t lb_model_n_devices(const struct llama_model * model);
// The attention window; 0 where every layer sees all. A file may name a window that its architecture does not use.
int32_t lb_model_window(const struct llama_model * model);
// Positions that the model has embeddings for; INT32_MAX where positions are not embedded. ggml aborts beyond.
int32_t lb_model_n_positions(const struct llama_model * model);

// Whether each token looks at those before it only, where the options do not say.
bool lb_model_is_causal(const struct llama_model * model);

// What a context of this shape takes, roughly: the cache exactly, the compute buffers by their largest parts.
// Returns 1, with the reason in `err`, when a cache type does not divide this model's heads.
int32_t lb_context_need(const struct llama_model * model, const struct lb_shape * shape, struct lb_need * out, char * err, size_t err_cap);

// llama_decode's own code; when it is 0, `logits` points to the rows that asked for them, in the order of the batch.
int32_t lb_decode(struct llama_context * ctx, const struct llama_batch * batch, float ** logits, char * err, size_t err_cap);

// The same in a context for embeddings: `rows` points to one vector for each row of the batch, in its order.
int32_t lb_embed(struct llama_context * ctx, const struct llama_batch * batch, float ** rows, char * err, size_t err_cap);

int32_t lb_seq_rm(struct llama_context * ctx, int32_t seq, int32_t p0, int32_t p1, bool * done, char * err, size_t err_cap);
int32_t lb_seq_cp(struct llama_context * ctx, int32_t from, int32_t to, int32_t p0, int32_t p1, char * err, size_t err_cap);
// Give a sequence sliding-window cells of its own. Returns 1 if there was no room: then some of its cells are gone.
int32_t lb_seq_unshare(struct llama_context * ctx, int32_t seq, char * err, size_t err_cap);

// The state of a sequence, into a buffer of `cap` bytes; its size, where there is none. `n` receives the bytes, 0 for a failure.
// In part: without the layers of full attention, where there are others.
int32_t lb_state_get(struct llama_context * ctx, int32_t seq, bool in_part, uint8_t * buf, size_t cap, size_t * n, char * err, size_t err_cap);
// Replace a sequence by such a state. `n` receives the bytes that were read, 0 for a failure.
int32_t lb_state_set(struct llama_context * ctx, int32_t seq, const uint8_t * buf, size_t len, size_t * n, char * err, size_t err_cap);

// Whether this llama.cpp would use AMX and its compiler got that wrong: GCC before 11.5, 12.4 and 13.3 leaves most of the
// tiles' configuration out (PR 114098), and the first product of matrices ends the process with SIGILL.
bool lb_amx_is_broken(void);

// Give what is free in the heap back to the system, where the allocator keeps it otherwise.
void lb_trim_heap(void);

enum lb_memory_kind lb_memory_kind_of(struct llama_context * ctx);
// Cells in use of the unified buffer, or of a sequence's stream; -1 where the memory does not count them. Of a sliding
// window apart: `windowed`.
int64_t lb_used_cells(struct llama_context * ctx, int32_t seq, bool windowed);
// The highest cell in use, plus 1: how far each pass has to look; -1 where the memory has no cells.
int64_t lb_span(struct llama_context * ctx);
// Whose cells end at the highest one in use: positions p0..p1, at most `most`, that the same sequences hold. Writes those
// sequences, at most `cap`, and returns how many they are; 0 where there are more, or none.
int32_t lb_top(struct llama_context * ctx, int32_t most, int32_t * seqs, int32_t cap, int32_t * p0, int32_t * p1);

// `n` receives what llama_tokenize, llama_token_to_piece and llama_detokenize return.
int32_t lb_tokenize(const struct llama_vocab * vocab, const char * text, int32_t len, int32_t * tokens, int32_t cap, bool add_special, bool parse_special, int32_t * n, char * err, size_t err_cap);
int32_t lb_piece(const struct llama_vocab * vocab, int32_t token, char * buf, int32_t cap, bool special, int32_t * n, char * err, size_t err_cap);
int32_t lb_detokenize(const struct llama_vocab * vocab, const int32_t * tokens, int32_t n_tokens, char * buf, int32_t cap, bool special, int32_t * n, char * err, size_t err_cap);

// A template in Jinja, or the model's own where `source` is empty. The result is the caller's: lb_chat_free.
int32_t lb_chat_new(const struct llama_model * model, const char * source, size_t len, struct lb_chat ** out, char * err, size_t err_cap);
void lb_chat_free(struct lb_chat * chat);
// Render a few conversations with a template that nobody knows, whatever it makes of them. Returns 1 where there was no
// memory for it. It may never return, or end the process: that is what is tried.
int32_t lb_chat_try(const char * source, size_t len, char * err, size_t err_cap);
// What the template can do, as a JSON object of booleans. `out` is the caller's, as below: lb_text_free.
int32_t lb_chat_caps(const struct lb_chat * chat, char ** out, size_t * out_len, char * err, size_t err_cap);
// Render a conversation. `asked` and `out` are JSON objects; their keys are in chat_shim.cpp.
int32_t lb_chat_apply(const struct lb_chat * chat, const char * asked, size_t len, char ** out, size_t * out_len, char * err, size_t err_cap);
// What reads answers to such a conversation, from a JSON object with what lb_chat_apply gave. The result is the caller's.
int32_t lb_chat_parser_new(const char * syntax, size_t len, struct lb_chat_parser ** out, char * err, size_t err_cap);
void lb_chat_parser_free(struct lb_chat_parser * parser);
// Read an answer, or its beginning: a JSON object with its content, reasoning and tool calls.
int32_t lb_chat_parse(const struct lb_chat_parser * parser, const char * text, size_t len, bool is_partial, char ** out, size_t * out_len, char * err, size_t err_cap);
void lb_text_free(char * text);

#ifdef __cplusplus
}
#endif
